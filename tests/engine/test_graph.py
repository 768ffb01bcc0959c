"""The check of the graph: every node that relevance passes is a rule node or a view, or it is refused by name."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.relevance.calls import ActivationCall
from whyformer._engine.relevance.node import RuleNode, Switch
from whyformer._engine.run.graph import refuse_unknown_nodes
from whyformer.errors import UnknownOperation

CALL = ActivationCall(step=0, operation="gelu", place="mlp", run=F.gelu)


def ours(function, *operands: Tensor) -> Tensor:
    return RuleNode.apply(Switch(), CALL, function(*operands), *operands)


def make_input() -> Tensor:
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()


VIEWS = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.transpose(0, 1).reshape(3, 8),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "T": lambda x: x[0].T,
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "expand": lambda x: x[:, :1].expand(2, 3, 4),
    "slice": lambda x: x[:, 1:, ::2],
    "select": lambda x: x[:, 0],
    "index": lambda x: x[torch.tensor([0, 1]), torch.tensor([2, 0])],
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2])),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, 4, dtype=torch.long)),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "split": lambda x: x.split([1, 2], 1)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "clone": lambda x: x.clone(),
    "to": lambda x: x.to(torch.float64),
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "pad": lambda x: F.pad(x, (0, 1)),
    "unflatten": lambda x: x.unflatten(-1, (2, 2)),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(1).values,
    "tril": lambda x: x.tril(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_passes(name):
    x = make_input()
    refuse_unknown_nodes(VIEWS[name](ours(torch.exp, x)))
    refuse_unknown_nodes(ours(torch.exp, VIEWS[name](x)))


STRANGERS = {
    "MulBackward0": lambda x: x * 2,
    "AddBackward0": lambda x: x + x,
    "ExpBackward0": lambda x: x.exp(),
    "SoftmaxBackward0": lambda x: x.softmax(-1),
    "MmBackward0": lambda x: x.flatten(0, 1) @ torch.ones(4, 2),
    "CumsumBackward0": lambda x: x.cumsum(1),
    "MeanBackward1": lambda x: x.mean(1),
    "NativeLayerNormBackward0": lambda x: F.layer_norm(x, (4,)),
    "ReluBackward0": lambda x: x.relu(),
    "ProdBackward0": lambda x: x.prod(),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_an_unknown_node_is_refused_by_name_at_any_position(name):
    """After rule nodes, before them, and on one of two paths."""
    x, stranger = make_input(), STRANGERS[name]
    one_of_two = torch.cat([ours(torch.tanh, x).flatten(), ours(torch.tanh, stranger(x)).flatten()])
    for answer in (stranger(ours(torch.tanh, x)), ours(torch.tanh, stranger(x)), one_of_two):
        with pytest.raises(UnknownOperation, match=rf"{name} is between the answer and the input"):
            refuse_unknown_nodes(answer)


def test_the_operation_behind_a_rule_node_is_not_refused():
    """Relevance goes to the operands, so the operation that computed the result does not matter."""
    x = make_input()
    refuse_unknown_nodes(ours(lambda t: (t.exp() * 2).softmax(-1).cumsum(0), x))


def test_a_second_operand_is_checked_too():
    x, y = make_input(), make_input()
    refuse_unknown_nodes(ours(torch.mul, x, y))
    with pytest.raises(UnknownOperation, match="SinBackward0"):
        refuse_unknown_nodes(ours(torch.mul, x, y.sin()))


class Squaring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("name", ["Squaring", RuleNode.__name__, f"{RuleNode.__name__}2"])
def test_a_custom_autograd_function_is_refused_whatever_its_name(name):
    custom = type(name, (Squaring,), {})
    with pytest.raises(UnknownOperation, match=f"The model calls {name}, a torch.autograd.Function of its own"):
        refuse_unknown_nodes(ours(torch.tanh, custom.apply(make_input())))


def test_a_deep_graph_is_walked_without_recursion():
    x = make_input()
    y = x
    for _ in range(3000):
        y = ours(torch.clone, y)
    refuse_unknown_nodes(y)


def test_an_answer_without_a_graph_passes():
    refuse_unknown_nodes(torch.ones(3))
