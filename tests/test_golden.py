"""The numbers of the authors' released code, in float64, on the unmodified Hugging Face models (golden/README.md).

`expected_exact` is computed without the authors' 1e-9 in every denominator; our numbers match it to 1e-9. `expected` is
their code unchanged.
"""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import whyformer as why
from whyformer._engine.record import record

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = ("vit/grid4", "vit/grid14", "bert")


@cache
def numbers(folder: str, which: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / folder / f"{which}.safetensors")


@cache
def model(folder: str, baseline_eps: bool = False) -> why.Model:
    opened = why.open(GOLDEN / folder, dtype=torch.float64)
    if baseline_eps:  # see `comes_from_the_other_class`
        for name, module in opened.module.named_modules():
            if (isinstance(module, torch.nn.LayerNorm) and "layer." in f"{name}.") or (
                "layers." in f"{name}." and hasattr(module, "eps")
            ):
                module.eps = 1e-5
    return opened


def inputs_of(folder: str) -> dict[str, torch.Tensor]:
    expected = numbers(folder, "expected_exact")
    if folder == "bert":
        # The authors always add their attention mask; for transformers, an additive mask of zeros is equivalent.
        mask = torch.zeros(2, 1, 1, expected["input_ids"].shape[1], dtype=torch.float64)
        return {"input_ids": expected["input_ids"], "attention_mask": mask}
    return {"pixel_values": expected["pixel_values"].double()}


def targets_of(folder: str) -> list[int]:
    return numbers(folder, "expected_exact")["targets"].tolist()


