"""How much rounding changes an explanation: planted sums that cancel, the contract, and what users see of it."""

import dataclasses
import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import animal
from torch import nn

import whyformer as why
from whyformer._explain.method_call import choose_method
from whyformer._explain.precision import convert_precision
from whyformer.errors import InputError, MethodError
from whyformer.methods._registry import METHODS
from whyformer.results.conditioning import LIMIT, NOTES, Conditioning
from whyformer.results.joining import join_explanations

RELEVANCE = sorted(name for name, method in METHODS.items() if method.recipe)
TARGETS = [0, 1, 2]


class Layer(nn.Module):
    """Attention, then h + M h: with M = -(1 - remainder) the two branches nearly cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.branch = nn.Linear(8, 24), nn.Linear(8, 8, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = (part[:, None] for part in self.project(hidden).chunk(3, -1))
        hidden = hidden + F.scaled_dot_product_attention(query, key, value)[:, 0]
        return hidden + self.branch(hidden)


class Block(nn.Module):
    """One such layer between an embedding and a classifier of the first token."""

    def __init__(self, remainder: float) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(20, 8), Layer(), nn.Linear(8, 3)
        generator = torch.Generator().manual_seed(3)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=generator)
        self.layer.branch.weight.data = (remainder - 1) * torch.eye(8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(input_ids))[:, 0])


def explain_block(remainder, method="lrp", **settings):
    model = why.open(Block(remainder), readout="first")
    return why.explain(model, {"input_ids": torch.arange(1, 7)[None]}, method, target=0, **settings)


# --- planted ----------------------------------------------------------------------------------------------------------


def test_branches_that_cancel_give_a_large_estimate_and_a_note():
    e = explain_block(1e-6)
    assert float(e.conditioning.estimate) > 10 * LIMIT
    assert NOTES["float32"] in e.notes
    assert 'precision="float64"' in str(e)


def test_branches_that_do_not_cancel_give_a_small_estimate_and_no_note():
    e = explain_block(2.0)
    assert float(e.conditioning.estimate) < LIMIT
    assert not set(NOTES.values()) & set(e.notes)


def test_float64_settles_what_float32_cannot():
    short, long = explain_block(1e-6), explain_block(1e-6, precision="float64")
    assert float(long.conditioning.estimate) < 1e-6
    assert not set(NOTES.values()) & set(long.notes)
    assert long.settings["precision"] == "float64"
    assert long.scores.dtype == torch.float64
    assert short.scores.dtype == torch.float32


def test_the_measurement_finds_the_same():
    unsettled, settled = explain_block(1e-7, health=True), explain_block(2.0, health=True)
    assert float(unsettled.conditioning.change) > 1e-3
    assert float(settled.conditioning.change) < 1e-4
    assert bool(settled.conditioning.is_determined)
    assert float(settled.conditioning.rank_correlation) > 0.99


def test_the_measurement_decides_about_the_note():
    e = explain_block(2.0, health=True)
    changed = dataclasses.replace(e.conditioning, same_top=torch.zeros(1, dtype=torch.float64))
    noted = e.with_conditioning(changed)
    assert NOTES["float32"] in noted.notes
    assert noted.with_conditioning(e.conditioning).notes == e.notes


def test_a_method_that_reads_only_the_last_attention_has_only_the_error_above_it():
    module = animal("vit").module
    model = why.open(module)
    last = why.explain(model, animal("vit").inputs, "partial_lrp", layer=-1, target=TARGETS).conditioning.estimate
    first = why.explain(model, animal("vit").inputs, "partial_lrp", layer=0, target=TARGETS).conditioning.estimate
    assert (last < first).all()


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "vit", "gpt"])
@pytest.mark.parametrize("method", RELEVANCE)
def test_every_relevance_method_estimates_and_the_estimate_is_that_of_the_example_alone(method, name):
    zoo = animal(name)
    model = why.open(zoo.module)
    for precision in ("float32", "float64"):
        together = why.explain(model, zoo.inputs, method, target=TARGETS, precision=precision).conditioning.estimate
        assert together.shape == (3,)
        assert (together > 0).all()
        assert (together < 1).all()
        last = {key: value[2:] for key, value in zoo.inputs.items()}
        own = why.explain(model, last, method, target=TARGETS[2], precision=precision).conditioning.estimate
        assert float(own) == pytest.approx(float(together[2]), rel=0.2 if precision == "float32" else 1e-3)


@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("method", RELEVANCE)
def test_the_estimate_scales_with_the_precision(method, name):
    zoo = animal(name)
    model = why.open(zoo.module)
    short, long = (
        why.explain(model, zoo.inputs, method, target=TARGETS, precision=precision).conditioning.estimate
        for precision in ("float32", "float64")
    )
    assert (long < short * 1e-7).all()
    assert (long > short * 1e-12).all()


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp", "libragrad", "lrp_gamma"])
def test_rules_that_send_slopes_have_the_error_of_the_forward_pass(method):
    zoo = animal("vit")
    e = why.explain(why.open(zoo.module), zoo.inputs, method, precision="float32")
    assert (e.conditioning.estimate < 2e-6).all()


@pytest.mark.parametrize("method", ["rollout", "gradient_x_input"])
def test_a_method_without_relevance_says_that_it_has_no_estimate(method):
    zoo = animal("bert")
    e = why.explain(why.open(zoo.module), zoo.inputs, method)
    with pytest.raises(InputError, match="propagates no relevance"):
        _ = e.conditioning


def test_a_contrast_has_an_estimate():
    zoo = animal("bert")
    e = why.explain(why.open(zoo.module), zoo.inputs, "lrp", target=0, versus=1)
    assert (e.conditioning.estimate > 0).all()


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lrp", "rollout", "occlusion", "gradient_x_input"])
def test_precision_equals_a_model_that_was_converted_by_hand(method):
    inputs = {"input_ids": torch.arange(1, 7)[None]}
    ours = why.explain(why.open(Block(2.0), readout="first"), inputs, method, target=0, precision="float64").scores
    by_hand = why.explain(why.open(Block(2.0).double(), readout="first"), inputs, method, target=0).scores
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, by_hand, rtol=1e-12, atol=1e-14)


def test_precision_leaves_the_model_as_it_is():
    module = Block(1e-6)
    before = {name: (id(weight), weight.dtype, weight.clone()) for name, weight in module.named_parameters()}
    model = why.open(module, readout="first")
    why.explain(model, {"input_ids": torch.arange(1, 7)[None]}, "lrp", precision="float64", health=True)
    for name, weight in module.named_parameters():
        assert (id(weight), weight.dtype) == before[name][:2]
        assert torch.equal(weight, before[name][2])
    assert not module._forward_hooks


def test_methods_of_different_precision_can_be_compared():
    model = why.open(Block(1e-6), readout="first")
    methods = ["lrp", "rollout", partial(why.methods.lrp, precision="float64")]
    compared = why.compare(model, {"input_ids": torch.arange(1, 7)[None]}, methods)
    assert compared["lrp"].scores.dtype == torch.float32
    assert compared["lrp(precision='float64')"].scores.dtype == torch.float64
    assert "lrp: Rounding in float32" in str(compared)


@pytest.mark.parametrize("given", ["half", 64, True, ["float64"]])
def test_an_unknown_precision_is_refused(given):
    with pytest.raises(MethodError, match="precision must be one of 'float32', 'float64'; got") as caught:
        choose_method("rollout", {"precision": given})
    assert caught.value.code == "E_OPTION"


def test_float64_is_refused_on_a_device_without_it(monkeypatch):
    model = why.open(Block(2.0), readout="first")
    encoded = model.encode({"input_ids": torch.arange(1, 7)[None]})
    monkeypatch.setattr(type(model), "device", property(lambda self: torch.device("mps")))
    with pytest.raises(MethodError, match="not available on the device mps"):
        convert_precision(model, encoded, "float64")


# --- what is kept and shown -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_it_survives_saving(tmp_path, suffix):
    e = explain_block(1e-6, health=True)
    e.save(tmp_path / f"e{suffix}")
    back = why.load(tmp_path / f"e{suffix}").conditioning
    for part in ("estimate", "change", "rank_correlation", "same_top"):
        assert torch.equal(getattr(back, part), getattr(e.conditioning, part))


def test_a_file_of_an_earlier_version_loads_without_it(tmp_path):
    e = explain_block(2.0)
    old = dataclasses.replace(e, details={})
    old.save(tmp_path / "e.json")
    with pytest.raises(InputError, match="earlier version"):
        _ = why.load(tmp_path / "e.json").conditioning


def test_a_file_with_half_a_measurement_is_refused(tmp_path):
    e = explain_block(2.0, health=True)
    details = {name: value for name, value in e.details.items() if name != "rounding change"}
    dataclasses.replace(e, details=details).save(tmp_path / "e.json")
    with pytest.raises(why.WhyformerError, match="conditioning"):
        why.load(tmp_path / "e.json")


def test_slices_and_joins_keep_their_own_numbers_and_notes():
    bad, good = explain_block(1e-6), explain_block(2.0)
    both = join_explanations([bad, good])
    assert torch.equal(both.conditioning.estimate, torch.cat([bad.conditioning.estimate, good.conditioning.estimate]))
    assert NOTES["float32"] in both.notes
    assert NOTES["float32"] in both[0].notes
    assert NOTES["float32"] not in both[1].notes
    assert [panel.caution for panel in both.panels()] == ["Rounding may decide the order of the top scores.", ""]


def test_figures_and_pages_say_so_only_where_it_is_a_problem():
    bad, good = explain_block(1e-6), explain_block(2.0)
    for shown, expected in ((bad, True), (good, False)):
        assert ("Rounding may decide" in shown.to_html()) is expected
        assert (b"Rounding may decide" in shown.formats[".svg"](shown)) is expected
        assert (b"Rounding in float32 may decide" in shown.formats[".html"](shown)) is expected


def test_json_holds_the_estimate():
    e = explain_block(2.0)
    fields = json.loads(e.formats[".json"](e))
    assert "rounding estimate" in fields["details"]


def test_the_verdict_counts_examples():
    estimate = torch.tensor([0.5, 1e-6], dtype=torch.float64)
    assert str(Conditioning(estimate)) == (
        "Rounding may decide the order of the top scores in 1 of 2 examples (estimated error 5e-01 of the relevance)."
    )
    measured = Conditioning(estimate, estimate, 1 - estimate, torch.tensor([1.0, 1.0]))
    assert measured.verdict.startswith(
        "Rounding does not change the order of the top 5 scores in any of the 2 examples"
    )
