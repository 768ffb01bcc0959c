r"""What patches of images look like: to the model late, to the model early, and where evidence recurs.

A patch is described twice: by the hidden state one block before the last, which says what the model took it for, and
by the state after the first block, which says what is there. Both minus the median of that position (which removes the
position embedding), whitened along the main directions, scaled to unit length.

The most relevant patches of the items of a class are clustered (k-means, Lloyd 1982, started as in Arthur &
Vassilvitskii 2007) once by each description. A cluster is sharpened to a *detector*: the linear discriminant (Fisher
1936) between its members and all other patches, in both descriptions at once, made anew from what it finds itself. An
item shows the evidence if one of its patches exceeds what items of other classes seldom reach, and the threshold that
splits all items best (Otsu 1979). The *uniformity* of what is found compares its variance with that of all patches:

$$ u = 1 - v / v_{class} $$

The eyes of animals make a cluster too, but they differ more from each other than the copies of a logo do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from whyformer._engine import Probe, record
from whyformer._model import EncodedBatch, Model, OneInput
from whyformer._runs.parts import BulkRow
from whyformer._summary.inputs import InputReader, to_array
from whyformer.errors import InputError

TOP, KEPT = 5, 16  # most relevant patches: those clustered, and those kept to see who else shows the evidence
FOR_MEDIANS = 256  # images
DIRECTIONS, LEAST_SPREAD = 64, 0.1  # of largest variance; added to each, so that directions without variance stay small
BATCH = 32
EARLY, LATE = 1, -2  # hidden states: after the first block, and before the last
CLUSTERS, STARTS, ROUNDS = 12, 3, 50  # of k-means, in a class
MIN_ITEMS, MIN_SHARE = 8, 0.1  # of the class, in a cluster
STRAY = 2.5  # times the median of the squared distances to the middle; of natural clusters hardly any is as far
BY_CHANCE, SHARPENED = 0.96, 5  # quantile over items of other classes, of the best match in each; rounds
SHARED = 0.6  # of the items: it is the same evidence
SHRINKAGE, MOST_PATCHES = 0.3, 20_000  # of the covariance of patches; from which it is computed


States: TypeAlias = tuple[np.ndarray, np.ndarray]  # late and early


@dataclass(frozen=True, eq=False)
class Describer:
    """Turns hidden states [... channel] of patches into descriptions of unit length."""

    medians: np.ndarray  # [patch channel]
    basis: np.ndarray  # [channel direction], scaled

    def describe(self, states: np.ndarray, patches: np.ndarray) -> np.ndarray:
        described = (states - self.medians[patches]) @ self.basis
        return described / np.linalg.norm(described, axis=-1, keepdims=True).clip(min=1e-12)


def fit_describer(states: np.ndarray) -> Describer:
    """From the states [image patch channel] of some images."""
    medians = np.median(states, axis=0)
    centred = (states - medians).reshape(-1, states.shape[-1]).astype(np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    spreads = np.sqrt(values[::-1][:DIRECTIONS].clip(min=0.0))
    return Describer(medians, vectors[:, ::-1][:, :DIRECTIONS] / (spreads + LEAST_SPREAD * spreads[0] + 1e-12))


@dataclass(frozen=True, eq=False)
class PatchStates:
    """Descriptions of the most relevant patches of images, the most relevant first."""

    rows: tuple[BulkRow, ...]
    patches: np.ndarray  # [item KEPT], numbered row by row
    states: np.ndarray  # [item KEPT 2 direction]: late, early
    usual: np.ndarray  # [patch 2 direction]: of patches that are not relevant, in any class
    describers: tuple[Describer, Describer]


def read_patch_states(rows: Sequence[BulkRow], reader: InputReader) -> PatchStates | None:
    """The states of these images; None if none of them can be read, or the model has no state for each patch."""
    kept: list[BulkRow] = []
    places: list[np.ndarray] = []
    found: list[States] = []
    whole: list[States] = []
    usual: list[np.ndarray] = []
    for some, images in iterate_image_batches(rows, reader):
        states = run_states(reader.model, reader.model.encode(images))
        scores = np.stack([row.scores for row in some if row.scores is not None])
        if states is None or states[0].shape[1] != scores.shape[1]:
            return None
        order = np.argsort(-scores, axis=1, kind="stable")
        if len(kept) < FOR_MEDIANS:
            whole.append(states)
            usual.append(order[:, -(scores.shape[1] // 2) :: 5])
        kept += some
        places.append(order[:, :KEPT])
        found.append(pick_patches(states, order[:, :KEPT]))
    if not kept:
        return None
    late, early = (np.concatenate(one) for one in zip(*whole, strict=True))
    describers = fit_describer(late), fit_describer(early)
    low = np.concatenate(usual)
    rest = describe_both(describers, pick_patches((late, early), low), low)
    described = [describe_both(describers, states, where) for states, where in zip(found, places, strict=True)]
    return PatchStates(
        tuple(kept), np.concatenate(places), np.concatenate(described), rest.reshape(-1, *rest.shape[-2:]), describers
    )


def pick_patches(states: States, patches: np.ndarray) -> States:
    """The states [item patch channel] at these patches of each item."""
    late, early = (np.take_along_axis(one, patches[..., None], 1) for one in states)
    return late, early


def describe_both(describers: tuple[Describer, Describer], states: States, patches: np.ndarray) -> np.ndarray:
    """[... 2 direction]"""
    pairs = zip(describers, states, strict=True)
    return np.stack([one.describe(some, patches) for one, some in pairs], -2).astype(np.float32)


def iterate_image_batches(
    rows: Sequence[BulkRow], reader: InputReader
) -> Iterator[tuple[list[BulkRow], list[OneInput]]]:
    """The rows that can be read, with their inputs; those of one grid, which the first row sets."""
    same = [row for row in rows if row.grid == rows[0].grid]
    for start in range(0, len(same), BATCH):
        some, images = reader.load(same[start : start + BATCH], BATCH)
        if some:
            yield some, images


def run_states(model: Model, encoded: EncodedBatch) -> States | None:
    """[item patch channel] late and early; None where the model has no state for each patch."""
    capture = record(model, encoded, keep={"hidden", "probe"})
    probe, hidden = capture["probe"], capture["hidden"]
    assert isinstance(probe, Probe)
    try:
        places = probe.places
    except InputError:
        return None
    late, early = hidden[LATE], hidden[min(EARLY, len(hidden) - 1)]
    if min(late.size(1), early.size(1)) <= int(places.max()):
        return None
    return to_array(late[:, places]).astype(np.float32), to_array(early[:, places]).astype(np.float32)


# --- clusters and detectors -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Detector:
    """Patches of one class that are alike, and how they are recognised."""

    class_name: str
    direction: np.ndarray  # [2 direction] of both descriptions
    threshold: float
    uniformity: tuple[float, float]  # late, early
    spreads: np.ndarray  # [patch]: squared distance to the middle / that of all patches, of the better description
    shown: np.ndarray  # [item] of bool
    apart: float  # the share of the class that shows it, minus that of all others
    likeness: np.ndarray  # [item]: of its best patch, a half at the threshold, at most 1

    def score(self, states: np.ndarray) -> np.ndarray:
        """[...] from [... 2 direction]."""
        return np.asarray(states.reshape(*states.shape[:-2], -1) @ self.direction)


def find_detectors(name: str, known: PatchStates, seed: int) -> list[Detector]:
    """The evidence that many items of a class share; first what sets the class apart most."""
    own = np.array([row.class_name == name for row in known.rows])
    states = known.states[own]
    points = states[:, :TOP].reshape(-1, *states.shape[2:])
    owner = np.repeat(np.arange(len(states)), min(TOP, states.shape[1]))
    least, background = max(MIN_ITEMS, MIN_SHARE * len(states)), measure_background(known, own)
    found: list[Detector] = []
    for space in range(2):
        clusters = cluster_points(points[:, space].astype(np.float64), min(CLUSTERS, max(2, len(states) // 3)), seed)
        for number in np.unique(clusters):
            inside = np.flatnonzero(clusters == number)
            inside = inside[drop_strays(points[inside, space])]
            if len(np.unique(owner[inside])) >= least:
                one = sharpen(name, points[inside], known, own, background)
                found += [] if one is None else [one]
    return keep_distinct(found, own)


@dataclass(frozen=True, eq=False)
class Background:
    """All patches but those of the class: what a detector is told apart from."""

    mean: np.ndarray  # [2 direction]
    covariance: np.ndarray
    total: np.ndarray  # [2]: the variance of the most relevant ones


def measure_background(known: PatchStates, own: np.ndarray) -> Background:
    others = known.states[~own]
    rest = np.concatenate([others.reshape(-1, *others.shape[2:]), known.usual])
    rest = rest[:: 1 + len(rest) // MOST_PATCHES].reshape(-1, 2 * rest.shape[-1]).astype(np.float64)
    covariance = np.cov(rest.T) + 1e-9 * np.eye(rest.shape[1])
    spherical = covariance.trace() / len(covariance) * np.eye(len(covariance))
    relevant = others[:, :TOP].reshape(-1, *others.shape[2:]) if len(others) else known.usual
    total = relevant.var(0).sum(-1)
    return Background(rest.mean(0), (1 - SHRINKAGE) * covariance + SHRINKAGE * spherical, total.clip(min=1e-9))


def keep_distinct(found: Sequence[Detector], own: np.ndarray) -> list[Detector]:
    """Those that set the class apart most; of those that mostly the same items show, the first."""
    kept: list[Detector] = []
    for one in sorted(found, key=lambda one: -round(one.apart, 9)):
        same = (one.shown & own, *((other.shown & own) for other in kept))
        if all((same[0] & other).sum() < SHARED * (same[0] | other).sum() for other in same[1:]):
            kept.append(one)
    return kept


def sharpen(
    name: str, members: np.ndarray, known: PatchStates, own: np.ndarray, background: Background
) -> Detector | None:
    """The detector of these patches, made anew from those that it finds itself; None if few items show them."""
    flat = known.states.reshape(*known.states.shape[:2], -1)
    direction, threshold = np.zeros(flat.shape[-1], flat.dtype), 0.0
    for _ in range(SHARPENED):
        middle = members.reshape(len(members), -1).mean(0, dtype=np.float64)
        direction = np.linalg.solve(background.covariance, middle - background.mean).astype(flat.dtype)
        scores = flat @ direction
        best = scores.max(1)
        threshold = set_apart(best[own], best[~own])
        if (best[own] >= threshold).sum() < MIN_ITEMS:
            return None
        members = known.states[own][scores[own] >= threshold]
    shown = best >= threshold
    spreads = np.square(members - members.mean(0)).sum(-1) / background.total  # [patch 2]
    late, early = 1 - spreads.mean(0)
    apart = float(shown[own].mean() - (shown[~own].mean() if (~own).any() else 0.0))
    likeness = 1 / (1 + np.exp((threshold - best) / max(float(best.std()), 1e-9)))
    return Detector(name, direction, threshold, (float(late), float(early)), spreads.min(1), shown, apart, likeness)


def set_apart(own: np.ndarray, others: np.ndarray) -> float:
    """The threshold that splits the best matches of all items into high and low ones, and that few others reach."""
    reached = float(np.quantile(others, BY_CHANCE)) if len(others) else -np.inf
    return max(reached, split_values(np.concatenate([own, others])))


def split_values(values: np.ndarray) -> float:
    """The threshold with the largest variance between the values on its two sides (Otsu 1979)."""
    ordered = np.sort(values)
    counts = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    low, high = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (len(ordered) - counts)
    between = counts * (len(ordered) - counts) * np.square(high - low)
    best = int(np.round(between, 9).argmax())
    return float(ordered[best] + ordered[best + 1]) / 2


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
    """[point]: the number of its cluster, from the best of several starts; the order of the points does not matter."""
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
    while len(chosen) < count and nearest.sum() > 1e-12:
        chosen.append(points[rng.choice(len(points), p=nearest / nearest.sum())])
        nearest = np.minimum(nearest, np.square(points - chosen[-1]).sum(1))
    return np.array(chosen)
