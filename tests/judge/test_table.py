"""The table and the verdict: means, ranks and tests that a reader can check by hand."""

import math
from dataclasses import replace

import pytest
from judge.bench_parts import FIRST_SCORE, SHARE, TOUCHY
from judge.planted_rows import many, plant_table, rows_from, table_of

from whyformer._judge.report import format_example_counts
from whyformer._judge.rows import Row
from whyformer._judge.table import Line, Table, format_line, format_passes, rank_methods, tabulate_rows
from whyformer._judge.verdict import list_cautions, write_metric_sentence, write_verdict
from whyformer.data import Problem
from whyformer.metrics._registry import choose_metric


def test_means_ranks_and_tests_by_hand(tmp_path):
    """Three pairs, always the same difference: p is 2 of 8, for both tests, which go together in every swap."""
    table = table_of(tmp_path, {"good": [3.0, 4.0, 5.0], "chance": [1.0, 2.0, 3.0], "bad": [0.0, 1.0, 2.0]})
    lines = {line.method: line for line in table.lines}
    assert [line.method for line in table.of("first_score")] == ["good", "chance", "bad"]
    assert [lines[m].mean for m in ("good", "chance", "bad")] == [4.0, 2.0, 1.0]
    assert lines["good"].is_best and math.isnan(lines["good"].p_best)
    assert lines["bad"].p_best == lines["chance"].p_best == 0.25
    assert math.isnan(lines["chance"].p_chance) and lines["good"].p_chance == 0.25
    assert lines["good"].beats_chance is None  # three examples are too few to tell


def test_methods_are_tested_against_the_best_control_by_hand(tmp_path):
    """Three pairs, always the same difference: p is 2 of 8, for all tests, which go together in every swap."""
    values = {
        "good": [5.0, 6.0, 7.0],
        "bad": [0.0, 1.0, 2.0],
        "chance": [1.0, 2.0, 3.0],
        "centre_blob": [4.0, 5.0, 6.0],
    }
    table = table_of(tmp_path, values)
    lines = {line.method: line for line in table.lines}
    assert table.best_control("first_score").method == "centre_blob"
    assert [lines[m].is_control for m in values] == [False, False, True, True]
    assert lines["good"].p_control == lines["bad"].p_control == 0.25
    assert math.isnan(lines["chance"].p_control) and math.isnan(lines["centre_blob"].p_control)
    assert lines["centre_blob"].p_chance == 0.25
    assert format_line(lines["centre_blob"])[-3] == "control" and format_line(lines["good"])[-3] == "p = 0.250"


def test_methods_and_metrics_are_corrected_together_by_hand(tmp_path):
    """Three examples, 8 ways to swap. good differs by 1, 1, 1 in deletion, other by 1, 1, -1 in insertion.

    Swapping none or all makes good as large as observed; other is largest if the third example alone is swapped, or all
    but it. As good is larger, other has to be beaten by neither: 1 / sqrt(3) is reached by every swap.
    """
    planted = {
        "deletion": {"good": [0.0, 0.0, 0.0], "other": [1.0, 1.0, 1.0], "chance": [1.0, 1.0, 1.0]},
        "insertion": {"good": [0.0, 0.0, 0.0], "other": [1.0, 1.0, -1.0], "chance": [0.0, 0.0, 0.0]},
    }
    lines = {(line.metric, line.method): line for line in plant_table(tmp_path, planted).lines}
    assert lines["deletion", "good"].p_control == 0.5  # 2 swaps of its own, 2 of the other metric's
    assert lines["insertion", "other"].p_control == 1.0
    assert lines["deletion", "other"].p_control == lines["insertion", "good"].p_control == 1.0


def test_where_chance_is_the_best_control_both_tests_are_the_same(tmp_path):
    values = {"good": many(2.0), "same": many(1.0, seed=1), "chance": many(1.0, seed=2), "bad": many(0.0, seed=3)}
    for line in table_of(tmp_path, values).lines:
        assert (line.beats_control, str(line.p_control)) == (line.beats_chance, str(line.p_chance))


def test_better_and_worse_than_the_best_control(tmp_path):
    means = {"good": 3.0, "between": 1.5, "chance": 1.0, "random_pixels": 2.0, "same": 2.0}
    values = {method: many(mean, seed=seed) for seed, (method, mean) in enumerate(means.items())}
    lines = {line.method: line for line in table_of(tmp_path, values).lines}
    assert [lines[m].beats_control for m in values] == [True, False, None, None, None]
    assert lines["between"].beats_chance is True and lines["random_pixels"].beats_chance is True
    assert format_line(lines["between"])[-3].endswith(" worse")


