"""The bench: bad examples, failing methods and missing truth become rows with a reason; methods share runs."""

import math
from functools import partial

import numpy as np
import pytest
import tiny_text
import torch
import transformers
from judge.bench_parts import BRIGHTNESS, FIRST_SCORE, PICKY, SHARE, TOUCHY, brightness, pictures, tiny
from PIL import Image
from tiny_tokenizers import SlowPieces

import whyformer as why
from whyformer._explain import sharing
from whyformer._explain.explain import explain
from whyformer._explain.method_call import label_methods
from whyformer._judge.bench import Bench, measure_method_agreement
from whyformer._model.loading import open as opened
from whyformer._runs.choice import choose_judged_metrics
from whyformer._runs.preparation import cut_to_fit, find_class_index, prepare_example, prepare_rationale
from whyformer.data import Data, Example
from whyformer.errors import ResourceError
from whyformer.methods import gradient_x_input, lrp
from whyformer.metrics._registry import METRICS


def a_bench(data, methods=(BRIGHTNESS,), metrics=(FIRST_SCORE,), model=None, target="predicted"):
    model = model or tiny()
    return Bench(model, data, label_methods(methods), choose_judged_metrics(list(metrics), model, data), target)


def rows_of(bench, **wanted):
    shard = bench.make_shard(range(len(bench.data)))
    return [row for row in shard.rows if all(getattr(row, name) == value for name, value in wanted.items())]


def test_one_row_for_each_example_method_and_metric():
    data = pictures(3)
    rows = rows_of(a_bench(data, (BRIGHTNESS, "chance"), (FIRST_SCORE, TOUCHY)))
    assert len(rows) == 3 * 2 * 2 == len({(row.example, row.method, row.metric) for row in rows})
    for row in rows:
        if row.method == "brightness" and row.metric == "first_score":
            patch = data.examples[row.example].content["pixel_values"][:, :4, :4].sum()
            assert row.value == pytest.approx(float(patch), abs=1e-9)
            assert (row.state, row.forward, row.backward, row.label) == ("measured", 1.0, 0.0, row.example)


def test_all_methods_of_one_pass_share_one_run(monkeypatch):
    calls = []
    real = sharing.run_request
    monkeypatch.setattr(sharing, "run_request", lambda request: (calls.append(request.keep), real(request))[1])
    rows_of(a_bench(pictures(4), ("rollout", "grad_cam", "transformer_attribution", "gradient_x_input", "chance")))
    assert len(calls) == 1


def test_sites_that_only_a_setting_needs_are_captured():
    method = partial(gradient_x_input, at=1)
    data = pictures(3)
    rows = rows_of(a_bench(data, (method, "rollout")), method="gradient_x_input(at=1)")
    alone = explain(tiny(), [one.content for one in data.examples], method)
    assert [(row.state, row.reason) for row in rows] == [("measured", "")] * 3
    assert [row.value for row in rows] == pytest.approx(alone.scores[:, 0].tolist(), abs=1e-9)


@pytest.mark.parametrize("metric", ["consistency", "max_sensitivity"])
def test_metrics_that_rerun_the_method_on_image_files(tmp_path, metric):
    for i, colour in enumerate(("red", "green", "blue")):
        image = Image.new("RGB", (40, 40), colour)
        image.paste("white", (10 * i, 10, 10 * i + 10, 30))
        image.save(tmp_path / f"{i}.png")
    metrics = (partial(METRICS[metric].compute, samples=2),)
    rows = rows_of(a_bench(why.data.read(tmp_path), ("rollout",), metrics, why.open("demo/untrained-vit")))
    assert [(row.state, row.reason) for row in rows] == [("measured", "")] * 3


def test_an_example_gets_the_same_rows_in_any_batch():
    methods, metrics = ("rollout", "transformer_attribution", "chance"), ("positive_perturbation",)
    model = tiny()
    bench = a_bench(pictures(5), methods, [FIRST_SCORE, "comprehensiveness"], model)
    together = {(r.example, r.method, r.metric): r.value for r in bench.make_shard(range(5)).rows}
    alone = {(r.example, r.method, r.metric): r.value for i in range(5) for r in bench.make_shard([i]).rows}
    assert together.keys() == alone.keys() and metrics
    assert all(together[key] == pytest.approx(alone[key], abs=1e-9) for key in alone)


def test_a_method_that_fails_on_some_examples_keeps_the_others():
    data = pictures(8)
    bright = {i for i, one in enumerate(data.examples) if one.content["pixel_values"].sum() > 10}
    assert 0 < len(bright) < 8
    rows = rows_of(a_bench(data, (PICKY, "chance")), method="picky")
    assert {row.example for row in rows if row.state == "failed"} == bright
    assert {row.reason for row in rows if row.state == "failed"} == {"an image is too bright for me"}
    assert all(math.isfinite(row.value) for row in rows if row.example not in bright)
    assert {row.state for row in rows_of(a_bench(data, (PICKY, "chance")), method="chance")} == {"measured"}


