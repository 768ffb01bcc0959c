"""What makes a finding suspicious."""

from dataclasses import replace

import numpy as np
import pytest
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import Effect, Finding, Presence, Sighting, Uniformity, judge_findings, measure_effect
from whyformer._summary.image_evidence import lower_limit

EFFECT = Effect(0.6, 0.1, 0.4, 0.6, 0.0001, 24)
FINDING = Finding(
    "cat", 0, "patches", "a mark", 40, presence=(Presence("cat", 40, 20), Presence("dog", 40, 0)),
    uniformity=Uniformity(0.9, 0.85, 0.95, 0.7), hiding=EFFECT, inserting=EFFECT,
)  # fmt: skip


def test_used_uniform_and_not_known_to_be_on_the_object():
    (judged,) = judge_findings([FINDING])
    assert judged.is_suspicious
    assert len(judged.case) == 3 and "50% of cat show it" in judged.case[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"uniformity": Uniformity(0.6, 0.5, 0.7, 0.7)},
        {"inserting": Effect(0.15, 0.1, 0.0, 0.1, 0.0001, 24)},
        {"inserting": replace(EFFECT, p=0.06)},
        {"inserting": None},
        {"off_object": 0.2},
    ],
    ids=["varied", "small effect", "not significant", "not inserted", "on the object"],
)
def test_one_condition_that_fails_is_enough_to_clear_it(change):
    judged = judge_findings([replace(FINDING, **change, what="changed"), FINDING])
    assert {one.what for one in judged if one.is_suspicious} == {"a mark"}


def test_the_correction_for_many_findings_decides():
    chance = replace(FINDING, what="by chance", hiding=None, inserting=replace(EFFECT, p=0.03))
    assert judge_findings([chance])[0].is_suspicious, "alone, p = 0.03 is enough"
    judged = {one.what: one for one in judge_findings([chance, replace(FINDING, inserting=replace(EFFECT, p=0.9))])}
    assert not judged["by chance"].is_suspicious and judged["by chance"].inserting.adjusted_p == pytest.approx(0.06)


def test_a_change_of_the_whole_input_counts_undone_or_applied():
    whole = replace(FINDING, kind="whole", what="its length (more long)", inserting=None)
    (judged,) = judge_findings([whole])
    assert judged.is_suspicious and not any("uniformity" in clause for clause in judged.case)


def test_the_most_suspicious_comes_first():
    weak = replace(FINDING, what="weak", inserting=Effect(0.3, 0.1, 0.1, 0.3, 0.0001, 24))
    judged = judge_findings([replace(FINDING, uniformity=None), weak, FINDING])
    assert [one.what for one in judged if one.is_suspicious] == ["a mark", "weak"]
    assert judged[-1].uniformity is None


def test_an_effect_compares_pairs():
    effect = measure_effect(np.full(12, 0.5), np.full(12, 0.2), 0)
    assert effect.difference == pytest.approx(0.3) and effect.p < 0.001 and effect.low <= 0.3 <= effect.high + 1e-9


def test_the_box_of_a_sighting():
    row = BulkRow(**image_row("a", 0, np.ones(12), (3, 4)))
    assert Sighting(row, (1, 2, 6)).box == (0, 1, 2, 3)
    assert Sighting(row).box is None


@pytest.mark.parametrize(("effect", "is_suspicious"), [(0.2, False), (0.6, True)], ids=["small", "large"])
def test_the_joint_limit_decides(effect, is_suspicious):
    """Copies that are as uniform: the larger effect accuses, the smaller one does not."""
    measured = Effect(effect + 0.1, 0.1, effect - 0.05, effect + 0.05, 0.0001, 24)
    uniformity = Uniformity(0.75, 0.7, 0.8, lower_limit(effect))
    (judged,) = judge_findings([replace(FINDING, kind="copies", inserting=measured, uniformity=uniformity)])
    assert judged.is_used and judged.is_suspicious is is_suspicious


def test_hiding_is_enough_for_copies_but_not_for_patches():
    weak = Effect(0.15, 0.1, 0.0, 0.1, 0.5, 24)
    copies, patches = (replace(FINDING, kind=kind, inserting=weak) for kind in ("copies", "patches"))
    assert {one.kind for one in judge_findings([copies, patches]) if one.is_suspicious} == {"copies"}
