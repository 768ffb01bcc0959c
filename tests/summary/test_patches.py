"""Detectors of alike patches: planted evidence is found where it is, alone, whatever the order of the items."""

import numpy as np
import pytest
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.patches import (
    KEPT,
    Describer,
    PatchStates,
    cluster_points,
    drop_strays,
    find_detectors,
    fit_describer,
    set_apart,
)

CHANNELS = 12


def make_states(items, marked, seed=0, space=0):
    """Random states of unit length in two classes; in one description, a patch of the marked items is the same."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(items, KEPT, 2, CHANNELS))
    if len(marked):
        states[marked, 2, space] = 6 * np.eye(CHANNELS)[0] + 0.3 * rng.normal(size=(len(marked), CHANNELS))
    states /= np.linalg.norm(states, axis=-1, keepdims=True)
    names = ["cat" if i < items // 2 else "dog" for i in range(items)]
    rows = tuple(
        BulkRow(**image_row(f"{i:03}", i, np.ones(36), (6, 6), target=int(name == "dog"), target_name=name))
        for i, name in enumerate(names)
    )
    usual = rng.normal(size=(200, 2, CHANNELS))
    usual /= np.linalg.norm(usual, axis=-1, keepdims=True)
    describer = Describer(np.zeros((36, CHANNELS)), np.eye(CHANNELS))
    return PatchStates(rows, np.tile(np.arange(KEPT), (items, 1)), states, usual, (describer, describer))


@pytest.mark.parametrize("space", [0, 1], ids=["late", "early"])
def test_planted_evidence_is_found_first_and_in_its_items_alone(space):
    marked = np.arange(0, 60, 2)
    first = find_detectors("cat", make_states(120, marked, space=space), 0)[0]
    shown = np.flatnonzero(first.shown[:60])
    assert set(marked) <= set(shown.tolist()) and len(shown) <= len(marked) + 7
    assert first.shown[60:].mean() <= 0.05
    assert first.uniformity[space] > 0.8 > 0.4 > first.uniformity[1 - space]


def test_noise_is_less_uniform():
    marked = find_detectors("cat", make_states(120, np.arange(0, 60, 2)), 0)[0]
    natural = find_detectors("cat", make_states(120, np.arange(0)), 0)
    assert max(marked.uniformity) > max((max(one.uniformity) for one in natural), default=0.0)


def test_one_mark_is_one_detector():
    found = find_detectors("cat", make_states(120, np.arange(0, 60, 2)), 0)
    own = np.arange(120) < 60
    for i, one in enumerate(found):
        for other in found[:i]:
            assert (one.shown & other.shown & own).sum() < 0.6 * ((one.shown | other.shown) & own).sum()


def test_a_class_alone_has_detectors_too():
    known = make_states(60, np.arange(0, 30, 2))
    rows = tuple(row for row in known.rows if row.class_name == "cat")
    alone = PatchStates(rows, known.patches[:30], known.states[:30], known.usual, known.describers)
    assert find_detectors("cat", alone, 0)


def test_the_threshold_is_that_of_otsu_and_few_others_reach_it():
    values = np.random.default_rng(0).normal(size=40) + np.repeat([0, 5], 20)
    ordered = np.sort(values)

    def between(count):
        low, high = ordered[:count], ordered[count:]
        return len(low) * len(high) * (high.mean() - low.mean()) ** 2

    best = max(range(1, 40), key=between)
    assert set_apart(values[20:], values[:20]) == pytest.approx((ordered[best - 1] + ordered[best]) / 2)
    assert set_apart(values[:20], values[20:]) >= np.quantile(values[20:], 0.96)


def test_strays_are_dropped_and_a_natural_cluster_stays_whole():
    rng = np.random.default_rng(0)
    natural = rng.normal(size=(200, 24))
    assert len(drop_strays(natural)) >= 198
    tight = 0.1 * natural[:20]
    assert drop_strays(np.concatenate([tight, natural[20:30] + 3])).tolist() == list(range(20))


def test_k_means_separates_distant_points():
    points = np.concatenate([np.random.default_rng(i).normal(10 * i, 0.1, (20, 3)) for i in range(3)])
    clusters = cluster_points(points, 3, 0)
    assert [len(set(clusters[20 * i : 20 * i + 20])) for i in range(3)] == [1, 1, 1]
    assert len(set(clusters)) == 3


def test_the_describer_removes_positions_and_whitens():
    rng = np.random.default_rng(0)
    scales = np.array([10.0, 1.0, 1.0])
    states = rng.normal(size=(200, 4, 3)) * scales + 100 * np.arange(4)[:, None]
    described = fit_describer(states).describe(states, np.arange(4))
    assert np.linalg.norm(described, axis=-1) == pytest.approx(1)
    assert np.abs(described.mean((0, 1))).max() < 0.1
    spread = described.reshape(-1, 3).std(0)
    assert spread.max() < 2 * spread.min(), "one direction would dominate otherwise"
