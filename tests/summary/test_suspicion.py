"""Clusters and suspicion: what a cluster looks at, and when it is called suspicious."""

from dataclasses import replace

import numpy as np
import pytest
from summary.bulk_folder import image_row, text_row, write_run

from whyformer._summary.clusters import find_clusters, find_common_words, find_outliers
from whyformer._summary.hiding import (
    compare_variances,
    draw_other_places,
    find_alike,
    find_common_place,
    measure_fixed_place,
)
from whyformer._summary.rows import open_stored_run
from whyformer._summary.run import sample_classes
from whyformer._summary.shares import WordShare
from whyformer._summary.suspicion import (
    Effect,
    Finding,
    Sameness,
    adjust_effects,
    correct_findings,
    measure_effect,
    measure_exclusivity,
)
from whyformer._summary.tally import Tally


def sample(folder, rows):
    tally = Tally("rollout", 400, 0)
    for part in open_stored_run(write_run(folder, rows)).iterate_parts():
        tally.add_part(part)
    return {one.name: one for one in sample_classes(tally)}


def corner_rows(count=40, cornered=12, *, target=0, seed=0, start=0):
    """Maps of 8 x 8 patches: the first `cornered` ones are in the lower left corner, the others anywhere above."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        scores = rng.uniform(0, 0.01, (8, 8))
        if i < cornered:
            scores[7, :2] += rng.uniform(0.8, 1.2, 2)
        else:
            y, x = rng.integers(0, 5), rng.integers(0, 7)
            scores[y : y + 2, x : x + 2] += 1
        rows.append(image_row(f"{target}-{i:03}", start + i, scores.ravel(), (8, 8), target=target))
    return rows


def words_of(*shares):
    return [WordShare(word, share, i, len(shares) - 1 - i, (i,)) for i, (word, share) in enumerate(shares)]


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_a_common_place_is_found_without_being_told(tmp_path):
    sampled = sample(tmp_path, corner_rows())["class 0"]
    cornered = {f"0-{i:03}" for i in range(12)}
    (cluster,) = [one for one in find_clusters(sampled) if cornered & {row.id for row in one.rows}]
    assert {row.id for row in cluster.rows} == cornered
    assert np.argwhere(cluster.region).tolist() == [[7, 0], [7, 1]]
    assert cluster.shares.mean() > 0.7
    assert cluster.expected == pytest.approx(2 / 64)


def test_clusters_do_not_depend_on_the_order_of_the_items(tmp_path):
    rows = corner_rows()
    order = np.random.default_rng(3).permutation(len(rows))
    found = []
    for name, chosen in (("a", rows), ("b", [rows[i] for i in order])):
        clusters = find_clusters(sample(tmp_path / name, chosen)["class 0"])
        found.append([[row.id for row in cluster.rows] for cluster in clusters])
    assert found[0] == found[1]


def test_common_words_are_frequent_and_strong():
    texts = [
        words_of(("reuters", 0.8), ("the", 0.1), ("a", 0.1)),
        words_of(("reuters", 0.7), ("the", 0.1), ("b", 0.2)),
        words_of(("c", 0.9), ("the", 0.05), ("d", 0.05)),
    ]
    assert find_common_words(texts) == ("reuters",)


def test_texts_with_the_same_strong_word_are_a_cluster(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(40):
        words = [f"w{n}" for n in rng.integers(0, 400, 6)]
        scores = rng.uniform(0.5, 1, 7)
        words, scores[0] = (["(reuters)", *words], 5) if i < 12 else ([f"v{i}", *words], scores[0])
        rows.append(text_row(f"{i:02}", i, words, scores))
    clusters = find_clusters(sample(tmp_path, rows)["class 0"])
    tagged = next(cluster for cluster in clusters if cluster.words[:1] == ("reuters",))
    assert {row.id for row in tagged.rows} == {f"{i:02}" for i in range(12)}


def test_an_item_far_from_all_others_is_an_outlier(tmp_path):
    rng = np.random.default_rng(0)
    rows = [image_row(f"{i}", i, [1, 0, rng.uniform(0, 0.1), 0, 0, 0], (1, 6)) for i in range(30)]
    assert find_outliers(sample(tmp_path / "even", rows)["class 0"]) == []
    rows.append(image_row("odd", 30, [0, 0, 0, 0, 0, 1], (1, 6)))
    assert [one.id for one in find_outliers(sample(tmp_path / "odd", rows)["class 0"])] == ["odd"]


def test_exclusivity_by_hand(tmp_path):
    """12 of 40 items of the class look at the corner, and 3 of 40 of the other class: 1 - 3 / 12."""
    rows = [*corner_rows(), *corner_rows(cornered=3, target=1, seed=1, start=40)]
    classes = sample(tmp_path, rows)
    cluster = next(one for one in find_clusters(classes["class 0"]) if one.region is not None and one.region[7, 0])
    assert measure_exclusivity(cluster, [classes["class 1"]]) == pytest.approx(0.75)
    assert measure_exclusivity(cluster, []) is None


# --- sameness ---------------------------------------------------------------------------------------------------------


def test_sameness_by_hand():
    """Variance 1 inside (0 and 2 around 1 over n - 1 = 1: 2), 8 outside: 1 - 2 / 8."""
    inside = np.array([[0.0], [2.0]])
    outside = np.array([[10.0], [14.0]])
    assert compare_variances(inside, outside, seed=0)[0] == pytest.approx(1 - 2 / 8)


def test_the_same_pixels_are_certain_and_random_ones_are_not():
    rng = np.random.default_rng(0)
    outside = rng.normal(0, 1, (30, 50))
    same, p = compare_variances(np.ones((12, 50)) + rng.normal(0, 0.01, (12, 50)), outside, seed=0)
    assert same > 0.99 and p < 0.001
    values = [compare_variances(rng.normal(0, 1, (12, 50)), outside, seed)[1] for seed in range(20)]
    assert np.mean(np.array(values) < 0.05) <= 0.2


def test_keeps_the_items_that_show_what_the_others_show():
    rng = np.random.default_rng(0)
    pixels = rng.normal(0, 0.1, (14, 60))
    pixels[[3, 9]] = rng.normal(0, 1, (2, 60))
    assert np.flatnonzero(~find_alike(pixels)).tolist() == [3, 9]
    assert find_alike(np.ones((5, 4))).all()


def test_a_word_is_at_its_usual_place():
    assert find_common_place([{0}, {0}, {1}, {9}], [10, 12, 14, 16]) == ("start", 0, 0.75)
    assert find_common_place([{9}, {11}, {13}, {2}], [10, 12, 14, 16]) == ("end", 0, 0.75)


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "anywhere"])
def test_only_a_fixed_place_is_certain(tmp_path, fixed):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(24):
        words = [f"w{n}" for n in rng.integers(0, 900, 12)]
        words.insert(0 if fixed else int(rng.integers(0, 13)), "tag")
        rows.append(text_row(f"{i:02}", i, words, [9 if word == "tag" else 0.1 for word in words]))
    (cluster,) = find_clusters(sample(tmp_path, rows)["class 0"])
    value, p = measure_fixed_place(cluster, seed=0)
    assert (value > 0.9 and p < 0.01) if fixed else (value < 0.3 and p > 0.05)


def test_other_places_have_the_same_shape_and_do_not_overlap():
    region = np.zeros((6, 6), dtype=bool)
    region[4:, :2] = True
    for place in draw_other_places(region, 0, "a"):
        assert place.sum() == region.sum()
        assert not (place & region).any()
    assert [p.tolist() for p in draw_other_places(region, 0, "a")] == [
        p.tolist() for p in draw_other_places(region, 0, "a")
    ]


# --- suspicion --------------------------------------------------------------------------------------------------------

STRONG = Effect(0.6, 0.1, 0.4, 0.6, p=0.0001, items=20)
NONE = Effect(0.01, 0.0, -0.01, 0.03, p=0.4, items=20)
SAME, DIFFERENT = Sameness(0.9, 0.0001), Sameness(0.05, 0.4)


@pytest.fixture
def finding(tmp_path):
    clusters = find_clusters(sample(tmp_path, corner_rows())["class 0"])
    cluster = next(one for one in clusters if one.region is not None and one.region[7, 0])
    return Finding(cluster, exclusivity=0.9, hiding=STRONG, inserting=NONE, sameness=SAME)


def test_all_conditions_together_are_suspicious(finding):
    (found,) = correct_findings([finding])
    assert found.is_suspicious
    assert found.score == pytest.approx(0.5 * 0.9 * 0.9)


@pytest.mark.parametrize(
    "changed",
    [
        {"exclusivity": 0.4},
        {"exclusivity": None},
        {"hiding": NONE},
        {"hiding": replace(STRONG, change=0.15)},
        {"hiding": replace(STRONG, p=0.2)},
        {"sameness": DIFFERENT},
        {"sameness": replace(SAME, p=0.2)},
        {"sameness": None},
        {"sameness": Sameness(0.7, 0.0001, smallest=0.8)},
        {"off_object": 0.3},
        {"hiding": None, "inserting": None},
    ],
    ids=["other classes", "one class", "no effect", "small", "chance", "differs", "same by chance", "unknown",
         "place of a word", "the object", "untested"],
)  # fmt: skip
def test_one_condition_less_is_not_suspicious(finding, changed):
    assert not correct_findings([replace(finding, **changed)])[0].is_suspicious


def test_inserting_is_enough_where_hiding_does_nothing(finding):
    """An object that is also there keeps the answer right; the tag alone still makes it."""
    assert correct_findings([replace(finding, hiding=NONE, inserting=STRONG)])[0].is_suspicious


def test_a_mask_confirms_or_clears(finding):
    (off,) = correct_findings([replace(finding, off_object=0.8)])
    assert off.is_suspicious and off.score == pytest.approx(0.5 * 0.9 * 0.9 * 0.8)


def test_the_most_suspicious_is_first_and_more_clusters_need_more_evidence(finding):
    weak = replace(finding, hiding=replace(STRONG, p=0.02))
    assert correct_findings([weak])[0].is_suspicious
    many = correct_findings([weak, *[replace(finding, hiding=NONE, sameness=DIFFERENT)] * 20, finding])
    assert [one.is_suspicious for one in many[:2]] == [True, False]
    assert many[0].hiding.p == 0.0001


def test_effects_are_paired_and_corrected():
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 1, 30)
    effect = measure_effect(base + 0.2, base, seed=0)
    assert effect.difference == pytest.approx(0.2)
    assert effect.p < 0.001
    assert measure_effect(base, rng.permutation(base), seed=0).p > 0.05
    adjusted = adjust_effects([effect, None, replace(effect, p=0.03)])
    assert [one and round(one.adjusted_p, 5) for one in adjusted] == [round(2 * effect.p, 5), None, 0.03]
