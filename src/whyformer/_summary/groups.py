r"""Groups of alike evidence: the patches that the items of one class are decided by, clustered by their states.

k-means (Lloyd 1982, started as in Arthur & Vassilvitskii 2007) on the states of the five most relevant patches of each
item of a predicted class. The *uniformity* of a cluster compares its variance with that of all these patches:

$$ u = 1 - v / v_{class} $$

The eyes of animals make a cluster too, but they differ more from each other than the copies of a logo do.

The clusters do not depend on the order of the items: the points are sorted before the starts are drawn. k-means gives
every point to a cluster, so that a tight one gathers what belongs nowhere; members much farther from the middle of
their cluster than half of the others are (STRAY) are taken out of it before it is measured.

An item *shows* a cluster if one of its kept patches is as near to the centre as the members are, and above the
threshold that splits the items of the class best into near and far ones (Otsu 1979). Clusters that the same items show
are parts of one mark, and are merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from whyformer._plain.statistics import bootstrap
from whyformer._summary.states import TOP, PatchStates

CLUSTERS = 12  # in a class
STARTS, ROUNDS = 4, 50  # of k-means
MIN_ITEMS, MIN_SHARE = 8, 0.1  # of the class, in a cluster
STRAY = 2.5  # times the median of the squared distances to the middle; of natural clusters hardly any is as far
SHARED = 0.6  # of the items, to be merged


@dataclass(frozen=True, eq=False)
class StateGroup:
    """A cluster of patches of one class."""

    name: str  # of the class
    centre: np.ndarray  # [direction], of unit length
    nearest: float  # the cosine to the centre from which on a patch shows it
    uniformity: tuple[float, float, float]  # with its 95 % interval
    members: np.ndarray  # items of the class with a patch in it, by number
    parts: tuple["StateGroup", ...] = ()  # clusters that were merged into this one

    def match(self, states: np.ndarray) -> np.ndarray:
        """[...] from [... direction]: whether a patch shows this group."""
        return np.asarray(states @ self.centre >= self.nearest)

    def match_parts(self, states: np.ndarray) -> np.ndarray:
        """The same for this group or any part of it."""
        return np.asarray(np.stack([one.match(states) for one in (self, *self.parts)]).any(0))

    def find_shown(self, evidence: PatchStates) -> np.ndarray:
        """[item] of bool: which items show it."""
        return np.asarray(self.match(evidence.states).any(1))


def find_patch_groups(name: str, evidence: PatchStates, seed: int) -> list[StateGroup]:
    """The clusters of a class, the most uniform first."""
    points = evidence.states[:, :TOP].astype(np.float64)
    items = len(points)
    flat, owner = points.reshape(-1, points.shape[-1]), np.repeat(np.arange(items), points.shape[1])
    total = measure_variance(flat)
    if total <= 0:
        return []
    found = cluster_points(flat, min(CLUSTERS, max(2, items // 3)), seed)
    groups = []
    for number in range(int(found.max()) + 1):
        inside = np.flatnonzero(found == number)
        inside = inside[drop_strays(flat[inside])]
        members = np.unique(owner[inside])
        if len(members) >= max(MIN_ITEMS, MIN_SHARE * items):
            one = make_group(name, flat[inside], owner[inside], members, total, seed)
            best = (evidence.states @ one.centre).max(1)
            groups.append(replace(one, nearest=max(one.nearest, split_values(best))))
    return merge_groups(sorted(groups, key=lambda one: -one.uniformity[0]), evidence)


def make_group(
    name: str, points: np.ndarray, owner: np.ndarray, members: np.ndarray, total: float, seed: int
) -> StateGroup:
    mean = points.mean(0)
    centre = mean / max(float(np.linalg.norm(mean)), 1e-12)
    distances = np.square(points - mean).sum(1) / (1 - 1 / max(len(points), 2))
    number = np.searchsorted(members, owner)
    by_item = np.bincount(number, distances) / np.bincount(number)
    _, low, high = bootstrap(by_item, seed)
    value = 1 - float(by_item.mean()) / total
    nearest = float((points @ centre).min()) - 1e-9
    return StateGroup(name, centre, nearest, (value, 1 - high / total, 1 - low / total), members)


def merge_groups(groups: Sequence[StateGroup], evidence: PatchStates) -> list[StateGroup]:
    """The same with those that are shown by mostly the same items as a more uniform one as its parts."""
    heads: list[tuple[StateGroup, np.ndarray, list[StateGroup]]] = []
    for one in groups:
        shown = one.find_shown(evidence)
        for _, other, parts in heads:
            if (shown & other).sum() >= SHARED * (shown | other).sum():
                parts.append(one)
                break
        else:
            heads.append((one, shown, []))
    return [replace(head, parts=tuple(parts)) for head, _, parts in heads]


def split_values(values: np.ndarray) -> float:
    """The threshold with the largest variance between the values on its two sides (Otsu 1979)."""
    ordered = np.sort(values)
    counts = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    low, high = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (len(ordered) - counts)
    between = counts * (len(ordered) - counts) * np.square(high - low)
    best = int(np.round(between, 9).argmax())
    return float(ordered[best] + ordered[best + 1]) / 2


def measure_variance(points: np.ndarray) -> float:
    """The mean squared distance to the mean."""
    return float(np.square(points - points.mean(0)).sum(1).sum() / max(len(points) - 1, 1))


def drop_strays(points: np.ndarray) -> np.ndarray:
    """The numbers of the points that are not far from the middle of the others."""
    kept = np.arange(len(points))
    while True:
        distances = np.square(points[kept] - np.median(points[kept], axis=0)).sum(1)
        is_near = distances <= STRAY * np.median(distances) + 1e-12
        if is_near.all():
            return kept
        kept = kept[is_near]


def cluster_points(points: np.ndarray, count: int, seed: int) -> np.ndarray:
    """[point]: the number of its cluster, from the best of several starts."""
    rng = np.random.default_rng(seed)
    order = np.lexsort(np.round(points, 9).T)
    ordered = points[order]
    tries = [run_kmeans(ordered, choose_starts(ordered, count, rng)) for _ in range(STARTS)]
    clusters = np.empty(len(points), np.int64)
    clusters[order] = min(tries, key=lambda one: one[1])[0]
    return clusters


def run_kmeans(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    squares = np.square(points).sum(1)
    clusters = np.full(len(points), -1)
    distances = np.zeros((len(points), len(centres)))
    for _ in range(ROUNDS):
        distances = squares[:, None] - 2 * points @ centres.T + np.square(centres).sum(1)
        nearest = np.round(distances, 9).argmin(1)
        if (nearest == clusters).all():
            break
        clusters = nearest
        for number in np.unique(clusters):
            centres[number] = points[clusters == number].mean(0)
    return clusters, float(distances.min(1).sum())


def choose_starts(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """[count channel]: each next one is drawn by its squared distance to those chosen."""
    chosen = [points[rng.integers(len(points))]]
    nearest = np.square(points - chosen[0]).sum(1)
    while len(chosen) < count:
        if nearest.sum() <= 1e-12:
            break
        chosen.append(points[rng.choice(len(points), p=nearest / nearest.sum())])
        nearest = np.minimum(nearest, np.square(points - chosen[-1]).sum(1))
    return np.array(chosen)
