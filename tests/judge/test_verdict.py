"""The verdict on planted tables: no method that a control matches, a warning about class-blind winners, weaknesses."""

import re

import pytest
from judge.planted_rows import many, plant_table, table_of

from whyformer._judge.controls import CONTROL_NAMES
from whyformer._judge.verdict import CONTROL_WORDING, FALSE_RATE, write_metric_sentence, write_verdict
from whyformer._judge.weaknesses import WEAKNESSES, describe_judged_metric, describe_weakness
from whyformer.metrics._registry import METRICS, choose_metric

DUST = "scattered single pixels (dust)"


def level(**means):
    """Values around these means, one seed for each method."""
    return {method: many(mean, seed=seed) for seed, (method, mean) in enumerate(means.items())}


def test_a_control_that_wins_leaves_nothing_to_recommend(tmp_path):
    """Lower is better: dust has 1, every method and chance more."""
    values = level(attnlrp=1.0, rollout=3.0, chance=4.0, centre_blob=4.0, random_pixels=1.0)
    said = write_verdict(plant_table(tmp_path, {"positive_perturbation": values}, kind="images"))
    assert said == (
        "On this data no method is significantly better than every control in any of these metrics, so there is "
        "nothing to recommend. Use more examples, or other metrics. In positive_perturbation no method is "
        "significantly better than every control; the best one is random_pixels (a random number for each pixel), "
        "which itself is significantly better than chance. "
        f"Known weakness of positive_perturbation: {WEAKNESSES['positive_perturbation'][0]}."
    )
    assert DUST in said and "use" not in said.split()


def test_a_metric_that_a_control_wins_does_not_decide(tmp_path):
    """By negative perturbation rollout is recommended; its loss to dust in the other metric is said to mean nothing."""
    planted = {
        "positive_perturbation": level(attnlrp=1.0, rollout=3.0, chance=4.0, centre_blob=4.0, random_pixels=1.0),
        "negative_perturbation": level(attnlrp=1.0, rollout=5.0, chance=2.0, centre_blob=4.0, random_pixels=1.0),
    }
    said = write_verdict(plant_table(tmp_path, planted, kind="images"))
    assert said.startswith("On this data use rollout: it is the best, or not significantly different from the best, in")
    assert "in negative_perturbation. attnlrp is worse than centre_blob in negative_perturbation." in said
    assert "In positive_perturbation no method is significantly better than every control; the best one is ran" in said
    assert said.endswith(f"Known weakness of positive_perturbation: {WEAKNESSES['positive_perturbation'][0]}.")


def test_a_method_that_a_control_matches_in_one_deciding_metric_is_not_recommended(tmp_path):
    """wide wins two metrics of three but is matched by the blob in the third; narrow is worse in two, but beats it."""
    planted = {
        "deletion": level(wide=1.0, narrow=2.0, chance=4.0, centre_blob=3.0),
        "negative_perturbation": level(wide=9.0, narrow=8.0, chance=4.0, centre_blob=5.0),
        "mean_average_precision": level(wide=5.0, narrow=6.0, chance=4.0, centre_blob=5.0),
    }
    said = write_verdict(plant_table(tmp_path, planted, kind="images"))
    assert (
        said.startswith("On this data use narrow")
        and "in mean_average_precision (1 of the 3 metrics that decide)." in said
        and "use wide" not in said
    )


def test_methods_that_are_each_matched_somewhere(tmp_path):
    planted = {
        "deletion": level(wide=1.0, narrow=3.0, chance=4.0, centre_blob=3.0),
        "mean_average_precision": level(wide=5.0, narrow=6.0, chance=4.0, centre_blob=5.0),
    }
    said = write_verdict(plant_table(tmp_path, planted, kind="images"))
    assert said == (
        "On this data no method is significantly better than every control in all of deletion and "
        "mean_average_precision, so there is nothing to recommend. narrow comes closest, but fails in deletion, where "
        "the best control is centre_blob (the same blob in the centre of every image)."
    )


def test_a_winner_that_is_never_among_the_best(tmp_path):
    """first and second are each best in one metric and matched in the other; third beats the control in both."""
    planted = {
        "deletion": level(first=1.0, second=4.0, third=2.0, chance=4.0),
        "insertion": level(first=1.0, second=9.0, third=8.0, chance=1.0),
    }
    said = write_verdict(plant_table(tmp_path, planted))
    assert "use third: of the methods that are significantly better than every control in all of deletion and " in said
    assert "insertion, it has the best mean rank." in said


def test_a_method_without_values_in_a_deciding_metric_is_not_recommended(tmp_path):
    nan = [float("nan")] * 40
    planted = {
        "deletion": {**level(partial=1.0, whole=2.0, chance=4.0)},
        "insertion": {**level(partial=1.0, whole=9.0, chance=1.0), "partial": nan},
    }
    assert write_verdict(plant_table(tmp_path, planted)).startswith("On this data use whole")


@pytest.mark.parametrize("metric", ["comprehensiveness", "auprc"])
def test_word_position_is_a_control(tmp_path, metric):
    values = level(attcat=2.0, rollout=1.5, chance=1.0, first_words=0.5, last_words=2.0)
    said = write_verdict(plant_table(tmp_path, {metric: values}, kind="texts"))
    assert "nothing to recommend" in said and "last_words (the later a word, the higher)" in said
    assert f"Known weakness of {metric}: {WEAKNESSES[metric]}" in said