def test_a_metric_that_fails_or_is_undefined_on_some_examples():
    rows = rows_of(a_bench(pictures(8), metrics=(TOUCHY,)))
    assert [row.state for row in rows] == ["measured", "undefined", "measured", "failed"] * 2
    assert rows[3].reason == "RuntimeError: no threes please"
    assert rows[2].value == 2.0 and math.isnan(rows[3].value)


def test_examples_that_the_model_rejects():
    good = pictures(4).examples
    bad = Example("bad", {"pixel_values": torch.full((3, 16, 16), float("nan"))}, 0)
    small = Example("small", {"pixel_values": torch.zeros(3, 8, 8)}, 0)
    data = Data("mixed", (good[0], bad, good[1], small))
    rows = rows_of(a_bench(data))
    assert [row.state for row in rows] == ["measured", "failed", "measured", "failed"]
    assert "NaN" in rows[1].reason and "8 x 8" in rows[3].reason
    assert rows[2].value == rows_of(a_bench(pictures(2)))[1].value


def test_data_in_which_every_example_is_rejected():
    bad = Example("bad", {"pixel_values": torch.full((3, 16, 16), float("nan"))}, 0)
    assert [row.state for row in rows_of(a_bench(Data("bad", (bad, bad))))] == ["failed", "failed"]


def test_running_out_of_memory_stops_the_run():
    def hungry(input, mask):
        raise MemoryError

    from judge.bench_parts import FACTS

    from whyformer.methods._registry import describe_method

    with pytest.raises(ResourceError, match="Out of memory"):
        rows_of(a_bench(pictures(2), (describe_method(hungry, **FACTS),)))


def test_a_method_that_does_not_work_on_the_model_fails_alone():
    """One method needs a site that cannot be captured: the others still work."""

    def greedy(query, mask):
        raise ValueError("never")

    from judge.bench_parts import FACTS

    from whyformer.methods._registry import describe_method

    rows = rows_of(a_bench(pictures(2), (describe_method(greedy, **FACTS), BRIGHTNESS)))
    assert {(row.method, row.state) for row in rows} == {("greedy", "failed"), ("brightness", "measured")}


# --- truth ------------------------------------------------------------------------------------------------------------


def test_labels_by_number_and_by_name():
    missing = {}
    model = tiny()
    for label, index in ((2, 2), ("TWO", 1), ("three_four", 2), (None, -1), (9, -1), ("six", -1)):
        assert find_class_index(model, Example("x", None, label), missing) == index
    assert "none of the model's classes" in missing["label"]


def test_missing_labels_and_masks_are_counted_as_missing():
    mask = np.zeros((16, 16), dtype=np.int8)
    mask[:4] = 1
    data = pictures(1, mask=mask).examples
    data += (Example("bare", data[0].content), Example("wrong size", data[0].content, mask=mask[:8]))
    data += (Example("all object", data[0].content, mask=mask * 0 + 1),)
    rows = rows_of(a_bench(Data("some", data), metrics=(SHARE, TOUCHY)))
    masks = [row for row in rows if row.metric == "share"]
    assert [row.state for row in masks] == ["measured", "missing", "missing", "missing"]
    assert [row.reason for row in masks[1:]] == [
        "there is no mask",
        "The mask is 16 x 8 pixels, its image 16 x 16.",
        "the mask has no background",
    ]
    assert masks[0].value == 0.25 and masks[0].parts == (64.0, 256.0) and masks[0].curve == (64.0,) * 3
    assert masks[1].parts == () and math.isnan(masks[1].value)
    labels = [row for row in rows if row.metric == "touchy"]
    assert [row.state for row in labels] == ["measured", "missing", "missing", "missing"]


@pytest.mark.parametrize(("target", "explained"), [("label", [0, 1, None]), (3, [3, 3, 3]), ("Three-Four", [2, 2, 2])])
def test_the_class_that_is_explained(target, explained):
    data = (*pictures(2).examples, Example("bare", pictures(1).examples[0].content))
    rows = rows_of(a_bench(Data("three", data), target=target))
    assert [row.target for row in rows] == [rows[2].predicted if t is None else t for t in explained]


