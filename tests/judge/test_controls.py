"""Controls: maps that know nothing of an input, the same in every batch and dtype; always rows of a judgement."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny_text
import torch
from conftest import IMAGE_FAMILIES, animal
from judge.bench_parts import BRIGHTNESS, FIRST_SCORE, SHARE, pictures, tiny
from torch.testing import assert_close

import whyformer as why
from whyformer._explain.explain import explain
from whyformer._explain.method_call import label_methods
from whyformer._judge import judge
from whyformer._judge.bench import Bench, measure_method_agreement
from whyformer._judge.controls import (
    CONTROL_NAMES,
    IMAGE_CONTROLS,
    TEXT_CONTROLS,
    add_controls,
    centre_blob,
    first_words,
    is_control,
    last_words,
    random_pixels,
)
from whyformer._model.loading import open as opened
from whyformer._runs.choice import choose_judged_methods, choose_judged_metrics
from whyformer._runs.preparation import find_kind_of_input
from whyformer.data import Data, Example
from whyformer.errors import MethodError
from whyformer.methods._registry import METHODS

TEXTS = ["the film is not good", "a good film !", "not bad"]


def pixels(batch, height, width):
    return torch.zeros(batch, height, width, 3)


# --- by hand and written slowly ---------------------------------------------------------------------------------------


def test_the_blob_by_hand():
    """Pixels of a 2 x 2 image are half a side from the centre: exp(-2 (1/4 + 1/4)) = 1 / e everywhere."""
    assert_close(centre_blob(pixels(1, 2, 2)), torch.full((1, 2, 2), 1 / math.e, dtype=torch.float64))
    assert centre_blob(pixels(1, 1, 1)).item() == 1


def test_the_blob_is_the_formula_and_symmetric():
    blob = centre_blob(pixels(2, 5, 8))
    for y in range(5):
        for x in range(8):
            down, right = (2 * y + 1) / 5 - 1, (2 * x + 1) / 8 - 1
            assert blob[0, y, x].item() == pytest.approx(math.exp(-2 * (down**2 + right**2)), rel=1e-12)
    assert torch.equal(blob, blob.flip(1)) and torch.equal(blob, blob.flip(2)) and torch.equal(blob[0], blob[1])
    square = centre_blob(pixels(1, 7, 7))[0]
    assert torch.equal(square, square.T) and square.argmax() == 24


def test_words_by_hand():
    """[CLS] a b c [SEP] and padding, on the left or the right."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]]).bool()
    special = torch.tensor([[1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1]]).bool()
    assert first_words(mask, special)[0].tolist() == pytest.approx([0, 1, 2 / 3, 1 / 3, 0, 0])
    assert last_words(mask, special)[1].tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1, 0])
    assert torch.equal(first_words(mask, special)[0, 1:4], first_words(mask, special)[1, 2:5])


def test_a_text_without_words_has_no_score():
    none, all_ = torch.zeros(1, 3).bool(), torch.ones(1, 3).bool()
    assert not first_words(none, none).any() and not last_words(all_, all_).any()


def test_dust_is_uniform_and_the_same_for_every_image():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    dust = random_pixels(pixels(3, 120, 100))
    assert torch.equal(dust[0], dust[2]) and torch.equal(torch.get_rng_state(), before)
    assert_close(dust[0].mean().item(), 0.5, atol=0.01, rtol=0)
    assert_close(dust[0].var().item(), 1 / 12, atol=0.005, rtol=0)
    assert not torch.equal(random_pixels(pixels(1, 120, 100), seed=1)[0], dust[0])
    right, below = (np.corrcoef(a.flatten(), b.flatten())[0, 1] for a, b in
                    ((dust[0, :, 1:], dust[0, :, :-1]), (dust[0, 1:], dust[0, :-1])))  # fmt: skip
    assert abs(right) < 0.04 and abs(below) < 0.04  # finer than any patch


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control", IMAGE_CONTROLS, ids=lambda control: control.name)
def test_images_get_the_same_scores_alone_in_a_batch_and_in_any_dtype(control):
    inputs = animal("vit").inputs["pixel_values"]
    together = explain(tiny(), inputs, control)
    assert together.pixels.shape == (3, 16, 16)
    for i in range(3):
        assert torch.equal(explain(tiny(), inputs[i : i + 1], control).pixels, together.pixels[i : i + 1])
    single = replace(tiny(), module=copy.deepcopy(animal("vit").module).float())
    assert torch.equal(explain(single, inputs.float(), control).pixels, together.pixels)
    assert torch.equal(explain(tiny(), inputs, control, target=1).pixels, together.pixels)


@pytest.mark.parametrize("control", TEXT_CONTROLS, ids=lambda control: control.name)
def test_texts_get_the_same_scores_alone_in_a_batch_and_in_any_dtype(control):
    module, tokenizer = tiny_text.bert(), tiny_text.wordpiece()
    together = explain(opened(module, tokenizer=tokenizer), TEXTS, control)
    for i, text in enumerate(TEXTS):
        alone = explain(opened(module, tokenizer=tokenizer), text, control).scores[0]
        assert torch.equal(alone, together.scores[i, : len(alone)]) and not together.scores[i, len(alone) :].any()
    single = explain(opened(copy.deepcopy(tiny_text.bert()).float(), tokenizer=tokenizer), TEXTS, control)
    assert torch.equal(single.scores, together.scores)


def test_every_family_of_models_takes_its_controls(family):
    model = why.open(family.module)
    kind = find_kind_of_input(model, Data("x", (Example("a", {k: v[0] for k, v in family.inputs.items()}),)))
    assert kind == ("images" if family.name in IMAGE_FAMILIES else "texts")
    for control in IMAGE_CONTROLS if kind == "images" else TEXT_CONTROLS:
        assert explain(model, family.inputs, control).scores.isfinite().all()


