"""`preset="released"` of decompx, globenc, bi_attribution and pa_lrp: the numbers of the authors' code, in float64.

Each folder of golden/authors holds a tiny random model, two inputs and what the authors' released code computes for
them: mohsenfayyaz/DecompX b6bddf0, mohsenfayyaz/GlobEnc a26b38b, jiaminchen-1031/transformerinterp a76854a and
YardenBakish/PE-AWARE-LRP 51eb418.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import whyformer as why
from whyformer import rules
from whyformer._engine.record import record

AUTHORS = Path(__file__).parent.parent / "golden" / "authors"
FOLDERS = ("decompx", "globenc", "bi_attribution_bert", "pa_lrp")


@cache
def numbers(folder: str, which: str) -> dict[str, torch.Tensor]:
    return load_file(AUTHORS / folder / f"{which}.safetensors")


@cache
def model(folder: str) -> why.Model:
    return why.open(AUTHORS / folder, dtype=torch.float64)


def explain(folder: str, method: str, target: list[int] | None = None, **settings) -> torch.Tensor:
    given = numbers(folder, "inputs")
    inputs = {name: given[name] for name in ("input_ids", "attention_mask")}
    target = given["targets"].tolist() if target is None else target
    return why.explain(model(folder), inputs, method, target=target, **settings).scores


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest magnitude."""
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_models_are_the_same(folder):
    """Llama computes its norms and its softmax in float32."""
    given, wanted = numbers(folder, "inputs"), numbers(folder, "expected")["logits"]
    with torch.no_grad():
        logits = model(folder).module(given["input_ids"], attention_mask=given["attention_mask"]).logits
    assert difference(logits if logits.dim() == 2 else logits[:, -1], wanted) < (1e-5 if folder == "pa_lrp" else 1e-12)


# --- DecompX ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", range(3))
def test_decompx(label):
    """The authors add 1e-12 to the sum of the weights by which a bias is shared."""
    wanted = numbers("decompx", "expected")["classifier"][:, :, label]
    assert difference(explain("decompx", "decompx", [label, label], preset="released"), wanted) < 1e-9


def test_decompx_in_the_papers_form_is_another():
    wanted = numbers("decompx", "expected")["classifier"][:, :, 0]
    assert difference(explain("decompx", "decompx", [0, 0]), wanted) > 0.01


# --- GlobEnc ---------------------------------------------------------------------------------------------------------


def test_globenc():
    wanted = numbers("globenc", "expected")["globenc"][:, 0]
    assert difference(explain("globenc", "globenc", preset="released"), wanted) < 1e-12


@pytest.mark.parametrize("layer", range(3))
def test_globenc_of_one_layer(layer):
    wanted = numbers("globenc", "expected")["per_layer"][:, layer, 0]
    assert difference(explain("globenc", "globenc", preset="released", layers=[layer]), wanted) < 1e-12


def test_globenc_scaled_to_shares_is_the_default():
    """The authors' matrices, each row divided by its sum."""
    layers = numbers("globenc", "expected")["per_layer"]
    first, second, third = (layers / layers.sum(-1, keepdim=True)).unbind(1)
    assert difference(explain("globenc", "globenc"), (third @ second @ first)[:, 0]) < 1e-12


# --- bi-attribution --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("perception", ["head", "token"])
def test_bi_attribution_on_bert(perception):
    wanted = numbers("bi_attribution_bert", "expected")[perception]
    found = explain("bi_attribution_bert", "bi_attribution", preset="released", perception=perception)
    assert difference(found, wanted) < 1e-12


# --- PA-LRP ----------------------------------------------------------------------------------------------------------


def kept_by_stabiliser(z: torch.Tensor, epsilon: float) -> torch.Tensor:
    return z / (z + epsilon)


def stabilised_linear(call, slope):
    return (call.apply_transpose(slope * kept_by_stabiliser(call.result, 1e-8), call.weight),)


def stabilised_product(call, slope):
    if call.gate is not None and call.gate.is_attention:
        slope = slope * kept_by_stabiliser(call.result, 1e-6)
    return rules.halve_product(call, slope)


@cache
def authors_stabilisers():
    """PA-LRP that divides by z + 1e-6 in attention times values and by z + 1e-8 in linear layers, as the authors do."""
    return rules.RECIPES["pa_lrp"].replace("pa_lrp_stabilised", linear=stabilised_linear, product=stabilised_product)


@pytest.mark.parametrize(("part", "tolerance"), [("both", 1e-5), ("token", 1e-5), ("position", 1e-4)])
def test_pa_lrp(part, tolerance):
    """Their largest stabiliser, 1e-6, moves positions by 7e-5."""
    found = explain("pa_lrp", "pa_lrp", preset="released", part=part)
    assert difference(found, numbers("pa_lrp", "expected")[part]) < tolerance


@pytest.mark.parametrize("part", ["both", "token", "position"])
def test_pa_lrp_with_the_authors_stabilisers(part):
    """What is left comes from their softmax in float32."""
    found = explain("pa_lrp", "pa_lrp", preset="released", part=part, recipe=authors_stabilisers())
    assert difference(found, numbers("pa_lrp", "expected")[part]) < 1e-6


def test_pa_lrp_in_every_layer():
    """Six places, cosines and sines of three layers, each with two uses: queries and keys."""
    given, wanted = numbers("pa_lrp", "inputs"), numbers("pa_lrp", "expected")["per_layer_position"]
    opened = model("pa_lrp")
    encoded = opened.encode({name: given[name] for name in ("input_ids", "attention_mask")})
    keep, recipe = {"token_relevance", "position_relevance"}, authors_stabilisers()
    capture = record(opened, encoded, target=given["targets"].tolist(), keep=keep, recipes=[recipe])
    places = capture.get("position_relevance", recipe)
    assert [place.shape for place in places] == [(2, 2, 9)] * 6
    found = torch.stack([place.sum(0) for place in places], dim=1)
    assert difference(found, wanted.flatten(1, 2)) < 1e-6


def test_pa_lrp_with_separate_uses_is_another():
    """Queries and keys sometimes disagree, so magnitudes of each are never smaller, and somewhere larger."""
    together = explain("pa_lrp", "pa_lrp", part="position")
    separate = explain("pa_lrp", "pa_lrp", part="position", preset="separate")
    assert (separate > together - 1e-12).all()
    assert difference(separate, together) > 0.01