def test_a_method_has_to_beat_every_control_not_only_the_best(tmp_path):
    """Always a little above the blob, which is the best control; level with chance, which varies."""
    blob = many(1.0)
    noisy = [value + noise for value, noise in zip(blob, many(-0.05, spread=1.0, seed=1), strict=True)]
    values = {"close": [value + 0.01 for value in blob], "far": many(3.0), "chance": noisy, "centre_blob": blob}
    table = table_of(tmp_path, values)
    lines = {line.method: line for line in table.lines}
    assert table.best_control("first_score").method == "centre_blob"
    alone = {line.method: line for line in table_of(tmp_path, {m: values[m] for m in ("close", "centre_blob")}).lines}
    assert alone["close"].beats_control is True
    assert lines["close"].beats_control is None and lines["close"].p_control > 0.1
    assert lines["far"].beats_control is True


def test_lower_is_better_where_the_metric_says_so(tmp_path):
    table = table_of(tmp_path, {"high": [5.0, 6.0], "low": [1.0, 2.0]}, TOUCHY)
    assert [line.method for line in table.of("touchy")] == ["low", "high"]


def test_better_and_worse_than_chance(tmp_path):
    values = {"good": many(2.0), "same": many(1.0, seed=1), "chance": many(1.0, seed=2), "bad": many(0.0, seed=3)}
    lines = {line.method: line for line in table_of(tmp_path, values).lines}
    assert [lines[m].beats_chance for m in values] == [True, None, None, False]
    assert lines["good"].p_chance < 0.001


def test_a_method_is_compared_with_chance_on_the_examples_it_has(tmp_path):
    hard, easy = many(0.0), many(10.0, seed=1)[:20]
    skips = [float("nan")] * len(hard) + [value - 1 for value in easy]  # worse wherever it has a number
    line = next(one for one in table_of(tmp_path, {"skips": skips, "chance": hard + easy}).lines if one.p_chance < 0.05)
    assert line.mean > 5 and line.beats_chance is False


def test_a_method_without_a_value_is_not_compared_with_chance(tmp_path):
    said = write_metric_sentence(table_of(tmp_path, {"mute": [float("nan")] * 2, "chance": [1.0, 2.0]}), "first_score")
    assert said.endswith("; no value for: mute.") and "different from chance" not in said


def test_one_example_has_no_interval(tmp_path):
    said = write_metric_sentence(table_of(tmp_path, {"good": [2.0], "chance": [1.0]}), "first_score")
    assert said.startswith("first_score: best is good (2); not significantly different from it: chance")


def test_undefined_missing_and_failed_are_counted_and_never_in_a_mean(tmp_path):
    nan = float("nan")
    rows = [
        1.0,
        nan,
        Row(0, "", "", "", state="failed", reason="broke"),
        Row(0, "", "", "", state="missing", reason="no mask"),
        3.0,
    ]
    (line,) = table_of(tmp_path, {"chance": rows}).lines
    assert (line.mean, line.count, line.undefined, line.failed, line.missing) == (2.0, 2, 1, 1, 1)


def test_a_method_with_few_values_is_not_the_best(tmp_path):
    """9.0 on the one easy example does not beat 2.0 on all."""
    nan = float("nan")
    table = table_of(tmp_path, {"lucky": [9.0, nan, nan, nan], "steady": [2.0] * 4, "chance": [1.0] * 4})
    assert [line.method for line in table.of("first_score")] == ["steady", "chance", "lucky"]
    assert rank_methods([math.nan, 1.0], [False, True], "higher") == [1, 0]


def test_a_method_measured_on_7_of_18_examples_is_not_recommended(tmp_path):
    """It beats chance wherever it has a value, and is named with the reason; the steady one is recommended."""
    values = {
        "picks": [9.0 + 0.01 * i for i in range(7)] + [math.nan] * 11,
        "steady": many(2.0, 18),
        "chance": many(0.0, 18, seed=1),
    }
    table = table_of(tmp_path, values)
    verdict = write_verdict(table)
    assert table.best("first_score").method == "steady" and [line.method for line in table.tied("first_score")] == [
        "steady"
    ]
    assert verdict.startswith("On this data use steady")
    assert "Left out, because the values do not allow a fair comparison: picks (values for only 7 of 18 " in verdict
    assert "not compared: picks (values for only 7 of 18 examples)" in write_metric_sentence(table, "first_score")
    alone = write_verdict(table_of(tmp_path, {"picks": values["picks"], "chance": values["chance"]}))
    assert alone.startswith("On this data no method is significantly better") and "picks (values for only 7 of" in alone


