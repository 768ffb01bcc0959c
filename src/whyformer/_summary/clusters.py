"""Clusters: items of one class that the model decides by the same place of the image, or by the same words.

For each class the sampled items are clustered by `spectral.find_groups`. An image is the square root of its shares of
relevance per cell of a grid half as fine as its patches (at most 8 x 8), a text that of the shares of
its five strongest words: so distances are Hellinger distances, between 0 (the same evidence) and the square root of 2
(no cell or word in common, so never joined).

What a cluster looks at is the *region*: the fewest patches that hold 70 % of its mean map. If they are more than a
fifth of the image, the items do not look at a common place. Items with less than half of the cluster's median share
there leave the cluster. For texts it is up to three words that at least half of
the items have in common and that get at least twice the share of an average word where they occur.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whyformer._runs.parts import BulkRow
from whyformer._summary.shares import WordShare, find_core, list_word_shares, rank_words, resample_map, sum_by_word
from whyformer._summary.spectral import choose_neighbours, find_groups, measure_distances

if TYPE_CHECKING:
    from whyformer._summary.tally import Tally

TOP_WORDS = 5  # of a text, for clustering
MAX_COARSE_SIDE = 8
REGION_HOLDS = 0.7  # of the mean map
MAX_REGION = 0.2  # of the patches
MAX_COMMON_WORDS = 3
COMMON_IN = 0.5  # of the texts of a cluster
ABOVE_AVERAGE = 2.0  # times the share of an average word
NOTHING_IN_COMMON = float(np.sqrt(2.0))  # the Hellinger distance, times sqrt(2), of items without overlap
OUTLIER_SCORE = 5.0  # modified z-score, Iglewicz & Hoaglin 1993 (who suggest 3.5 for normal data)
OUTLIER_DISTANCE = 0.5  # to its neighbours; at most the square root of 2
MAX_OUTLIERS = 20


@dataclass(frozen=True, eq=False)
class SampledClass:
    """The sampled items of a class, with the point of each in the space in which they are clustered."""

    name: str
    rows: tuple[BulkRow, ...]
    maps: np.ndarray | None  # [item row column]
    words: tuple[tuple[WordShare, ...], ...]
    points: np.ndarray  # [item feature]

    @property
    def target(self) -> int:
        assert self.rows[0].target is not None
        return self.rows[0].target

    def share_on(self, region: np.ndarray | None, words: Sequence[str]) -> np.ndarray:
        """[item]: the share of relevance in a region, or on these words."""
        if region is not None and self.maps is not None:
            return self.maps[:, region].sum(1)
        return np.array([sum(one.share for one in text if one.word in words) for text in self.words])


@dataclass(frozen=True, eq=False)
class Cluster:
    """Items of one class with the same evidence."""

    sampled: SampledClass
    members: np.ndarray  # indices of items, those nearest to the centre first
    region: np.ndarray | None = None  # [row column] of bool
    words: tuple[str, ...] = ()

    @property
    def rows(self) -> list[BulkRow]:
        """The items, the most typical first."""
        return [self.sampled.rows[i] for i in self.members]

    @property
    def drawn_rows(self) -> list[BulkRow]:
        """The items in random order: tests take the first ones."""
        return [self.sampled.rows[i] for i in sorted(self.members.tolist())]

    @property
    def outsiders(self) -> list[BulkRow]:
        """The other sampled items of the class."""
        return [row for i, row in enumerate(self.sampled.rows) if i not in set(self.members.tolist())]

    @property
    def has_common(self) -> bool:
        """Whether there is a place or word that the items have in common."""
        return self.region is not None or bool(self.words)

    @property
    def mean_map(self) -> np.ndarray | None:
        return None if self.sampled.maps is None else self.sampled.maps[self.members].mean(0)

    @property
    def shares(self) -> np.ndarray:
        """[member]: the share of relevance on what the cluster looks at."""
        return self.sampled.share_on(self.region, self.words)[self.members]

    @property
    def expected(self) -> float:
        """The share that the region or the words would have if relevance were even."""
        if self.region is not None:
            return float(self.region.mean())
        texts = [self.sampled.words[i] for i in self.members]
        return float(np.mean([np.mean([one.word in self.words for one in text]) for text in texts]))


@dataclass(frozen=True)
class Outlier:
    """An item whose evidence is far from that of every other item of its class."""

    id: str
    class_name: str
    score: float  # how many typical deviations its distance to its neighbours is above the median


def make_sampled_class(name: str, rows: Sequence[BulkRow], tally: "Tally") -> SampledClass:
    """The points of the items of a class. All items are images, or all are texts."""
    if rows[0].kind == "image":
        maps = np.stack([shares for row in rows if (shares := tally.make_map(row)) is not None])
        # Half as many rows and columns: objects that are a patch apart are at nearly the same place.
        rough = [min(MAX_COARSE_SIDE, (side + 1) // 2) for side in maps.shape[1:]]
        coarse = np.stack([resample_map(one, (rough[0], rough[1])) for one in maps])
        return SampledClass(name, tuple(rows), maps, (), np.sqrt(coarse.reshape(len(maps), -1)))
    words = tuple(tuple(list_word_shares(row)) for row in rows)
    return SampledClass(name, tuple(rows), None, words, place_texts(words))


def place_texts(texts: Sequence[Sequence[WordShare]]) -> np.ndarray:
    """[text word]: the square root of the shares of the strongest words of each text."""
    bags = [[pair for pair in rank_words(sum_by_word(text))[:TOP_WORDS] if pair[1] > 0] for text in texts]
    columns = {word: i for i, word in enumerate(sorted({word for bag in bags for word, _ in bag}))}
    points = np.zeros((len(bags), len(columns)))
    for i, bag in enumerate(bags):
        for word, share in bag:
            points[i, columns[word]] = np.sqrt(share)
    return points / np.linalg.norm(points, axis=1, keepdims=True).clip(min=1e-12)


def find_clusters(sampled: SampledClass) -> list[Cluster]:
    """The clusters of a class, the largest first. An item may be in none."""
    groups, _ = find_groups(sampled.points, limit=NOTHING_IN_COMMON)
    return [make_cluster(sampled, np.flatnonzero(groups == group)) for group in range(int(groups.max(initial=-1)) + 1)]


def make_cluster(sampled: SampledClass, members: np.ndarray) -> Cluster:
    centre = sampled.points[members].mean(0)
    distances = np.round(np.linalg.norm(sampled.points[members] - centre, axis=1), 9)
    members = members[np.argsort(distances, kind="stable")]
    region: np.ndarray | None = None
    words: tuple[str, ...] = ()
    if sampled.maps is not None:
        core = find_core(sampled.maps[members].mean(0), REGION_HOLDS)
        region = core if core.mean() <= MAX_REGION else None
    else:
        words = find_common_words([sampled.words[i] for i in members])
    if region is None and not words:
        return Cluster(sampled, members)
    shares = sampled.share_on(region, words)[members]
    return Cluster(sampled, members[shares >= np.median(shares) / 2], region, words)


def find_common_words(texts: Sequence[Sequence[WordShare]]) -> tuple[str, ...]:
    """The words that most of these texts have in common and that get most relevance."""
    bags = [sum_by_word(text) for text in texts]
    average = float(np.mean([1 / max(len(text), 1) for text in texts]))
    common: dict[str, float] = {}
    for word in sorted({word for bag in bags for word, share in bag.items() if share > 0}):
        present = [bag[word] for bag in bags if bag.get(word, 0.0) > 0]
        if len(present) >= COMMON_IN * len(bags) and np.mean(present) >= ABOVE_AVERAGE * average:
            common[word] = sum(present)
    return tuple(word for word, _ in rank_words(common)[:MAX_COMMON_WORDS])


def find_outliers(sampled: SampledClass) -> list[Outlier]:
    """Items far from their nearest neighbours: by the mean distance to them, and by its modified z-score."""
    count = len(sampled.rows)
    if count < 8:
        return []
    distances = np.sort(measure_distances(sampled.points), axis=1)[:, 1 : choose_neighbours(count) + 1].mean(1)
    median = float(np.median(distances))
    spread = float(np.median(abs(distances - median)))
    scores = 0.6745 * (distances - median) / max(spread, 1e-3)
    return [
        Outlier(row.id, sampled.name, float(score))
        for row, score, distance in zip(sampled.rows, scores, distances, strict=True)
        if score > OUTLIER_SCORE and distance > OUTLIER_DISTANCE
    ]
