"""The verdict on planted tables: no method that a control matches, a warning about class-blind winners, weaknesses."""

import re
import tempfile
from pathlib import Path

import numpy as np
from judge.planted_rows import many, plant_table, table_of

from whyformer._judge.controls import CONTROL_NAMES
from whyformer._judge.finalist import CLASS, WEIGHTS, Finalist
from whyformer._judge.table import Table
from whyformer._judge.verdict import (
    CONTROL_WORDING,
    count_needed_examples,
    list_deciding_metrics,
    list_verdict,
    write_metric_sentence,
    write_verdict,
)
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
        "nothing to recommend: by its mean no method is ahead of every control. In positive_perturbation no method is "
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
    assert said.startswith(
        "On this data use rollout, although it is worse than random_pixels in positive_perturbation (p < 0.001) and it "
        "is worse than attnlrp in positive_perturbation (by 2, 95 %"
    )
    assert "it is significantly better than every control in negative_perturbation" in said
    assert "attnlrp is worse than centre_blob in negative_perturbation." in said
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
        said.startswith("On this data use narrow, although it is worse than wide in deletion (by 1,")
        and "it is worse than wide in negative_perturbation (by " in said
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
    assert said.startswith("On this data use third, although it is worse than first in deletion (by ")
    assert "it is worse than second in insertion (by " in said.split(": ")[0]


def test_a_method_without_values_in_a_deciding_metric_is_not_recommended(tmp_path):
    nan = [float("nan")] * 40
    planted = {
        "deletion": {**level(partial=1.0, whole=2.0, chance=4.0)},
        "insertion": {**level(partial=1.0, whole=9.0, chance=1.0), "partial": nan},
    }
    assert write_verdict(plant_table(tmp_path, planted)).startswith("On this data use whole")


def test_word_position_is_a_control(tmp_path):
    metric = "comprehensiveness"
    values = level(attcat=2.0, rollout=1.5, chance=1.0, first_words=0.5, last_words=2.0)
    said = write_verdict(plant_table(tmp_path, {metric: values}, kind="texts"))
    assert "nothing to recommend" in said and "last_words (the later a word, the higher)" in said
    assert f"Known weakness of {metric}: {WEAKNESSES[metric]}" in said


def test_what_people_mark_is_told_and_decides_nothing(tmp_path):
    values = level(attcat=2.0, rollout=1.5, chance=1.0, last_words=1.0)
    said = write_verdict(plant_table(tmp_path, {"auprc": values}, kind="texts"))
    assert said == (
        "Nothing is recommended by auprc alone. auprc says what people mark and decides nothing: the highest mean has "
        "attcat in auprc (1.994)."
    )


def test_the_method_that_gives_up_least_is_recommended(tmp_path):
    """first wins one metric and is near the controls in the other; second is near the best in both."""
    planted = {
        "comprehensiveness": level(first=9.0, second=8.0, chance=1.0),
        "sufficiency": level(first=8.0, second=2.0, third=1.0, chance=9.0),
    }
    planted["comprehensiveness"]["third"] = many(2.0, seed=7)
    said = write_verdict(plant_table(tmp_path, planted))
    assert said.startswith("On this data use second, although it is worse than first in comprehensiveness (by 0.99,")


def test_weaknesses_that_metrics_share_are_named_once(tmp_path):
    values = level(rollout=9.0, libragrad=7.0, chance=4.0, centre_blob=6.0)
    planted = {"mean_average_precision": values, "pointing_game": values, "rank_in_mask": values}
    planted["deletion"] = level(rollout=5.0, libragrad=5.0, chance=4.0, centre_blob=4.5)
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


def test_the_number_of_examples_that_would_tell_is_enough():
    """Tables drawn with the lead and spread that were seen, of as many examples as advised, mostly find the method."""
    advised = count_needed_examples(plant_lead(40, seed=1), "comprehensiveness", "attnlrp", tests=1)
    assert 40 < advised < 400
    found = [list_deciding_metrics(plant_lead(int(advised), seed)) for seed in range(20)]
    assert sum(map(bool, found)) >= 12


def plant_lead(count, seed) -> Table:
    """One method that leads chance by a third of a standard deviation; only what the verdict reads of a table."""
    random = np.random.default_rng(seed)
    chance = random.normal(size=count)
    own = chance + 1 / 3 + random.normal(size=count)
    return table_of_arrays({"attnlrp": own, "chance": chance})


def table_of_arrays(values) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        return plant_table(Path(folder), {"comprehensiveness": {name: own.tolist() for name, own in values.items()}})


def test_a_finalist_whose_map_stays_the_same_is_said_so_in_the_first_sentence(tmp_path):
    table = plant_table(tmp_path, {"comprehensiveness": level(saliency=2.0, chance=1.0)})
    still = {CLASS: (0.97, 0.95, 0.99), WEIGHTS: (0.74, 0.7, 0.78)}
    first, second, *_ = list_verdict(table, Finalist("saliency", still, 16))
    assert first.startswith(
        "On this data use saliency, although its maps hardly change with the class (rank correlation 0.97) and its "
        "maps hardly depend on the trained weights (rank correlation 0.74): it is significantly better than chance"
    )
    assert second == (
        "Its maps have a rank correlation of 0.97 (95 % 0.95 to 0.99) with those of another class and 0.74 (95 % 0.70 "
        "to 0.78) with those of the model with randomised weights, on 16 examples."
    )
    moving = {CLASS: (0.1, -0.1, 0.3), WEIGHTS: (float("nan"),) * 3}
    first, second, *_ = list_verdict(table, Finalist("saliency", moving, 16))
    assert "although" not in first and "randomised" not in second


# --- a winner that ignores the class ----------------------------------------------------------------------------------


def test_a_winner_that_ignores_the_class(tmp_path):
    values = level(rollout=9.0, libragrad=7.0, grad_cam=5.0, chance=4.0, centre_blob=6.0, random_pixels=4.0)
    blind = {"rollout", "chance", "centre_blob", "random_pixels"}
    table = plant_table(tmp_path, {"mean_average_precision": values}, class_blind=blind, kind="images")
    assert write_verdict(table) == (
        "On this data use rollout, although it ignores the class: it is significantly better than every control in "
        "mean_average_precision, and than every other method. Its map is the same whichever class is explained. Of the "
        "methods that depend on the class, libragrad comes first. grad_cam is worse than centre_blob in "
        "mean_average_precision. Where no method is better than the controls, 2 % of tables recommend one. "
        f"Known weakness of mean_average_precision: {WEAKNESSES['mean_average_precision']}."
    )


def test_a_winner_that_ignores_the_class_without_an_alternative(tmp_path):
    values = level(rollout=9.0, libragrad=4.0, chance=4.0)
    said = write_verdict(plant_table(tmp_path, {"deletion": level(rollout=1.0, libragrad=4.0, chance=4.0)}))
    assert "ignores the class" not in said
    said = write_verdict(plant_table(tmp_path, {"insertion": values}, class_blind={"rollout", "chance"}))
    assert "No method that depends on the class is significantly better than chance in insertion." in said
    only = plant_table(tmp_path, {"insertion": level(rollout=9.0, chance=4.0)}, class_blind={"rollout"})
    assert "use rollout, although it ignores the class" in write_verdict(only) and "depend" not in write_verdict(only)


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
