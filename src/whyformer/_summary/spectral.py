r"""Spectral clustering: groups of items that are connected through their nearest neighbours.

Every item is joined to its k nearest neighbours, and to all items within a fifth of the limit, so that a class in
which all items have the same evidence is not split. The weight W of a joined pair (either is a neighbour of the other)
at distance d is 1 - (d / limit)^2, where items at the limit have nothing in common; without a limit it is 1. With the
degrees D of this graph, the first eigenvalues of the normalised Laplacian say how many groups there are: a graph of c
components has exactly c eigenvalues 0, and c nearly separate groups have c small ones.

$$ L = I - D^{-1/2} W D^{-1/2}, \qquad c = \arg\max_{i} (\lambda_{i+1} - \lambda_i) $$

The rows of the first c eigenvectors, scaled to length one, are clustered by k-means (von Luxburg 2007,
arXiv:0711.0189; Ng, Jordan & Weiss, NeurIPS 2001). Lapuschkin et al. 2019 (arXiv:1902.10178) cluster relevance maps in
this way and call it spectral relevance analysis.

Components of the graph are split one by one, which gives the same groups as the zeros of the whole Laplacian, however
many there are; fewer than eight items are no group. The first gap of a connected graph says only that it is connected,
so it does not count: a component is split in two or more if its second eigenvalue is below 0.5, that is if it has a cut
with few edges (Cheeger's inequality), and not at all otherwise.

Where we differ: edges have weights where a limit is known; neighbours at equal distance are all joined, and k-means
starts from the point farthest from the mean, then the point farthest from all starts so far. So the groups depend
neither on a seed nor on the order of the items.
"""

import math

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

MAX_GROUPS = 8  # in a component
LARGEST_CUT = 0.5  # second eigenvalue
MIN_ITEMS = 8  # in a group
KMEANS_ROUNDS = 100
ALIKE = 0.2  # of the limit; items this near are always joined
SAME = 1e-9  # distances that differ by less, relative to the largest, are equal


def find_groups(
    points: np.ndarray, neighbours: int | None = None, *, limit: float = np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """[item]: the number of each item's group, the largest first, -1 for items in no group; and the eigenvalues.

    limit: the distance of items that have nothing in common; they are never joined. A group needs at least MIN_ITEMS
    items. The eigenvalues are the first ones of the largest component.
    """
    distances = measure_distances(points)
    affinity = make_affinity(distances, neighbours or choose_neighbours(len(points)), limit)
    _, components = connected_components(csr_array(affinity), directed=False)
    groups, spectra = np.full(len(points), -1, dtype=np.int64), [np.zeros(0)]
    for component in np.unique(components):
        members = np.flatnonzero(components == component)
        if len(members) >= MIN_ITEMS:
            inner, values = split_component(affinity[np.ix_(members, members)])
            groups[members] = inner + groups.max() + 1
            spectra.append(values)
    sizes = np.bincount(groups[groups >= 0], minlength=1)
    groups[(groups >= 0) & (sizes[groups] < MIN_ITEMS)] = -1
    return number_by_size(groups), max(spectra, key=len)


def split_component(affinity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[item]: the groups of one connected component, from the gap in its eigenvalues, and these eigenvalues."""
    most = min(MAX_GROUPS, len(affinity) // MIN_ITEMS)
    values, vectors = decompose_laplacian(affinity, most + 1)
    count = count_groups(values)
    return cluster_rows(vectors[:, :count], count), values


def choose_neighbours(count: int) -> int:
    """k grows with the logarithm of the number of items, so that the graph stays sparse but connected."""
    return max(3, math.ceil(math.log2(max(count, 1))))


def measure_distances(points: np.ndarray) -> np.ndarray:
    """[item item]: Euclidean distances, rounded so that equal ones are equal on every machine."""
    distances = cdist(points, points)
    largest = distances.max(initial=0.0)
    return np.round(distances / largest, 9) * largest if largest else distances


def make_affinity(distances: np.ndarray, neighbours: int, limit: float = np.inf) -> np.ndarray:
    """[item item]: the weight where one item is among the nearest neighbours of the other, otherwise 0."""
    if len(distances) < 2:
        return np.zeros_like(distances)
    others = distances + np.diag(np.full(len(distances), np.inf))
    last = min(neighbours, len(others) - 1) - 1
    reach = np.partition(others, last, axis=1)[:, last, None]
    is_alike = others <= ALIKE * limit if np.isfinite(limit) else np.zeros_like(others, dtype=bool)
    near = is_alike | ((others <= reach * (1 + SAME)) & (others < limit * (1 - SAME)))
    return np.where(near | near.T, 1 - np.square(distances / limit), 0.0)


def decompose_laplacian(affinity: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` smallest eigenvalues of the normalised Laplacian, and their eigenvectors [item eigenvector]."""
    scale = 1 / np.sqrt(affinity.sum(1).clip(min=1e-12))
    laplacian = np.eye(len(affinity)) - scale[:, None] * affinity * scale
    values, vectors = eigh(laplacian, subset_by_index=[0, count - 1])
    return values.clip(min=0.0), vectors


def count_groups(values: np.ndarray) -> int:
    """The number of eigenvalues of a connected graph before the largest gap; one if it has no good cut."""
    gaps = np.round(np.diff(values), 9)
    return int(gaps[1:].argmax()) + 2 if len(gaps) > 1 and values[1] < LARGEST_CUT else 1


def cluster_rows(vectors: np.ndarray, count: int) -> np.ndarray:
    """[item]: k-means on the rows, scaled to length one."""
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
    centres = rows[choose_starts(rows, count)]
    groups = np.full(len(rows), -1)
    for _ in range(KMEANS_ROUNDS):
        nearest = np.round(cdist(rows, centres), 9).argmin(1)
        if (nearest == groups).all():
            break
        groups = nearest
        for group in np.unique(groups):
            centres[group] = rows[groups == group].mean(0)
    return groups


def choose_starts(rows: np.ndarray, count: int) -> list[int]:
    """Points far from each other: each next one is the farthest from those chosen."""
    chosen = [int(np.round(np.linalg.norm(rows - rows.mean(0), axis=1), 9).argmax())]
    nearest = np.round(np.linalg.norm(rows - rows[chosen[0]], axis=1), 9)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.round(np.linalg.norm(rows - rows[chosen[-1]], axis=1), 9))
    return chosen


def number_by_size(groups: np.ndarray) -> np.ndarray:
    """The groups numbered from the largest to the smallest; equal sizes by their first item."""
    names, first, sizes = np.unique(groups[groups >= 0], return_index=True, return_counts=True)
    order = sorted(range(len(names)), key=lambda i: (-sizes[i], first[i]))
    ranks = {-1: -1} | {int(names[i]): rank for rank, i in enumerate(order)}
    return np.array([ranks[int(group)] for group in groups], dtype=np.int64)
