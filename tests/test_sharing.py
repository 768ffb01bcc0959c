"""Methods share passes: one forward, one gradient backward pass, and one relevance pass per recipe."""

from collections import Counter

import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer._engine.capture import backward, builder, full_run
from whyformer._engine.probe import probe
from whyformer._explain.method_call import choose_method
from whyformer.errors import UnsupportedModel
from whyformer.methods._registry import METHODS

QUICKLY = sorted(name for name, method in METHODS.items() if method.is_quick)
RECIPES = {choose_method(name, {}).recipe for name in QUICKLY} - {None}


@pytest.fixture
def passes(monkeypatch):
    """Counts the passes through the model."""
    counted = Counter()
    plain_forward, plain_relevance, plain_backward = (
        full_run.run_forward,
        backward.run_relevance_pass,
        backward.run_backward,
    )

    def forward(*args, **kwargs):
        counted["forward"] += 1
        return plain_forward(*args, **kwargs)

    def relevance(answer, tracked, switch, recipe, track_absorbed):
        counted["relevance", recipe] += 1
        return plain_relevance(answer, tracked, switch, recipe, track_absorbed)

    def gradient(score, tracked):
        counted["backward"] += 1
        return plain_backward(score, tracked)

    monkeypatch.setattr(full_run, "run_forward", forward)
    monkeypatch.setattr(probe, "run_forward", forward)
    monkeypatch.setattr(backward, "run_relevance_pass", relevance)
    monkeypatch.setattr(backward, "run_backward", gradient)
    return counted


def assert_shared(counted):
    assert counted.pop("forward") == 1
    assert counted.pop("backward") == 1 + len(RECIPES)  # the gradient, and one per recipe
    assert counted == {("relevance", recipe): 1 for recipe in RECIPES}


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_quick_methods_share_every_pass(name, passes):
    compared = why.compare(why.open(animal(name).module), animal(name).inputs, "quick", target=0)
    assert_shared(passes)
    assert {*compared.labels, *compared.failures} == set(QUICKLY)


@pytest.mark.slow
def test_quick_methods_share_every_pass_on_a_vit_b(passes):
    """The size of ViT-B/16 at 224 pixels, random weights, one image."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    module = ViTForImageClassification(ViTConfig(num_labels=10)).eval()
    pixels = torch.randn(1, 3, 224, 224)
    compared = why.compare(why.open(module), {"pixel_values": pixels}, "quick")
    assert_shared(passes)
    assert not compared.failures


def test_methods_that_rerun_the_model_declare_their_cost():
    for name, method in METHODS.items():
        assert method.is_quick is (method.extra_cost is None), name


def test_methods_with_the_same_needs_share_a_run_where_not_all_can(monkeypatch):
    """For a model without hidden states, methods on attention run once for each set of needs."""
    module = animal("bert").module
    monkeypatch.setattr(builder, "find_blocks", lambda mode: (_ for _ in ()).throw(UnsupportedModel("none")))
    runs = Counter()
    plain = full_run.run_forward
    monkeypatch.setattr(full_run, "run_forward", lambda *a, **k: runs.update(n=1) or plain(*a, **k))
    with why.engine(replay=False, plan=False):
        compared = why.compare(why.open(module), animal("bert").inputs, "quick", target=0)
    sets = {(choose_method(name, {}).needs, choose_method(name, {}).recipe) for name in QUICKLY}
    assert runs["n"] == 1 + len(sets) < 1 + len(QUICKLY)
    assert {"cat", "attcat"} <= set(compared.failures)
    assert {"rollout", "transformer_attribution", "gradient_x_input"} <= set(compared.labels)


@pytest.mark.slow
def test_all_methods_share_the_passes_of_one_run(monkeypatch):
    """Those that rerun the model do so separately, and count it in `spent`."""
    counted = Counter()
    for name, key in (("run_backward", "backward"), ("run_relevance_pass", "relevance")):
        plain = getattr(backward, name)
        monkeypatch.setattr(backward, name, lambda *a, key=key, plain=plain: counted.update([key]) or plain(*a))
    plain_forward = probe.run_forward
    monkeypatch.setattr(full_run, "run_forward", lambda *a, **k: counted.update(["forward"]) or plain_forward(*a, **k))
    compared = why.compare(why.open(animal("vit").module), animal("vit").alone(0), "all", target=0)
    assert counted == {"forward": 1, "backward": 1 + len(RECIPES), "relevance": len(RECIPES)}
    assert set(compared.labels) == set(METHODS)
    for name, e in compared.explanations.items():
        assert (sum(e.spent.values()) > 3) is not METHODS[name].is_quick or name == "decompx"
