"""What makes a finding suspicious."""

from dataclasses import replace

import numpy as np
import pytest
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import (
    Effect,
    Finding,
    Presence,
    Sighting,
    Uniformity,
    compare_items,
    judge_findings,
    measure_effect,
)

EFFECT = Effect(0.6, 0.1, 0.4, 0.6, 0.0001, 24)
FINDING = Finding(
    "cat", 0, "patches", "a mark", 40, presence=(Presence("cat", 40, 20), Presence("dog", 40, 0)),
    uniformity=Uniformity(0.9, 0.85, 0.95, 0.7), hiding=EFFECT, inserting=EFFECT, unusual=EFFECT,
)  # fmt: skip


def test_a_strong_effect_is_suspicious_and_what_speaks_for_it_is_said():
    (judged,) = judge_findings([FINDING])
    assert judged.is_suspicious
    assert len(judged.case) == 4 and "50% of cat show it" in judged.case[-1]
    assert judged.case[1].endswith("it gives 0.60, where the best evidence of items without it gives 0.10")


WEAK = Effect(0.15, 0.1, 0.0, 0.1, 0.0001, 24)


@pytest.mark.parametrize(
    "change",
    [
        {"uniformity": Uniformity(0.2, 0.1, 0.3, 0.7)},
        {"off_object": 0.0},
        {"hiding": WEAK},
        {"hiding": None},
        {"inserting": replace(EFFECT, p=0.06)},
    ],
    ids=["varied", "on the object", "another mark is as good", "never hidden", "one of the two is certain"],
)
def test_no_other_condition_acquits(change):
    assert judge_findings([replace(FINDING, **change)])[0].is_suspicious


@pytest.mark.parametrize(
    "change",
    [
        {"unusual": replace(EFFECT, elsewhere=0.2)},
        {"unusual": None},
        {"unusual": replace(EFFECT, p=0.2)},
        {"hiding": replace(EFFECT, p=0.2), "inserting": replace(EFFECT, p=0.2)},
        {"hiding": None, "inserting": None, "unusual": None},
    ],
    ids=["as other evidence does", "not compared", "by chance", "not used", "not tested"],
)
def test_evidence_that_gives_what_evidence_usually_gives_is_not_suspicious(change):
    assert not judge_findings([replace(FINDING, **change)])[0].is_suspicious


def test_a_weaker_effect_of_one_class_alone_is_a_probable_shortcut():
    weaker = replace(FINDING, unusual=replace(EFFECT, elsewhere=0.2))
    (judged,) = judge_findings([weaker])
    assert judged.is_probable and not judged.is_suspicious
    (shared,) = judge_findings([replace(weaker, presence=(Presence("cat", 40, 20), Presence("dog", 40, 15)))])
    assert not shared.is_probable


def test_a_word_needs_a_habit_and_a_loss_without_it():
    word = replace(FINDING, kind="words", what="the word 'tag'")
    assert judge_findings([word])[0].is_suspicious
    assert not judge_findings([replace(word, uniformity=Uniformity(0.3, 0.2, 0.4, 0.7))])[0].is_suspicious
    lost_nothing = Effect(0.01, 0.0, 0.0, 0.02, 0.4, 24)
    assert not judge_findings([replace(word, hiding=lost_nothing)])[0].is_suspicious


def test_the_correction_for_many_findings_decides():
    chance = replace(FINDING, what="by chance", hiding=None, inserting=replace(EFFECT, p=0.02))
    assert judge_findings([chance])[0].is_suspicious, "alone, p = 0.02 is enough"
    calm = replace(FINDING, hiding=replace(EFFECT, p=0.9), inserting=replace(EFFECT, p=0.9))
    judged = {one.what: one for one in judge_findings([chance, calm])}
    assert judged["by chance"].inserting.adjusted_p == pytest.approx(0.06)
    assert not judged["by chance"].is_suspicious


def test_a_change_of_the_whole_input_is_judged_by_its_effect():
    whole = replace(FINDING, kind="whole", what="its length (more long)")
    (judged,) = judge_findings([whole])
    assert judged.is_suspicious and not any("uniformity" in clause for clause in judged.case)


def test_the_most_suspicious_comes_first():
    weak = replace(FINDING, what="weak", inserting=Effect(0.45, 0.1, 0.1, 0.4, 0.0001, 24))
    varied = replace(FINDING, what="varied", uniformity=Uniformity(0.1, 0.0, 0.2, 0.7))
    judged = judge_findings([weak, varied, FINDING])
    assert [one.what for one in judged if one.is_suspicious] == ["a mark", "weak", "varied"]


def test_an_effect_compares_pairs():
    effect = measure_effect(np.full(12, 0.5), np.full(12, 0.2), 0)
    assert effect.difference == pytest.approx(0.3) and effect.p < 0.001 and effect.low <= 0.3 <= effect.high + 1e-9


def test_a_contrast_compares_some_items_with_others():
    some, others = np.array([0.8, 0.9, 1.0]), np.array([0.1, 0.2])
    contrast = compare_items(some, others, 0)
    assert contrast.difference == pytest.approx(0.75) and contrast.items == 3
    assert contrast.p == pytest.approx(1 / 10, abs=0.02), "one of the ten ways to choose three of five"
    assert compare_items(some, others[:0], 0) is None


def test_the_box_of_a_sighting():
    row = BulkRow(**image_row("a", 0, np.ones(12), (3, 4)))
    assert Sighting(row, (1, 2, 6)).box == (0, 1, 2, 3)
    assert Sighting(row).box is None
