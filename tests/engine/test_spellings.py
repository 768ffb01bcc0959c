"""Odd spellings of what models do all the time: gates without dimension, every form of einsum."""

import pytest
import torch
from conftest import QUICK, name_value
from test_odd_models import Attention
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.tracing.composites import spell_out_einsum
from whyformer._engine.tracing.operations import Operation
from whyformer.methods._registry import METHODS

INPUT = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
A, B = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)


class Gated(nn.Module):
    """A block whose two halves are each scaled by a single number (ReZero)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.norm, self.other = Attention(), nn.LayerNorm(16), nn.LayerNorm(16)
        self.gate, self.shift = nn.Parameter(torch.full(shape, 0.7)), nn.Parameter(torch.full(shape, 0.1))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate * self.attention(self.norm(x))
        return x + torch.tanh(self.gate) * self.down(self.up(self.other(x)).relu() + self.shift)


class Classifier(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.block, self.head = block, nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean(1))


def test_a_gate_without_dimension_is_a_gate_of_one_number():
    plain, odd = (why.open(Classifier(Gated(shape)).double().eval()) for shape in ((1,), ()))
    for name in METHODS:
        if name == "vit_cx":
            continue
        settings = QUICK.get(name, {}) | ({"fill": "drop"} if "fill" in METHODS[name].settings else {})
        wanted, found = (why.explain(model, INPUT, name, target=1, **settings).scores for model in (plain, odd))
        torch.testing.assert_close(found, wanted, msg=name)


@pytest.mark.parametrize(
    "args",
    [
        ("bij,bjk->bik", A, B),
        ("bij,bjk->bik", [A, B]),
        ("...ij,...jk", [A, B]),
        ("xij,yjk", A, B),
        (A, [0, 1, 2], B, [0, 2, 3], [0, 1, 3]),
        (A, [0, 1, 2], B, [5, 2, 3]),
        (A, [..., 1, 2], B, [..., 2, 3]),
    ],
    ids=lambda args: name_value([arg for arg in args if not isinstance(arg, Tensor | list)] or len(args)),
)
def test_every_spelling_of_einsum_says_the_same(args):
    spelled = spell_out_einsum(Operation("einsum", torch.einsum, args, {}))
    assert isinstance(spelled.args[0], str) and "->" in spelled.args[0]
    assert all(isinstance(factor, Tensor) for factor in spelled.args[1:])
    torch.testing.assert_close(spelled.run(), torch.einsum(*args))


class Einsum(nn.Module):
    def __init__(self, takes_list: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.takes_list, self.qkv = takes_list, nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        multiply = lambda equation, *factors: torch.einsum(equation, *([list(factors)] if self.takes_list else factors))  # noqa: E731
        return x + multiply("bij,bjd->bid", multiply("bid,bjd->bij", query, key).softmax(-1), value)


def test_factors_in_a_list_are_found():
    plain, odd = (why.open(Classifier(Einsum(takes_list)).double().eval()) for takes_list in (False, True))
    for name in ("rollout", "attnlrp", "generic_attention", "transformer_attribution"):
        wanted, found = (why.explain(model, INPUT, name, target=1).scores for model in (plain, odd))
        torch.testing.assert_close(found, wanted)
