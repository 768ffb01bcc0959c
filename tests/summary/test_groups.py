"""Groups of alike patches: a planted uniform cluster is found, whatever the order of the items; noise has none."""

import numpy as np
import pytest
import torch
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.groups import cluster_points, drop_strays, find_patch_groups, split_values
from whyformer._summary.states import KEPT, Describer, PatchStates, fit_describer

CHANNELS = 24


def make_evidence(items, marked, seed=0):
    """Random states of unit length; the first patch of the marked items is nearly the same."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(items, KEPT, CHANNELS))
    states[marked, 0] = 6 * np.eye(CHANNELS)[0] + 0.3 * rng.normal(size=(len(marked), CHANNELS))
    states /= np.linalg.norm(states, axis=-1, keepdims=True)
    rows = tuple(BulkRow(**image_row(f"{i:03}", i, np.ones(36), (6, 6))) for i in range(items))
    patches = np.tile(np.arange(KEPT), (items, 1))
    describer = Describer(np.zeros((36, CHANNELS)), np.eye(CHANNELS))
    return PatchStates(rows, patches, states, describer, torch.zeros(items, 3, 4, 4))


def test_a_planted_cluster_is_the_most_uniform_and_shown_by_its_items_alone():
    marked = np.arange(0, 60, 3)
    evidence = make_evidence(60, marked)
    first, *others = find_patch_groups("cat", evidence, 0)
    value, low, high = first.uniformity
    assert low <= value <= high and value > 0.9
    assert all(one.uniformity[0] < 0.6 for one in others)
    assert np.flatnonzero(first.find_shown(evidence)).tolist() == marked.tolist()


def test_without_a_planted_cluster_nothing_is_uniform():
    assert all(one.uniformity[0] < 0.5 for one in find_patch_groups("cat", make_evidence(60, np.arange(0)), 0))


def test_the_order_of_items_does_not_matter_for_a_clear_cluster():
    evidence = make_evidence(60, np.arange(0, 60, 3))
    order = np.random.default_rng(1).permutation(60)
    first = find_patch_groups("cat", evidence, 0)[0]
    mixed = find_patch_groups("cat", evidence.pick(order), 0)[0]
    assert mixed.uniformity[0] == pytest.approx(first.uniformity[0], abs=1e-9)
    assert (mixed.find_shown(evidence) == first.find_shown(evidence)).all()


def test_strays_are_dropped_and_a_natural_cluster_stays_whole():
    rng = np.random.default_rng(0)
    natural = rng.normal(size=(200, CHANNELS))
    assert len(drop_strays(natural)) >= 198
    tight = 0.1 * natural[:20]
    assert drop_strays(np.concatenate([tight, natural[20:30] + 3])).tolist() == list(range(20))


def test_a_cluster_of_few_items_is_dropped():
    evidence = make_evidence(60, np.arange(5))
    assert all(one.uniformity[0] < 0.9 for one in find_patch_groups("cat", evidence, 0))


def test_parts_of_one_mark_are_merged():
    evidence = make_evidence(60, np.arange(20))
    second = 6 * np.eye(CHANNELS)[1] + 0.3 * np.random.default_rng(2).normal(size=(20, CHANNELS))
    evidence.states[:20, 1] = second / np.linalg.norm(second, axis=1, keepdims=True)
    first = find_patch_groups("cat", evidence, 0)[0]
    assert len(first.parts) == 1 and abs(first.centre @ first.parts[0].centre) < 0.3


def test_split_values_is_otsu_by_definition():
    values = np.random.default_rng(0).normal(size=40) + np.repeat([0, 5], 20)
    ordered = np.sort(values)

    def between(count):
        low, high = ordered[:count], ordered[count:]
        return len(low) * len(high) * (high.mean() - low.mean()) ** 2

    best = max(range(1, 40), key=between)
    assert split_values(values) == pytest.approx((ordered[best - 1] + ordered[best]) / 2)


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