@pytest.mark.parametrize("lack", [[math.nan] * 11, [math.inf] * 1], ids=["few values", "an infinite value"])
def test_a_metric_whose_control_cannot_be_compared_decides_nothing(tmp_path, lack):
    values = {"good": many(2.0, 18), "chance": [*lack, *many(0.0, 18 - len(lack), seed=1)]}
    said = write_verdict(table_of(tmp_path, values))
    assert said.startswith(
        "On this data no method is significantly better than chance in any metric that allows a fair"
    )
    assert "the control chance, and with it the metric (" in said


def test_a_metric_with_values_for_few_examples_is_named(tmp_path):
    gap = [math.nan] * 30
    said = write_verdict(table_of(tmp_path, {"good": many(2.0, 20) + gap, "chance": many(0.0, 20, seed=1) + gap}))
    assert said.startswith("On this data use good") and "first_score has values for only 20 of the 50 examples." in said


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_an_infinite_value_never_makes_a_method_the_best(tmp_path, infinity):
    values = {"wild": [infinity, *many(5.0, 39)], "steady": many(2.0), "chance": many(0.0, seed=1)}
    rows = rows_from(tmp_path, values)
    table = tabulate_rows(rows, {"first_score": choose_metric(FIRST_SCORE)})
    wild = next(line for line in table.lines if line.method == "wild")
    assert math.isfinite(wild.mean) and (wild.count, wild.infinite, wild.undefined) == (39, 1, 1)
    assert table.best("first_score").method == "steady" and not wild.is_fit
    verdict = write_verdict(table)
    assert verdict.startswith("On this data use steady") and "wild (1 infinite value in first_score)" in verdict
    assert any(f"1 x: the value is infinite ({infinity:+})" in line for line in list_cautions(rows, ()))


def test_an_example_that_is_infinite_for_all_is_left_out_for_all(tmp_path):
    values = {"good": [math.inf, *many(2.0)], "chance": [math.inf, *many(0.0, seed=1)]}
    table = table_of(tmp_path, values)
    assert write_verdict(table).startswith("On this data use good") and {line.count for line in table.lines} == {40}


def test_nothing_is_the_best_where_every_row_has_an_infinite_value(tmp_path):
    values = {"a": [math.inf, 1.0, 2.0], "chance": [0.0, math.inf, 1.0]}
    said = write_metric_sentence(table_of(tmp_path, values), "first_score")
    assert said == (
        "first_score: no row can be called the best; not compared: a (1 infinite value), chance (1 infinite value)."
    )


def test_a_metric_of_the_whole_data_set(tmp_path):
    """3 of 4 and 0 of 1 are together 3 of 5, not the mean of 0.75 and 0."""
    held = [
        Row(0, "", "", "", value=0.75, parts=(3.0, 4.0), curve=(1.0, 3.0)),
        Row(0, "", "", "", value=0.0, parts=(0.0, 1.0), curve=(3.0, 5.0)),
    ]
    table = table_of(tmp_path, {"chance": held}, SHARE)
    assert table.lines[0].mean == pytest.approx(0.6)
    assert table.curves == {"share": {"chance": [2.0, 4.0]}}


def test_no_value_at_all(tmp_path):
    table = table_of(tmp_path, {"chance": [float("nan")] * 3, "other": [float("nan")] * 3})
    assert table.best("first_score") is None and math.isnan(table.lines[0].mean)
    assert write_metric_sentence(table, "first_score") == "first_score: no value for any method."
    assert write_verdict(table) == "Nothing could be measured on this data: no metric has a value for any method."


def test_files(tmp_path):
    table = table_of(tmp_path, {"a|b": [1.0, 2.0], "chance": [0.0, 1 / 3]})
    lines = table.to_csv().splitlines()
    assert lines[0].startswith("metric,method,mean,low,high,count")
    assert lines[1].startswith("first_score,a|b,1.5,") and "0.166667" in lines[2]
    assert "| chance | 0.1667 |" in table.to_markdown() and "(higher is better)" in table.to_markdown()
    assert table.records()[0]["method"] == "a|b" and table.records()[0]["p_best"] is None


def test_the_report_counts_the_examples_that_have_a_value(tmp_path):
    nan = float("nan")
    assert format_example_counts(table_of(tmp_path, {"a": [1.0, 2.0, nan], "chance": [0.0, 1.0, nan]}).lines) == "2"
    assert (
        format_example_counts(table_of(tmp_path, {"a": [1.0, nan, nan], "chance": [0.0, 1.0, nan]}).lines) == "1 to 2"
    )