def test_a_long_text_is_cut_to_the_maximum_length():
    model = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    long = "the film is not good " * 20
    short = cut_to_fit(model, long)
    assert len(model.encode([short]).words[0]) == model.max_length and long.startswith(short)
    assert cut_to_fit(model, "the film") == "the film"
    slow = opened(tiny_text.bert(), tokenizer=SlowPieces())  # without offsets, and with tokens that cannot be placed
    assert len(slow.encode([cut_to_fit(slow, "zzz zzz qqq good " * 9)]).words[0]) <= 16
    data = Data("texts", (Example("long", long, 0, rationale=((0, 3), (len(long) - 5, len(long) - 1))),))
    one = prepare_example(model, data, 0)
    assert one.note == "cut to 16 tokens" and one.failure is None
    assert len(one.rationale.marks) == 100 and sum(one.rationale.marks) == 2
    assert rows_of(a_bench(data, ("rollout",), model=model))[0].note == "cut to 16 tokens"


def test_words_that_overlap_the_evidence_are_marked():
    missing = {}
    one = Example("x", "not  good at all", 0, rationale=((0, 3), (6, 8)))
    assert prepare_rationale(one, missing).marks == (1, 1, 0, 0)
    assert prepare_rationale(Example("x", "fine", 0, rationale=()), missing) is None
    assert missing["rationale"] == "no word is marked as evidence"
    assert prepare_rationale(Example("x", "fine", 0), missing) is None


def test_an_image_that_cannot_be_read(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    Image.new("RGB", (40, 40), "red").save(tmp_path / "b.png")
    data = Data("files", (Example("a", tmp_path / "a.png"), Example("b", tmp_path / "b.png")))
    rows = rows_of(a_bench(data, ("chance",), model=why.open("demo/untrained-vit")))
    assert [row.state for row in rows] == ["failed", "measured"] and "is not a PNG" in rows[0].reason


# --- agreement --------------------------------------------------------------------------------------------------------


def test_agreement_of_methods_leaves_chance_out():
    bench = a_bench(pictures(2), (BRIGHTNESS, "rollout", "chance"))
    group = bench.explain_group(
        [prepare_example(bench.model, bench.data, i) for i in (0, 1)],
        bench.model.encode([one.content for one in bench.data.examples]),
    )
    alone = {"brightness": group.explanations["brightness"], "chance": group.explanations["chance"]}
    assert all(math.isnan(value) for value in measure_method_agreement(alone, 2))
    twice = {"a": group.explanations["brightness"], "b": group.explanations["brightness"]}
    assert measure_method_agreement(twice, 2) == pytest.approx([1.0, 1.0])
    rows = rows_of(bench)
    assert {row.agreement for row in rows} == set(measure_method_agreement(group.explanations, 2)) and brightness


def test_rows_say_whether_rounding_may_decide_the_map():
    rows = rows_of(a_bench(pictures(2), ("lrp", "chance")))
    assert [row.undetermined for row in rows if row.method == "lrp"] == [0.0, 0.0]
    assert all(math.isnan(row.undetermined) for row in rows if row.method == "chance")


def test_a_method_in_another_precision_is_measured_on_the_model_itself():
    data = pictures(2)
    bench = a_bench(data, (partial(lrp, precision="float32"), "lrp"))
    examples = [prepare_example(bench.model, data, place) for place in range(2)]
    group = bench.explain_group(examples, bench.model.encode([one.content for one in data.examples]))
    assert group.base.logits.dtype == torch.float64
    assert group.explanations["lrp(precision='float32')"].scores.dtype == torch.float32
    assert group.explanations["lrp"].scores.dtype == torch.float64
    alone = a_bench(data, (partial(lrp, precision="float32"),))
    group = alone.explain_group(examples, alone.model.encode([one.content for one in data.examples]))
    assert group.base["probe"].before.logits.dtype == torch.float64


class WithoutMask(torch.nn.Module):
    """Sums its words, so that padding would be one more word."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(30, 3, dtype=torch.float64)

    def forward(self, input_ids):
        return self.words(input_ids).sum(1)


def test_a_model_that_takes_no_mask_is_judged_one_by_one():
    """Texts of different length cannot share a batch; the numbers are those of each alone."""
    torch.manual_seed(0)
    model = opened(WithoutMask())
    texts = [torch.arange(1, 4 + i) for i in range(4)]
    run = partial(why.judge, model, methods="gradient_x_input", metrics="comprehensiveness", report=False)
    together = run(texts)
    assert not together.failed
    for i, text in enumerate(texts):
        np.testing.assert_allclose(together.rows.value[i], run([text]).rows.value[0], rtol=1e-9)


def test_a_regression_falls_by_its_output_and_not_by_a_probability():
    config = transformers.BertConfig(
        vocab_size=len(tiny_text.WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=1, problem_type="regression",
    )  # fmt: skip
    model = opened(transformers.BertForSequenceClassification(config).eval(), tokenizer=tiny_text.wordpiece())
    texts = ["the film is good", "not good"]
    made = why.judge(model, texts, "gradient_x_input", "comprehensiveness", report=False)
    described = made.table.descriptions["comprehensiveness"]
    assert described.startswith("How much the explained output falls when the highest-scored tokens")
