"""The contract that every registered metric has to meet.

On tiny image and text models in float64: one float64 number per example, the same alone as in a batch, reproducible to
the bit, the model and the inputs unchanged; and a docstring that gives the direction and the control.
"""

import copy
import inspect
import json
import math
import random
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from combined_values import combine_values
from conftest import animal
from tiny_text import bert, wordpiece

import whyformer as why
import whyformer.metrics as metrics
from whyformer._engine.record import record
from whyformer._explain.explain import explain
from whyformer.errors import InputError, WhyformerError
from whyformer.metrics._registry import METRICS, Rationale, choose_metric, measure
from whyformer.metrics._rerun import Rerun
from whyformer.results.joining import join_explanations

every_metric = pytest.mark.parametrize("name", sorted(METRICS))
every_metric_that_runs = pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, one in sorted(METRICS.items()) for kind in ("images", "texts") if one.only in (None, kind)],
)
QUICK = {
    "road": {"fractions": (0.5,)},
    "infidelity": {"samples": 8},
    "faithfulness_correlation": {"samples": 8},
    "lds": {"samples": 8},
    "deletion": {"fractions": (0, 0.5, 1)},
    "insertion": {"fractions": (0, 0.5, 1)},
    "parameter_randomisation": {"stages": 2},
    "max_sensitivity": {"samples": 2},
    "consistency": {"samples": 2},
}
TEXTS = ["the film is not good at all !", "a bad film", "the film is good , not bad"]
MARKS = [[0, 0, 0, 1, 1, 0, 0, 0], [0, 1, 0], [0, 0, 0, 1, 0, 1, 1]]


@cache
def held(kind):
    """A model and a batch of three, one of them shorter."""
    if kind == "texts":
        tokenizer = wordpiece()
        return why.open(bert(), tokenizer=tokenizer), TEXTS
    from transformers import ViTImageProcessor

    it = animal("vit")
    processor = ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return why.open(it.module, processor=processor), it.inputs


TARGETS = [0, 1, 2]


@cache
def given(kind, start=0, end=3):
    """All inputs a metric can ask for, for a slice of the batch."""
    model, inputs = held(kind)
    rows = slice(start, end)
    some = inputs[rows] if isinstance(inputs, list) else {key: value[rows] for key, value in inputs.items()}
    encoded = model.encode(some)
    targets = TARGETS[rows]
    e = explain(model, encoded, "gradient_x_input", target=targets)
    mask = torch.zeros(16, 16, dtype=torch.long)
    mask[4:12, 2:10] = 1
    mask[0] = -1
    return {
        "explanation": e,
        "probe": record(model, encoded, target=targets, keep={"probe"})["probe"],
        "label": torch.tensor([0, 1, -1])[rows],
        "mask": [mask] * len(e),
        "rationale": [Rationale(marks) for marks in MARKS[rows]],
        "rerun": Rerun(model, encoded, e),
        "others": {m: explain(model, encoded, m, target=targets) for m in ("rollout", "chance")},
    }


def settings_of(name, kind):
    """Quick settings; the twin is the model itself with its weights halved."""
    if name != "label_randomised_twin":
        return QUICK.get(name, {})
    module = copy.deepcopy(held(kind)[0].module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
    return {"twin": module}


def measured(name, kind, start=0, end=3, **more):
    return measure(choose_metric(name, settings_of(name, kind) | more), given(kind, start, end))


@cache
def once(name, kind):
    return measured(name, kind)


def same(a, b, tolerance):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance, equal_nan=True)


# --- numbers ----------------------------------------------------------------------------------------------------------


@every_metric_that_runs
def test_gives_one_number_an_example(name, kind):
    found = once(name, kind)
    assert found.value.shape == (3,) and found.value.dtype == torch.float64
    assert not found.value.isinf().any()
    if name not in ("positive_perturbation", "negative_perturbation", "grid_pointing_game"):
        assert found.value.isfinite().all()
    if found.curve is not None:
        assert found.curve.shape[0] == 3 and found.curve.dtype == torch.float64
        assert len(found.at) in (0, found.curve.shape[1])
    if METRICS[name].combine is not None:
        assert found.parts is not None and len(found.parts) == 3
        assert math.isfinite(combine_values(METRICS[name], found.value, found.parts))
    if METRICS[name].needs_truth == "label":
        assert found.value.isnan().tolist() == [False, False, True]  # the unknown label