def test_passes_as_text():
    facts = dict.fromkeys(Line.__dataclass_fields__, 0)
    assert format_passes(Line(**facts | {"forward": 1.0, "backward": 1.0, "relevance": 1.0})) == "1 + 2 back"
    assert format_passes(Line(**facts | {"forward": 500.0})) == "500"
    assert format_passes(Line(**facts | {"forward": float("nan")})) == "-"


# --- verdict ----------------------------------------------------------------------------------------------------------


def test_the_verdict(tmp_path):
    values = {"good": many(2.0), "same": many(1.0, seed=1), "chance": many(1.0, seed=2), "bad": many(0.0, seed=3)}
    said = write_verdict(table_of(tmp_path, values))
    assert said == (
        "On this data use good: it is significantly better than chance in first_score, and than every other method. "
        "same is not significantly different from chance in first_score. bad is worse than chance in first_score. "
        "Where no method is better than the controls, 2 % of tables recommend one."
    )


def test_of_two_equal_methods_the_cheaper_is_recommended(tmp_path):
    dear = [Row(0, "", "", "", value=v, forward=500.0) for v in many(2.0)]
    cheap = [Row(0, "", "", "", value=v, forward=1.0) for v in many(2.0)]
    table = table_of(tmp_path, {"dear": dear, "cheap": cheap, "chance": many(0.0, seed=1)})
    assert {line.method for line in table.tied("first_score")} == {"dear", "cheap"}
    one = Table(table.lines, table.better, table.kinds)
    ranks = {line.method: 1 for line in one.lines}
    equal = Table(tuple(replace(line, rank=ranks[line.method]) for line in one.lines), one.better, one.kinds)
    assert write_verdict(equal).startswith("On this data use cheap")


def test_the_sentence_of_a_metric(tmp_path):
    values = {"good": many(2.0), "as good": many(2.001, seed=4), "chance": many(1.0, seed=2), "bad": many(0.0, seed=3)}
    said = write_metric_sentence(table_of(tmp_path, values), "first_score")
    assert (
        "best is" in said and "not significantly different from it" in said and said.endswith("worse than chance: bad.")
    )


def test_cautions(tmp_path):
    failed = Row(0, "", "", "", state="failed", reason="it broke.", note="cut to 16 tokens")
    rows = rows_from(tmp_path, {"chance": [1.0, 2.0, failed]})
    said = " ".join(list_cautions(rows, [Problem("row 7", "it is empty")] * 5))
    assert "5 problems in the data: row 7: it is empty; row 7: it is empty; row 7: it is empty; and 2 more." in said
    assert "Only 3 examples" in said
    assert "1 row of 3 failed: chance, 1 x: it broke." in said
    assert "1 example cut to 16 tokens." in said
    assert "right on 2 of 3 labelled examples (66.7%)" in said


def test_warns_about_a_single_class(tmp_path):
    rows = rows_from(tmp_path, {"chance": [1.0, 2.0]})
    for row in rows.all.reshape(-1):
        object.__setattr__(row, "label", 1)
    assert any("have the same class" in one for one in list_cautions(rows, ()))


def test_a_reason_that_many_methods_share_is_written_once(tmp_path):
    failed = Row(0, "", "", "", state="failed", reason="it broke")
    few, many_ = {name: [failed] for name in "ab"}, {name: [failed] for name in "abcd"}
    for values, told in ((few, "2 rows of 2 failed: a, b, 2 x: it broke."), (many_, "4 methods, 4 x: it broke.")):
        rows = rows_from(tmp_path, values)
        said = " ".join(list_cautions(rows, ()))
        assert told in said


def test_several_notes_on_one_example_are_counted_each(tmp_path):
    rows = rows_from(tmp_path, {"chance": [1.0, 2.0]}, note="cut to 16 tokens; with a strange label")
    said = list_cautions(rows, ())
    assert "2 examples cut to 16 tokens." in said and "2 examples with a strange label." in said


def test_the_share_of_maps_that_rounding_may_decide(tmp_path):
    values = {
        "lrp": [Row(0, "0", "", "", value=1.0, undetermined=flag) for flag in (1.0, 0.0, 0.0, 0.0)],
        "chance": [Row(0, "0", "", "", value=1.0)] * 4,
    }
    table = table_of(tmp_path, values)
    shares = {line.method: line.undetermined for line in table.lines}
    assert shares["lrp"] == 0.25 and math.isnan(shares["chance"])
    assert {cells[0]: cells[-1] for cells in table.cells("first_score")} == {"lrp": "25%", "chance": "-"}
