"""The autograd node: stabilised division, and the true gradient while the switch is off."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._engine.record import record
from whyformer._engine.relevance.calls import ActivationCall, AdditionCall
from whyformer._engine.relevance.node import RuleNode, Switch
from whyformer._engine.relevance.recipes import CHEFER, STABILISERS, make_recipe
from whyformer._engine.tracing.provenance import SampleGroups, label_axis
from whyformer._model.model import Model
from whyformer.errors import UnsupportedModel

DTYPES = (torch.float32, torch.float64)
SIGNED, RELEASED, NONE = (STABILISERS[name] for name in ("signed", "released", "none"))


def planted(dtype: torch.dtype) -> Tensor:
    """Denominators of both signs, from zero by way of the smallest number there is to 1."""
    smallest = 1e-45 if dtype == torch.float32 else 5e-324
    sizes = (0.0, smallest, 1e-38, 1e-12, SIGNED.epsilon(dtype), 1e-9, 1e-6, 1e-3, 1.0)
    return torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)


# --- stabilisers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_signed_denominator_keeps_its_sign_and_is_never_below_epsilon(dtype):
    z, epsilon = planted(dtype), SIGNED.epsilon(dtype)
    found = SIGNED.divide(torch.ones_like(z), z)
    assert found.isfinite().all()
    assert found.sign().tolist() == [math.copysign(1, entry) for entry in z.tolist()]
    assert (found.abs() <= 1.000001 / epsilon).all()
    wanted = [1 / (entry + math.copysign(epsilon, entry)) for entry in z.tolist()]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_signed_epsilon_is_lost_beside_one(dtype):
    one = torch.ones((), dtype=dtype)
    assert SIGNED.epsilon(dtype) > 0 and one + SIGNED.epsilon(dtype) == one
    assert SIGNED.divide(one, one) == one


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_positive_denominator_is_divided_the_same(dtype):
    z = planted(dtype).abs()
    relevance = torch.linspace(-2, 2, len(z), dtype=dtype)
    for stabiliser in STABILISERS.values():
        torch.testing.assert_close(
            stabiliser.divide_by_positive(relevance, z), stabiliser.divide(relevance, z), rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_released_division_adds_1e_9_whatever_the_sign(dtype):
    """-1e-3 comes nearer to zero, -1e-12 changes sign; nothing where z = 0."""
    z = torch.tensor([0.0, -0.0, 1e-12, -1e-12, 1e-9, 1e-3, -1e-3, 2.0, -2.0], dtype=dtype)
    found = RELEASED.divide(torch.full_like(z, 3.0), z)
    wanted = [0.0 if entry == 0 else 3.0 / (entry + 1e-9) for entry in z.tolist()]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_released_division_where_the_two_cancel(dtype):
    """-1e-9 + 1e-9 = 0: the authors' code then divides by 1e-9 (spec 2.5.1)."""
    z = torch.tensor([-1e-9], dtype=dtype)
    assert z + 1e-9 == 0
    torch.testing.assert_close(RELEASED.divide(torch.ones_like(z), z), torch.tensor([1e9], dtype=dtype))


def test_without_a_stabiliser_division_is_exact_and_nothing_at_zero():
    z = torch.tensor([0.0, -0.0, 0.1, -3.0], dtype=torch.float64)
    found = NONE.divide(torch.ones_like(z), z)
    assert found.tolist() == [0.0, 0.0, 1 / 0.1, -1 / 3]


def test_only_the_released_stabiliser_divides_at_a_branch():
    """What it takes away is recorded as absorbed."""
    samples = SampleGroups(torch.zeros(1, dtype=torch.int32), 1)
    call = ActivationCall(step=0, operation="gelu", place="mlp", run=F.gelu, samples=samples)
    x, relevance = torch.tensor([2.0, 0.0, 3e-9, 1e-9]).double(), torch.ones(4).double()
    for name in ("signed", "none"):
        attached = call.attach(Switch(recipe=make_recipe("chefer", name)), x, [x])
        assert torch.equal(attached.stabilise_copy(relevance), relevance)
    switch = Switch(recipe=make_recipe("chefer", "released"), absorbed={})
    found = call.attach(switch, x, [x]).stabilise_copy(relevance)
    torch.testing.assert_close(found, torch.tensor([2 / (2 + 1e-9), 0.0, 0.75, 0.5]).double())
    torch.testing.assert_close(sum(switch.absorbed.values()), (relevance - found).sum().view(1))


# --- the node --------------------------------------------------------------------------------------------------------

