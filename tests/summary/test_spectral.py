"""Spectral clustering: by hand, against the definition, and whatever the order of the items."""

from itertools import combinations

import numpy as np
import pytest
from scipy.linalg import eigh

from whyformer._summary.spectral import (
    cluster_rows,
    count_groups,
    decompose_laplacian,
    find_groups,
    make_affinity,
    measure_distances,
    split_component,
)


def two_blobs(count=12, apart=10.0, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0, 1, (count, 2)), rng.normal(0, 1, (count, 2)) + apart])


def partition(groups):
    """Which items are together, whatever the numbers of the groups."""
    return {frozenset(np.flatnonzero(groups == group).tolist()) for group in set(groups.tolist())}


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_eigenvalues_of_two_triangles():
    """A triangle has the eigenvalues 0, 3/2, 3/2; two separate ones have two zeros."""
    triangle = np.ones((3, 3)) - np.eye(3)
    both = np.kron(np.eye(2), triangle)
    values, _ = decompose_laplacian(both, 6)
    np.testing.assert_allclose(values, [0, 0, 1.5, 1.5, 1.5, 1.5], atol=1e-12)


def test_eigenvalues_of_two_edges_joined_in_a_path():
    """The path of four nodes: 1 - cos(pi k / 3)."""
    path = np.diag([1.0, 1, 1], 1) + np.diag([1.0, 1, 1], -1)
    values, _ = decompose_laplacian(path, 4)
    np.testing.assert_allclose(values, [0, 0.5, 1.5, 2], atol=1e-12)


def test_neighbours_on_a_line():
    """Of 0, 1, 3 and 7 each is joined to its nearest: 0-1, 1-0, 3-1, 7-3."""
    points = np.array([[0.0], [1], [3], [7]])
    affinity = make_affinity(measure_distances(points), 1)
    assert affinity.tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("values", "count"),
    [([0, 0.01, 0.4, 0.5], 2), ([0, 0.01, 0.02, 0.5], 3), ([0, 0.9, 0.95, 1.0], 1), ([0], 1)],
    ids=["two", "three", "no good cut", "one item"],
)
def test_counts_groups_by_the_gap(values, count):
    assert count_groups(np.array(values, dtype=float)) == count


def test_two_blobs_are_two_groups():
    groups, _ = find_groups(two_blobs())
    assert groups.tolist() == [0] * 12 + [1] * 12


def test_two_groups_joined_by_one_edge_are_split_there():
    joined = np.kron(np.eye(2), np.ones((10, 10)) - np.eye(10))
    joined[9, 10] = joined[10, 9] = 1
    groups, values = split_component(joined)
    assert 1e-6 < values[1] < 0.1
    assert partition(groups) == {frozenset(range(10)), frozenset(range(10, 20))}


def test_everything_the_same_is_one_group():
    groups, _ = find_groups(np.ones((20, 3)))
    assert groups.tolist() == [0] * 20


def test_few_items_are_no_group():
    assert find_groups(np.ones((7, 3)))[0].tolist() == [-1] * 7
    assert find_groups(np.ones((1, 3)))[0].tolist() == [-1]


def test_with_a_limit_nearer_neighbours_weigh_more():
    points = np.array([[0.0], [1], [3]])
    affinity = make_affinity(measure_distances(points), 2, limit=4.0)
    np.testing.assert_allclose(affinity, [[0, 15 / 16, 7 / 16], [15 / 16, 0, 3 / 4], [7 / 16, 3 / 4, 0]])


def test_items_that_are_nearly_the_same_are_not_split():
    points = np.random.default_rng(0).normal(0, 0.01, (40, 5))
    assert find_groups(points, limit=1.0)[0].tolist() == [0] * 40


def test_items_beyond_the_limit_are_never_joined():
    points = np.eye(20)  # every two are sqrt(2) apart
    assert (find_groups(points, limit=np.sqrt(2))[0] == -1).all()
    assert (find_groups(points)[0] == 0).all()


# --- the definition, written slowly -----------------------------------------------------------------------------------


def test_agrees_with_the_definition_written_slowly():
    points = two_blobs(count=9, apart=3.0, seed=4)
    count, k = len(points), 4
    affinity = np.zeros((count, count))
    for i in range(count):
        others = sorted((j for j in range(count) if j != i), key=lambda j: np.linalg.norm(points[i] - points[j]))
        for j in others[:k]:
            affinity[i, j] = affinity[j, i] = 1
    np.testing.assert_array_equal(make_affinity(measure_distances(points), k), affinity)
    laplacian = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            edge = affinity[i, j] / np.sqrt(affinity[i].sum() * affinity[j].sum())
            laplacian[i, j] = (i == j) - edge
    values, vectors = decompose_laplacian(affinity, 5)
    expected = np.sort(np.linalg.eigvals(laplacian).real)
    np.testing.assert_allclose(values, expected[:5], atol=1e-10)
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-10)


def test_two_means_are_the_best_of_all_partitions():
    """k-means on the embedding finds what trying every partition finds."""
    affinity = make_affinity(measure_distances(two_blobs(count=5, apart=4.0, seed=1)), 3)
    vectors = eigh(np.eye(10) - affinity / np.sqrt(np.outer(affinity.sum(1), affinity.sum(1))))[1][:, :2]
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def spread(chosen):
        parts = [rows[list(chosen)], np.delete(rows, list(chosen), axis=0)]
        return sum(((part - part.mean(0)) ** 2).sum() for part in parts)

    best = min((set(c) for size in range(1, 6) for c in combinations(range(10), size)), key=spread)
    assert frozenset(best) in partition(cluster_rows(vectors, 2))


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_items_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    points = np.concatenate([rng.normal(0, 1, (30, 4)), rng.normal(2.5, 1, (20, 4)), rng.normal(-3, 0.5, (12, 4))])
    order = rng.permutation(len(points))
    groups, _ = find_groups(points)
    moved, _ = find_groups(points[order])
    assert partition(moved) == partition(groups[order])


def test_copies_of_an_item_are_in_its_group():
    points = two_blobs(count=15, apart=6.0)
    groups, _ = find_groups(np.concatenate([points, points]))
    assert groups[:30].tolist() == groups[30:].tolist()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6], ids=["tiny", "one", "huge"])
def test_the_scale_does_not_matter(scale):
    points = two_blobs(count=20, apart=4.0)
    assert partition(find_groups(points * scale)[0]) == partition(find_groups(points)[0])
