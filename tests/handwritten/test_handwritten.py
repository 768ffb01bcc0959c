"""Attention that people write themselves is found, with the right matrix, gradient, relevance and readout."""

from typing import Any

import pytest
import torch
from handwritten import references, zoo
from torch import Tensor

import whyformer as why
from whyformer._engine.capture.capture import Capture
from whyformer._engine.record import record
from whyformer._model.model import Model

TARGET = 1
METHODS = (
    "transformer_attribution generic_attention rollout raw_attention attcat attnlrp gradient_x_input grad_cam "
    "leave_one_out chance".split()
)
FORWARD = ("attention", "value", "hidden", "readout")
GRADIENTS = ("attention_grad", "hidden_grad", "input_grad")
RELEVANCE = ("attention_relevance", "hidden_relevance", "input_relevance")
CHEFER, ATTNLRP = why.make_recipe("chefer"), why.make_recipe("attnlrp")
BOTH = [pytest.param(CHEFER, id="chefer", marks=pytest.mark.slow), pytest.param(ATTNLRP, id="attnlrp")]


SAME_AS_PLAIN = [
    name
    for name, case in zoo.CASES.items()
    if case.arrange is zoo.as_blocks
    and case.pool is zoo.read_first
    and case.key_heads == zoo.HEADS
    and name not in ("softmax_one", "sink_column", "talking_heads", "causal_exp", "memory_keys", "wide_softmax")
]


@pytest.fixture(params=zoo.CASES)
def case(request: Any) -> zoo.Case:
    return zoo.CASES[request.param]


def record_case(
    case: zoo.Case, keep: tuple[str, ...], ids: Tensor = zoo.IDS, recipes: Any = (), **more: Any
) -> Capture:
    model = Model(case.build(), case.name)
    return record(model, model.encode({"input_ids": ids}), target=TARGET, keep=set(keep), recipes=recipes, **more)


def assert_layers(found: Any, wanted: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.detach(), rtol=tolerance, atol=tolerance)


def test_attention_states_readout_and_their_gradients_are_those_of_the_definition(case):
    """One site per layer, with the matrix of the model written slowly; gradients by autograd on that matrix."""
    capture = record_case(case, FORWARD + GRADIENTS)
    slow = references.run_slowly(case, case.build(), zoo.IDS)
    tolerance = 1e-6 if case.name == "wide_softmax" else 1e-9
    torch.testing.assert_close(capture.logits, slow.logits.detach(), rtol=tolerance, atol=tolerance)
    assert_layers(capture["attention"], slow.matrices, tolerance)
    assert_layers(capture["value"], slow.values, tolerance)
    assert_layers(capture["hidden"], slow.states, tolerance)
    torch.testing.assert_close(capture["readout"].double(), slow.readout, rtol=tolerance, atol=tolerance)
    score = slow.logits[:, TARGET].sum()
    assert_layers(capture["hidden_grad"], list(torch.autograd.grad(score, slow.states, retain_graph=True)), tolerance)
    if case.name != "memory_keys":  # there the reference writes the sink's weight as a function of the others
        gradients = list(torch.autograd.grad(score, slow.matrices, retain_graph=True))
        assert_layers(capture["attention_grad"], gradients, tolerance)
    assert_layers([capture["input_grad"]], list(torch.autograd.grad(score, slow.states[:1])), tolerance)


@pytest.mark.slow
def test_attention_is_the_same_without_a_gradient(case):
    """Without a graph torch may take other paths."""
    alone = record_case(case, ("attention", "readout"))
    with_gradient = record_case(case, ("attention", "attention_grad", "readout"))
    assert_layers(alone["attention"], list(with_gradient["attention"]), 1e-9)
    torch.testing.assert_close(alone["readout"], with_gradient["readout"])


@pytest.mark.parametrize("recipe", BOTH)
def test_relevance_is_conserved(case, recipe):
    """What arrives at the input and what was absorbed on the way add up to what was sent."""
    capture = record_case(case, ("input_relevance",), recipes=[recipe], track_absorbed=True)
    arrived = capture.get("input_relevance", recipe).flatten(1).sum(1)
    absorbed = sum((one.amount for one in capture.absorbed[recipe]), torch.zeros_like(arrived))
    sent = torch.ones_like(arrived) if recipe.sends != "slope" else capture.logits[:, TARGET]
    torch.testing.assert_close(arrived + absorbed, sent, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_an_example_in_a_batch_gets_what_it_gets_alone(case):
    keep = FORWARD + GRADIENTS + RELEVANCE
    together = record_case(case, keep, recipes=[CHEFER])
    alone = record_case(case, keep, zoo.IDS[1:2], recipes=[CHEFER])
    for name in keep:
        one, other = (c.get(name, CHEFER) for c in (together, alone))
        pairs = [(one, other)] if isinstance(one, Tensor) else zip(one, other, strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a[1], b[0], rtol=1e-7, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_served_where_nothing_is_a_module(method):
    """A loop over heads in pairs of modules, pooled by a learned query."""
    assert_served(zoo.CASES["pairs_head_loop_map"], method)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_served(case, method):
    assert_served(case, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", "libragrad norm_analysis globenc alti tokentm legrad decompx value_zeroing".split())
@pytest.mark.parametrize("name", ["as_pairs", "as_functions"])
def test_methods_on_blocks_do_not_need_modules(name, method):
    """The same scores as with blocks that are modules."""
    found, wanted = (
        why.explain(why.open(zoo.CASES[n].build()), {"input_ids": zoo.IDS}, method, target=TARGET).scores
        for n in (name, "plain")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


def assert_served(case: zoo.Case, method: str) -> None:
    scores = why.explain(why.open(case.build()), {"input_ids": zoo.IDS}, method, target=TARGET).scores
    assert scores.shape == zoo.IDS.shape
    assert bool(scores.isfinite().all()) and (method == "grad_cam" or bool(scores.any()))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["agcam", "atman", "value_zeroing"])
@pytest.mark.parametrize("name", SAME_AS_PLAIN)
def test_methods_that_change_attention_do_not_depend_on_how_it_is_written(name, method):
    found, wanted = (
        why.explain(why.open(zoo.CASES[n].build()), {"input_ids": zoo.IDS}, method, target=TARGET).scores
        for n in (name, "plain")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", BOTH)
@pytest.mark.parametrize("name", SAME_AS_PLAIN)
def test_relevance_does_not_depend_on_how_attention_is_written(name, recipe):
    keep = ("attention_relevance", "hidden_relevance", "input_relevance")
    found, wanted = (record_case(zoo.CASES[n], keep, recipes=[recipe]) for n in (name, "plain"))
    for site in keep:
        one, other = (c.get(site, recipe) for c in (found, wanted))
        pairs = [(one, other)] if isinstance(one, Tensor) else zip(one, other, strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=lambda m, site=site: f"{site}: {m}")