def test_every_kind_of_metric_takes_controls():
    """Those that rerun the method need controls, though they are not registered."""
    data = pictures(4, mask=np.eye(16, dtype=np.int8))
    metrics = [
        "consistency",
        "class_discrimination",
        "repeatability",
        "parameter_randomisation",
        "mean_iou",
        "deletion",
    ]
    judgement = judge(tiny(), data, ["rollout"], metrics)
    assert {line.method for line in judgement.table.lines} == {"rollout", "chance", "centre_blob", "random_pixels"}
    assert judgement.failed == 0


# --- where they are ---------------------------------------------------------------------------------------------------


def test_controls_are_no_methods():
    assert not CONTROL_NAMES & METHODS.keys()
    for chosen in ("all", "quick"):
        assert not CONTROL_NAMES & choose_judged_methods(chosen).keys()
    with pytest.raises(MethodError, match="No method 'centre_blob'"):
        explain(tiny(), animal("vit").inputs, "centre_blob")


def test_which_rows_are_controls():
    assert all(is_control(label) for label in ("chance", "chance(seed=3)", "centre_blob", "first_words"))
    assert not any(is_control(label) for label in ("rollout", "chances", "blob"))


def test_a_method_of_the_name_of_a_control_takes_its_place():
    renamed = replace(BRIGHTNESS, name="centre_blob")
    calls = add_controls(label_methods([renamed, "chance"]), "images")
    assert list(calls) == ["centre_blob", "chance", "random_pixels"] and calls["centre_blob"].method is renamed


def test_what_the_examples_are():
    text = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    assert find_kind_of_input(text, Data("x", (Example("a", "film"),))) == "texts"
    assert find_kind_of_input(why.open("demo/untrained-vit"), pictures(1)) == "images"
    bad = Example("bad", {"pixel_values": torch.zeros(3, 8, 8)})
    assert find_kind_of_input(tiny(), Data("x", (bad, *pictures(1).examples))) == "images"
    assert find_kind_of_input(tiny(), Data("x", (bad, bad))) is None
    assert add_controls(label_methods(["rollout"]), None).keys() == {"rollout"}


def test_agreement_leaves_controls_out():
    model, data = tiny(), pictures(3)
    metrics = choose_judged_metrics(["agreement"], model, data)
    without = Bench(model, data, label_methods([BRIGHTNESS, "rollout", "chance"]), metrics)
    with_controls = replace(without, methods=add_controls(without.methods, "images"))
    values = {(row.example, row.method): (row.value, row.agreement) for row in without.make_shard(range(3)).rows}
    found = {(row.example, row.method): (row.value, row.agreement) for row in with_controls.make_shard(range(3)).rows}
    assert {key: found[key] for key in values} == values and len(found) == 3 * 5
    explanation = explain(model, data.examples[0].content, "rollout")
    assert math.isnan(measure_method_agreement({"rollout": explanation, "centre_blob": explanation}, 1)[0])


# --- judged -----------------------------------------------------------------------------------------------------------


def scenes(count, place):
    """Noise with a bright square of 4 x 4 pixels, which is the mask; place: its patch, by the number of the scene."""
    examples = []
    for i in range(count):
        image = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        mask = np.zeros((16, 16), dtype=np.int8)
        row, column = place(i)
        mask[row : row + 4, column : column + 4] = 1
        image += 4 * torch.from_numpy(mask)
        examples.append(Example(f"scene {i}", {"pixel_values": image}, label=i % 4, mask=mask))
    return Data("scenes", tuple(examples))


def test_the_centre_blob_wins_where_every_object_is_in_the_centre():
    """The best method here is no better than the blob, so nothing is recommended, and the verdict says why."""
    judgement = judge(tiny(), scenes(30, lambda i: (6, 6)), ["rollout", "grad_cam", "saliency"], ["mass_in_mask"])
    assert judgement.table.best_control("mass_in_mask").method == "centre_blob"
    assert judgement.table.best("mass_in_mask").method == "centre_blob"
    assert "there is nothing to recommend" in judgement.verdict and "On this data use" not in judgement.verdict
    assert "centre_blob (the same blob in the centre of every image), which itself is" in judgement.verdict
    assert "it rewards covering the object whatever the class" in judgement.verdict


def test_a_method_that_finds_objects_anywhere_beats_the_blob_and_is_said_to_ignore_the_class():
    data = scenes(30, lambda i: (4 * (i % 4), 4 * (i // 4 % 4)))
    judgement = judge(tiny(), data, [BRIGHTNESS, "rollout"], ["rank_in_mask"])
    assert judgement.verdict.startswith("On this data use brightness")
    assert "although it ignores the class" in judgement.verdict.split(": ")[0]


def test_resumed_runs_have_the_rows_of_the_controls(tmp_path):
    whole = judge(
        tiny(), pictures(5), ["rollout"], [FIRST_SCORE, SHARE], out=tmp_path / "a", batch_size=2, report=False
    )
    assert list(whole.plan.methods) == ["rollout", "chance", "centre_blob", "random_pixels"]
    assert [row.method for row in whole.rows.all[0, :, 0]] == list(whole.plan.methods)
    before = (tmp_path / "a" / "table.csv").read_bytes()
    (tmp_path / "a" / "rows" / "000001.parquet").unlink()
    resumed = judge(
        tiny(), pictures(5), ["rollout"], [FIRST_SCORE, SHARE], out=tmp_path / "a", batch_size=2, report=False
    )
    np.testing.assert_array_equal(resumed.rows.value, whole.rows.value)
    assert (tmp_path / "a" / "table.csv").read_bytes() == before