def test_weaknesses_that_metrics_share_are_named_once(tmp_path):
    values = level(rollout=9.0, libragrad=7.0, chance=4.0, centre_blob=6.0)
    planted = {"mean_average_precision": values, "pointing_game": values, "rank_in_mask": values, "deletion": values}
    said = write_verdict(plant_table(tmp_path, planted, class_blind={"rollout"}, kind="images"))
    assert "Known weakness of mean_average_precision and rank_in_mask: it rewards" in said
    assert said.count("Known weakness") == 2 and "deletion" in said  # chance wins deletion: no weakness of it matters


def test_dust_is_named_where_no_method_beats_it_and_another_metric_decides(tmp_path):
    """Even if dust is not significantly better than chance here: it is a known weakness."""
    planted = {
        "positive_perturbation": level(rollout=1.02, chance=1.01, random_pixels=1.0),
        "negative_perturbation": level(rollout=5.0, chance=2.0, random_pixels=1.0),
    }
    table = plant_table(tmp_path, planted, kind="images")
    assert table.best_control("positive_perturbation").method == "random_pixels"
    assert DUST in write_verdict(table) and "itself is significantly" not in write_verdict(table)


def test_no_weakness_is_named_where_no_control_beats_chance(tmp_path):
    values = level(attnlrp=1.0, chance=1.0, random_pixels=1.0, centre_blob=1.0)
    said = write_verdict(plant_table(tmp_path, {"deletion": values}, kind="images"))
    assert "nothing to recommend" in said and "weakness" not in said


# --- a winner that ignores the class ----------------------------------------------------------------------------------


def test_a_winner_that_ignores_the_class(tmp_path):
    values = level(rollout=9.0, libragrad=7.0, grad_cam=5.0, chance=4.0, centre_blob=6.0, random_pixels=4.0)
    blind = {"rollout", "chance", "centre_blob", "random_pixels"}
    table = plant_table(tmp_path, {"mean_average_precision": values}, class_blind=blind, kind="images")
    assert write_verdict(table) == (
        "On this data use rollout: it is the best, or not significantly different from the best, in "
        "mean_average_precision. rollout ignores the class: its map is the same whichever class is explained. Of the "
        "methods that depend on the class, libragrad comes first. grad_cam is worse than centre_blob in "
        "mean_average_precision. Where no method differs from the controls, at most 5 % of such tables recommend "
        "one: 3 methods and 1 metric are tested together (measured with 12 methods and 10 metrics of noise: "
        f"{FALSE_RATE}). Known weakness of mean_average_precision: {WEAKNESSES['mean_average_precision']}."
    )


def test_a_winner_that_ignores_the_class_without_an_alternative(tmp_path):
    values = level(rollout=9.0, libragrad=4.0, chance=4.0)
    said = write_verdict(plant_table(tmp_path, {"deletion": level(rollout=1.0, libragrad=4.0, chance=4.0)}))
    assert "ignores the class" not in said
    said = write_verdict(plant_table(tmp_path, {"insertion": values}, class_blind={"rollout", "chance"}))
    assert "No method that depends on the class is significantly better than chance in insertion." in said
    only = plant_table(tmp_path, {"insertion": level(rollout=9.0, chance=4.0)}, class_blind={"rollout"})
    assert "rollout ignores the class" in write_verdict(only) and "depend" not in write_verdict(only)


def test_a_winner_that_depends_on_the_class(tmp_path):
    values = level(rollout=5.0, libragrad=9.0, chance=4.0)
    said = write_verdict(plant_table(tmp_path, {"mass_in_mask": values}, class_blind={"rollout"}, kind="images"))
    assert said.startswith("On this data use libragrad") and "ignores the class" not in said


# --- sentences --------------------------------------------------------------------------------------------------------


def test_the_sentence_of_a_metric_that_a_control_wins(tmp_path):
    values = level(attnlrp=2.0, rollout=1.0, chance=0.0, centre_blob=2.0)
    said = write_metric_sentence(table_of(tmp_path, values), "first_score")
    assert re.fullmatch(
        r"first_score: best is the control centre_blob \(.*\); not significantly different from it: attnlrp; "
        r"not significantly better than every control: attnlrp; worse than centre_blob: rollout\.",
        said,
    )


def test_every_metric_has_a_sentence_with_its_weakness():
    assert WEAKNESSES.keys() == METRICS.keys()
    for kind in ("images", "texts", None):
        for name, metric in METRICS.items():
            said = describe_judged_metric(choose_metric(name), kind)
            assert said.startswith(metric.summary.rstrip(".")) and f"; {metric.better} is better; " in said
            assert said.endswith(f"known weakness: {describe_weakness(name, kind)}.") and "\n" not in said
            assert not describe_weakness(name, kind).endswith(".") and len(describe_weakness(name, kind)) > 30
    assert DUST in describe_weakness("positive_perturbation", "images")
    assert DUST not in describe_weakness("positive_perturbation", "texts")


def test_a_metric_of_the_user_has_a_sentence_without_a_weakness(tmp_path):
    table = table_of(tmp_path, {"a": [1.0], "chance": [1.0]})
    assert table.descriptions["first_score"].endswith("higher is better.") and not table.weaknesses


def test_every_control_is_described():
    assert CONTROL_WORDING.keys() == CONTROL_NAMES