def comes_from_the_other_class(folder: str, key: str) -> bool:
    """The authors' plain baselines use another ViT class of theirs, whose block norms have eps 1e-5 instead of 1e-6."""
    return folder == "vit/grid14" and (key.startswith("rollout.") or key.startswith("gradcam."))


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest magnitude."""
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


# --- our call for each of their keys -----------------------------------------------------------------------

ATTRIBUTION = {"transformer_attribution": {}, "rollout": {"ablation": "no_gradient"}}
ONE_BLOCK = {"last_layer.grad": "last_block", "second_layer.grad": "block_1"}


def asked(folder: str, key: str, stabiliser: str = "signed") -> tuple[str, dict]:
    """The method and settings that correspond to a key."""
    rules = {"stabiliser": stabiliser}
    parts = key.split(".")
    start = next((int(part.removeprefix("start")) for part in parts if part.startswith("start")), None)
    if folder == "bert":
        bert = {
            "transformer_attribution": ("transformer_attribution", {"preset": "released_bert", "start": start} | rules),
            "partial_lrp": ("partial_lrp", {"own": "zero"} | rules),
            "full_lrp": ("lrp", {"own": "zero"} | rules),
            "raw_attention": ("raw_attention", {"own": "zero"}),
            "rollout": ("rollout", {"preset": "released_bert", "start": start}),
            "gradcam": ("grad_cam", {"form": "bert", "normalise": True}),
            "attcat": ("attcat", {}),
        }
        return bert[parts[0]]
    if parts[0] == "rollout":
        return "rollout", {"preset": "released", "start": start}
    if parts[0] == "gradcam":
        return "grad_cam", {"form": "vit", "normalise": True}
    rules["recipe"] = "chefer" if parts[0] == "paper" else "baseline"
    if parts[1] in ATTRIBUTION:
        return "transformer_attribution", {"start": start} | ATTRIBUTION[parts[1]] | rules
    if "grad" in parts:
        return "transformer_attribution", {"ablation": ONE_BLOCK[f"{parts[1]}.grad"]} | rules
    one_block = {"last_layer": ("partial_lrp", rules), "last_layer_attn": ("raw_attention", {}), "full": ("lrp", rules)}
    return one_block[parts[1]]


SITES = ("attention.block", "gradient.block", "relevance.block", "paper.relevance.block", "baseline.relevance.block")


def keys_of(folder: str, *, sites: bool) -> list[str]:
    listed = [k for k in numbers(folder, "expected_exact") if k.endswith((".0", ".1")) and k not in ("targets",)]
    return [k for k in listed if k.startswith(SITES) == sites]


MAPS = [(folder, key) for folder in FOLDERS for key in keys_of(folder, sites=False)]
BLOCKS = [(folder, key) for folder in FOLDERS for key in keys_of(folder, sites=True)]


@cache
def compute(folder: str, method: str, settings: str, baseline_eps: bool) -> torch.Tensor:
    e = why.explain(
        model(folder, baseline_eps), inputs_of(folder), method, target=targets_of(folder), **json.loads(settings)
    )
    return e.scores if e.pixels is None else e.pixels


def found_for(folder: str, key: str, stabiliser: str = "signed") -> torch.Tensor:
    method, settings = asked(folder, key, stabiliser)
    scores = compute(folder, method, json.dumps(settings, sort_keys=True), comes_from_the_other_class(folder, key))
    return scores[int(key[-1])]


def is_nan(folder: str, key: str) -> bool:
    return (folder, key) in (("bert", "gradcam.0"), ("vit/grid14", "gradcam.1"))


@cache
def captured(folder: str, stabiliser: str = "signed") -> tuple[why.Capture, Any, Any]:
    recipes = [why.make_recipe("chefer", stabiliser), why.make_recipe("baseline", stabiliser)]
    keep = {"attention", "attention_grad", "attention_relevance"}
    opened = model(folder)
    capture = record(opened, opened.encode(inputs_of(folder)), target=targets_of(folder), keep=keep, recipes=recipes)
    return capture, *recipes


def block_for(folder: str, key: str, stabiliser: str = "signed") -> torch.Tensor:
    capture, chefer, baseline = captured(folder, stabiliser)
    *_, what, block, example = key.split(".")
    rules = baseline if key.startswith("baseline") else chefer
    site = {"attention": "attention", "gradient": "attention_grad", "relevance": "attention_relevance"}[what]
    return capture.get(site, rules)[int(block.removeprefix("block"))][int(example)]


# --- the tests -------------------------------------------------------------------------------------------------------


def test_every_key_is_asked_for():
    """Two examples of every map and block matrix, and nothing else but inputs, targets and logits."""
    for folder in FOLDERS:
        rest = set(numbers(folder, "expected_exact")) - {k for f, k in MAPS + BLOCKS if f == folder}
        assert rest <= {"pixel_values", "input_ids", "logits", "targets"}
    assert len(MAPS) == 88
    assert len(BLOCKS) == 48


@pytest.mark.parametrize("folder", FOLDERS)
def test_logits(folder):
    opened = model(folder)
    capture = record(opened, opened.encode(inputs_of(folder)), keep={"attention"})
    assert difference(capture.logits, numbers(folder, "expected_exact")["logits"]) < 1e-12


@pytest.mark.parametrize(("folder", "key"), BLOCKS)
def test_a_block_matrix_is_exact(folder, key):
    assert difference(block_for(folder, key), numbers(folder, "expected_exact")[key]) < 1e-9


@pytest.mark.parametrize(("folder", "key"), [m for m in MAPS if not is_nan(*m)])
def test_a_map_is_exact(folder, key):
    assert difference(found_for(folder, key), numbers(folder, "expected_exact")[key]) < 1e-9


@pytest.mark.parametrize(("folder", "key"), [m for m in MAPS if not is_nan(*m)])
def test_a_map_is_near_the_released_one(folder, key):
    assert difference(found_for(folder, key), numbers(folder, "expected")[key]) < 1e-3


@pytest.mark.parametrize(("folder", "key"), [m for m in MAPS if is_nan(*m)])
def test_a_map_that_is_nan_in_the_released_code_is_zero(folder, key):
    assert numbers(folder, "expected")[key].isnan().any()
    assert not found_for(folder, key).any()


def depends_on_the_stabiliser(folder: str, key: str) -> bool:
    exact, released = (numbers(folder, which)[key] for which in ("expected_exact", "expected"))
    return difference(exact, released) > 1e-12


RELEASED = [m for m in BLOCKS + MAPS if not is_nan(*m) and depends_on_the_stabiliser(*m)]


@pytest.mark.parametrize(("folder", "key"), RELEASED)
def test_the_released_stabiliser_is_nearer_to_the_released_numbers(folder, key):
    find = partial(block_for if (folder, key) in BLOCKS else found_for, folder, key, "released")
    exact, released = (difference(find(), numbers(folder, which)[key]) for which in ("expected_exact", "expected"))
    assert released < exact