@every_metric_that_runs
def test_measures_each_example_as_if_it_were_alone(name, kind):
    if METRICS[name].across_examples:
        pytest.skip("uses the other examples of its batch, as across_examples declares")
    for i in range(3):
        same(measured(name, kind, i, i + 1).value[0], once(name, kind).value[i], 1e-9)


@every_metric_that_runs
def test_says_the_same_twice(name, kind):
    first, second = once(name, kind), measured(name, kind)
    assert torch.equal(first.value.nan_to_num(), second.value.nan_to_num())
    if first.curve is not None:
        assert torch.equal(first.curve.nan_to_num(), second.curve.nan_to_num())


@every_metric_that_runs
def test_leaves_the_model_and_what_it_was_given_alone(name, kind):
    model, _ = held(kind)
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    things = given(kind)
    scores = things["explanation"].scores.clone()
    inputs = {key: value.clone() for key, value in things["rerun"].encoded.inputs.items()}
    drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    measure(choose_metric(name, settings_of(name, kind)), things)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()) == drawn
    assert all(torch.equal(model.module.state_dict()[key], value) for key, value in before.items())
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert torch.equal(things["explanation"].scores, scores)
    assert all(torch.equal(things["rerun"].encoded.inputs[key], value) for key, value in inputs.items())


@pytest.mark.parametrize("name", [name for name, one in sorted(METRICS.items()) if one.only])
def test_refuses_what_it_is_not_for(name):
    one = METRICS[name]
    with pytest.raises(InputError):
        measured(name, "texts" if one.only == "images" else "images")


@every_metric_that_runs
def test_the_worst_map_is_still_a_number_or_undefined(name, kind):
    """All zero, constant, and a single value among zeros: no exception, no infinity."""
    things = given(kind)
    e = things["explanation"]
    spike = torch.zeros_like(e.scores)
    spike[:, 2] = 1e300
    for scores in (torch.zeros_like(e.scores), torch.ones_like(e.scores), spike):
        flat = replace(e, scores=scores, pixels=None)

        def fake(*args, flat=flat, of=None, **more):
            return flat if of is None else join_explanations([flat[int(i)] for i in of])

        fake.inputs, fake.encoded, fake.model = things["rerun"].inputs, things["rerun"].encoded, things["rerun"].model
        found = measure(choose_metric(name, settings_of(name, kind)), {**things, "explanation": flat, "rerun": fake})
        assert not found.value.isinf().any()


# --- words ------------------------------------------------------------------------------------------------------------


@every_metric
def test_says_what_it_means_where_it_is_from_and_what_its_control_is(name):
    one = METRICS[name]
    documentation = inspect.getdoc(one.compute)
    assert one.summary.endswith(".") and len(one.summary) <= 120
    assert "Control" in documentation
    if one.kind in ("faithfulness", "stability", "discrimination", "sanity"):
        assert f"{one.better.title()} is better" in documentation
    assert re.search(r"(19|20)\d\d", one.paper), f"name the year in paper= of {one.name}"
    page = inspect.getdoc(inspect.getmodule(one.compute))
    assert "$$" in page and ("arXiv" in page or "NeurIPS" in page)


@every_metric
def test_is_exported_and_its_settings_can_be_written_down(name):
    one = METRICS[name]
    assert name in metrics.__all__ and getattr(metrics, name) is one.compute
    assert metrics.__all__ == sorted(metrics.__all__)
    json.dumps({"settings": dict(one.settings), "presets": {k: dict(v) for k, v in one.presets.items()}})


@every_metric
def test_a_setting_that_is_not_there_is_an_error_and_not_ignored(name):
    with pytest.raises(WhyformerError, match="has no setting 'nonsense'"):
        choose_metric(name, {"nonsense": 1})


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name, one in sorted(METRICS.items()) for preset in one.presets]
)
def test_every_preset_runs(name, preset):
    found = measured(name, METRICS[name].only or "texts", preset=preset)
    assert found.value.shape == (3,)