CALL = ActivationCall(step=0, operation="gelu", place="mlp", run=F.gelu)

OPERATIONS = {
    "linear": (lambda x: F.linear(x, torch.ones(2, 4, dtype=torch.float64).tril()), ((3, 4),)),
    "convolution": (lambda x: F.conv2d(x, torch.ones(2, 1, 2, 2, dtype=torch.float64)), ((1, 1, 3, 3),)),
    "product": (torch.matmul, ((2, 3, 4), (2, 4, 2))),
    "broadcast product": (torch.mul, ((2, 3, 4), (2, 1, 4))),
    "add": (torch.add, ((2, 3), (2, 3))),
    "pool": (lambda x: x.mean(1), ((2, 3, 2),)),
    "select": (lambda x: x[:, 0], ((2, 3, 2),)),
    "join": (lambda *parts: torch.cat(parts, 1), ((2, 1, 2), (2, 2, 2))),
    "softmax": (lambda x: x.softmax(-1), ((2, 3),)),
    "norm": (lambda x: F.layer_norm(x, (4,)), ((2, 4),)),
    "gelu": (F.gelu, ((2, 4),)),
    "attention": (F.scaled_dot_product_attention, ((1, 2, 3, 2),) * 3),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_with_the_switch_off_the_gradient_is_true(name):
    function, shapes = OPERATIONS[name]
    torch.manual_seed(0)
    operands = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def with_node(*given: Tensor) -> Tensor:
        return RuleNode.apply(Switch(), CALL, function(*given), *given)

    assert torch.autograd.gradcheck(with_node, operands, nondet_tol=0)


def test_the_result_is_handed_on_as_it_is():
    x = torch.randn(3, requires_grad=True)
    result = x * 2
    assert torch.equal(RuleNode.apply(Switch(), CALL, result, x), result)


def test_one_forward_serves_gradient_relevance_and_gradient_again():
    switch, x = Switch(), torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    out = RuleNode.apply(switch, CALL, x**3, x)
    arriving, found = torch.tensor([1.0, 10.0], dtype=torch.float64), []
    for switch.recipe in (None, CHEFER, None):
        found.append(torch.autograd.grad(out, x, arriving, retain_graph=True)[0].tolist())
    assert found == [[0.75, 120.0], [1.0, 10.0], [0.75, 120.0]]


def test_two_switches_do_not_meet():
    """Relevance in one run while another takes gradients."""
    switches = Switch(recipe=CHEFER), Switch()
    x = torch.tensor([3.0], requires_grad=True)
    outs = [RuleNode.apply(switch, CALL, x**2, x) for switch in switches]
    assert [torch.autograd.grad(out, x, torch.ones(1))[0].item() for out in outs] == [1.0, 6.0]


def test_an_operand_that_is_reached_twice_collects_both():
    switch, x = Switch(recipe=CHEFER), torch.tensor([1.0, 2.0], requires_grad=True)
    once, twice = (RuleNode.apply(switch, CALL, x * factor, x) for factor in (2, 3))
    (found,) = torch.autograd.grad([once, twice], x, [torch.tensor([1.0, 0.0]), torch.tensor([5.0, 7.0])])
    assert found.tolist() == [6.0, 7.0]


def test_the_released_code_divides_where_a_residual_branches_off():
    """x R / (x + 1e-9) at a tensor that is used twice, once in an addition; nothing of the kind at one that is not."""
    for consumers, wanted in ((["add", "layer_norm"], 0.5), (["layer_norm", "gelu"], 1.0), (["add"], 1.0)):
        x = torch.tensor([1e-9], dtype=torch.float64, requires_grad=True)
        call = replace(CALL, consumers=consumers)
        out = RuleNode.apply(Switch(recipe=make_recipe("chefer", "released")), call, x.clone(), x)
        (found,) = torch.autograd.grad(out, x, torch.ones(1, dtype=torch.float64))
        assert found.item() == pytest.approx(wanted)


def test_absorbed_relevance_is_summed_per_example_and_only_when_tracked():
    samples = SampleGroups(label_axis(0, 2, 2, torch.device("cpu")), 2)
    lost = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    call = AdditionCall(step=4, operation="add", place="place", samples=samples)
    call.attach(Switch(), lost, [lost]).absorb("bias", lambda: pytest.fail("not tracked"))
    switch = Switch(absorbed={})
    call.attach(switch, lost, [lost]).absorb("bias", lambda: lost)
    call.attach(switch, lost, [lost]).absorb("bias", lambda: lost)
    assert switch.absorbed[4, "bias"].tolist() == [6.0, 14.0]


def test_a_lost_batch_axis_is_noticed():
    with pytest.raises(UnsupportedModel, match=r"gelu in mlp belong to which example. Explain one example at a time"):
        assert CALL.examples


# --- whole models against finite differences -------------------------------------------------------------------------

# The module whose first argument is the explained input of a text model: the sum of embeddings.
ENTRANCE = {
    "bert": "bert.embeddings.LayerNorm",
    "roberta": "roberta.embeddings.LayerNorm",
    "distilbert": "distilbert.embeddings.LayerNorm",
    "electra": "electra.embeddings.LayerNorm",
    "albert": "albert.embeddings.LayerNorm",
    "encoder": "encoder.layers.0",
    "encoder_token_first": "encoder.layers.0",
    "gpt": "h.0",
    "gpt2": "transformer.h.0",
    "llama": "model.layers.0",
}
TARGETS = [1, 3, 0]


def scores_of(animal, inputs: dict[str, Tensor]) -> Tensor:
    """The explained logits of a plain forward, summed: examples do not mix."""
    with torch.no_grad():
        out = animal.module(**inputs)
    logits = getattr(out, "logits", out)
    if logits.dim() == 3:  # a language model: after the last real token
        mask = inputs.get("attention_mask", torch.ones(logits.shape[:2]))
        logits = logits[torch.arange(3), mask.long().sum(-1) - 1]
    return logits[torch.arange(3), torch.tensor(TARGETS)].sum()


def nudged(animal, path: str, nudge: Tensor) -> Tensor:
    """The same with `nudge` added to what enters a module, the first time it is called."""
    waiting = [nudge]

    def before(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not waiting:
            return args, kwargs
        nudge = waiting.pop()
        if args:
            return (args[0] + nudge, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": kwargs["hidden_states"] + nudge}

    handle = animal.module.get_submodule(path).register_forward_pre_hook(before, with_kwargs=True)
    try:
        return scores_of(animal, animal.inputs)
    finally:
        handle.remove()


def step_and_tolerance(name: str) -> tuple[float, float]:
    """Central differences with a step of 1e-5 are good to about 1e-9, but Llama norms in float32 at any dtype."""
    return (1e-3, 1e-3) if name == "llama" else (1e-5, 1e-6)


@pytest.mark.parametrize("with_relevance", [False, True])
def test_input_gradients_are_those_of_finite_differences(family, with_relevance):
    """Along a random direction. Nodes in the graph change nothing."""
    size, tolerance = step_and_tolerance(family.name)
    model = Model(family.module, family.name)
    keep = {"input_grad", "hidden_grad"} | ({"input_relevance"} if with_relevance else set())
    recipes = [CHEFER] if with_relevance else []
    capture = record(model, model.encode(family.inputs), target=TARGETS, keep=keep, recipes=recipes)
    gradient = capture["input_grad"]
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = size * direction
    if family.name in ENTRANCE:
        step = step.transpose(0, 1) if family.name == "encoder_token_first" else step
        above, below = (nudged(family, ENTRANCE[family.name], sign * step) for sign in (1, -1))
    else:
        pixels = family.inputs["pixel_values"]
        step = step.permute(0, 3, 1, 2)
        above, below = (scores_of(family, {"pixel_values": pixels + sign * step}) for sign in (1, -1))
    wanted = (above - below).item() / (2 * size)
    assert wanted != 0
    assert (gradient * direction).sum().item() == pytest.approx(wanted, rel=tolerance)


PLAIN_BLOCKS = ("vit", "bert", "distilbert", "encoder", "encoder_token_first", "gpt", "gpt2")


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("name", PLAIN_BLOCKS)
def test_hidden_gradients_are_those_of_finite_differences(zoo, name, block):
    animal = zoo(name)
    paths = [path for path, _ in animal.module.named_modules()]
    path = next((p for p in paths if p.endswith(("layer.0", "layers.0", "h.0"))), "").removesuffix("0") + str(block)
    assert path in paths
    model = Model(animal.module, name)
    capture = record(model, model.encode(animal.inputs), target=TARGETS, keep={"hidden_grad"})
    gradient = capture["hidden_grad"][block]
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = direction.transpose(0, 1) if name == "encoder_token_first" else direction
    above, below = (nudged(animal, path, sign * 1e-5 * step) for sign in (1, -1))
    wanted = (above - below).item() / 2e-5
    assert wanted != 0
    assert (gradient * direction).sum().item() == pytest.approx(wanted, rel=1e-6)
