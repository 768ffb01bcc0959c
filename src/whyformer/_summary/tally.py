"""What is counted while the rows stream by: errors, mean maps, words, where relevance sits, disagreement of methods.

Memory does not grow with the number of items: sums per class and method, a sample per class, and the few items on which
the methods disagree most.

The sample of each class depends on the seed and the ids alone, not on the order of the rows. Every item has a random
number, made from its id; the items with the smallest numbers are kept (a bottom-k sketch, Cohen & Kaplan 2007). If all
classes together have more than MAX_SAMPLED items, every class keeps half as many, and so on.
"""

import hashlib
import heapq
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from whyformer._plain.statistics import spearman
from whyformer._runs.parts import BulkRow
from whyformer._summary.shares import (
    list_word_shares,
    mark_border,
    rank_words,
    resample_map,
    special_share,
    sum_by_word,
    take_positive_shares,
)

MAX_SAMPLED = 21_000  # items in memory


class ClassSamples:
    """At most `per_class` items of each class, or the largest number with which no more than `most` are held."""

    def __init__(self, per_class: int, seed: int, most: int = MAX_SAMPLED) -> None:
        self.per_class, self.seed, self.most = per_class, seed, most
        self._heaps: dict[str, list[tuple[int, str, BulkRow]]] = {}
        self._held = 0

    def add(self, row: BulkRow) -> None:
        heap = self._heaps.setdefault(row.class_name, [])
        heapq.heappush(heap, (-draw_number(self.seed, row.id), row.id, row))
        self._held += 1
        self._trim(heap)
        while self._held > self.most and self.per_class > 1:
            self.per_class = max(map(len, self._heaps.values())) - 1
            for one in self._heaps.values():
                self._trim(one)

    def _trim(self, heap: list[tuple[int, str, BulkRow]]) -> None:
        while len(heap) > self.per_class:
            heapq.heappop(heap)  # the largest number
            self._held -= 1

    @property
    def rows(self) -> Mapping[str, list[BulkRow]]:
        """The sampled rows of each class, in the order of their random numbers; classes by name."""
        return {
            name: [row for _, _, row in sorted(self._heaps[name], key=lambda entry: (-entry[0], entry[1]))]
            for name in sorted(self._heaps)
        }


def draw_number(seed: int, name: str) -> int:
    """A random number of 64 bits for this name."""
    digest = hashlib.sha256(f"{seed} {name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


MAX_SIDE = 16  # patches; larger maps are downsized
MAX_WORDS = 200_000  # counted after a part, over all classes
MAX_DISAGREEMENTS = 20


@dataclass
class ErrorCount:
    """The items that failed with one code."""

    code: str
    rows: int = 0
    example: str = ""  # an id
    message: str = ""


@dataclass
class ClassTally:
    """Sums over the items of one class, by the method that is summarised."""

    name: str
    items: int = 0
    labelled: int = 0
    right: int = 0
    mapped: int = 0  # items with a positive score
    map_sum: np.ndarray | None = None
    word_sums: Counter[str] = field(default_factory=Counter)
    word_items: Counter[str] = field(default_factory=Counter)

    @property
    def mean_map(self) -> np.ndarray | None:
        return None if self.map_sum is None or not self.mapped else self.map_sum / self.mapped

    @property
    def error_rate(self) -> float | None:
        return 1 - self.right / self.labelled if self.labelled else None

    def list_top_words(self, count: int) -> list[tuple[str, float, int]]:
        """Words with their share of all relevance of the class and the number of texts they are in."""
        ranked = rank_words(self.word_sums)[:count]
        return [(word, total / max(self.mapped, 1), self.word_items[word]) for word, total in ranked]


class PlaceShare(NamedTuple):
    """The share of the positive scores of a method that is at one place, a mean over items."""

    method: str
    place: str
    share: float
    expected: float  # if relevance were even over all tokens
    items: int


@dataclass
class PlaceTally:
    """Where the relevance of one method sits, summed over items: shares of the positive scores."""

    method: str
    sums: dict[str, float] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)  # if relevance were even over all tokens
    items: Counter[str] = field(default_factory=Counter)

    def add(self, place: str, share: float | None, expected: float) -> None:
        if share is not None:
            self.sums[place] = self.sums.get(place, 0.0) + share
            self.expected[place] = self.expected.get(place, 0.0) + expected
            self.items[place] += 1

    def list_shares(self) -> Iterator[PlaceShare]:
        for place, count in self.items.items():
            yield PlaceShare(self.method, place, self.sums[place] / count, self.expected[place] / count, count)


@dataclass(frozen=True, order=True)
class Disagreement:
    """An item on which the methods agree little: the mean rank correlation between them."""

    correlation: float
    id: str


class Tally:
    """Everything that is summed over the rows of a run."""

    def __init__(self, method: str, per_class: int, seed: int) -> None:
        self.method = method
        self.rows = 0
        self.errors: dict[str, ErrorCount] = {}
        self.classes: dict[str, ClassTally] = {}
        self.places: dict[str, PlaceTally] = {}
        self.methods: Counter[str] = Counter()
        self.pair_sums: dict[tuple[str, str], float] = {}
        self.pair_items: Counter[tuple[str, str]] = Counter()
        self.samples = ClassSamples(per_class, seed)
        self.grid: tuple[int, int] | None = None  # of all maps
        self.dropped_words = False
        self.without_positive = 0
        self.unnamed = 0  # rows of tensors, and of models without classes
        self._disagreeing: list[tuple[float, str]] = []  # a heap; the least disagreement first

    def add_part(self, rows: Sequence[BulkRow]) -> None:
        """Count the rows of one part, in which all methods of an item are together."""
        for row in rows:
            self.rows += 1
            self.methods[row.method] += 1
            if row.error is not None:
                self._count_error(row)
                continue
            if row.kind == "tensors" or row.target is None:
                self.unnamed += 1
                continue
            self._count_places(row)
            if row.method == self.method:
                self._count_class(row)
        explained = sorted((row for row in rows if row.error is None), key=lambda row: (row.position, row.method))
        for _, group in itertools.groupby(explained, key=lambda row: row.position):
            self._compare_methods(list(group))
        if sum(len(one.word_sums) for one in self.classes.values()) > MAX_WORDS:
            self._drop_rare_words()

    @property
    def disagreements(self) -> list[Disagreement]:
        """The items with the lowest rank correlation between methods, the lowest first."""
        return sorted(Disagreement(-negative, id) for negative, id in self._disagreeing)

    @property
    def class_list(self) -> list[ClassTally]:
        """The classes with most items first."""
        return sorted(self.classes.values(), key=lambda one: (-one.items, one.name))

    @property
    def place_shares(self) -> list[PlaceShare]:
        return [share for place in self.places.values() for share in place.list_shares()]

    @property
    def agreement(self) -> Mapping[tuple[str, str], float]:
        """The mean rank correlation of every two methods."""
        return {pair: self.pair_sums[pair] / self.pair_items[pair] for pair in sorted(self.pair_items)}

    @property
    def error_list(self) -> list[ErrorCount]:
        """The most frequent first."""
        return sorted(self.errors.values(), key=lambda error: (-error.rows, error.code))

    # --- one row ------------------------------------------------------------------------------------------------------

    def _count_error(self, row: BulkRow) -> None:
        assert row.error is not None
        count = self.errors.setdefault(row.error, ErrorCount(row.error, example=row.id, message=row.message or ""))
        count.rows += 1
        if row.id < count.example:
            count.example, count.message = row.id, row.message or ""

    def _count_places(self, row: BulkRow) -> None:
        assert row.scores is not None
        place = self.places.setdefault(row.method, PlaceTally(row.method))
        if row.kind == "text":
            expected = float(np.mean(row.special)) if row.special is not None and len(row.special) else 0.0
            place.add("special tokens", special_share(row), expected)
            return
        shares = take_positive_shares(row.scores)
        if shares is not None and row.grid is not None:
            border = mark_border(row.grid).ravel()
            place.add("border patches", float(shares[border].sum()), float(border.mean()))

    def _count_class(self, row: BulkRow) -> None:
        tally = self.classes.setdefault(row.class_name, ClassTally(row.class_name))
        tally.items += 1
        if row.is_right is not None:
            tally.labelled += 1
            tally.right += row.is_right
        is_mapped = self._count_words(tally, row) if row.kind == "text" else self._add_map(tally, row)
        if not is_mapped:
            self.without_positive += 1
            return
        tally.mapped += 1
        tokens = tuple(map(sys.intern, row.tokens)) if row.tokens is not None else None  # shared between items
        self.samples.add(replace(row, tokens=tokens))

    def _add_map(self, tally: ClassTally, row: BulkRow) -> bool:
        shares = self.make_map(row)
        if shares is None:
            return False
        tally.map_sum = shares if tally.map_sum is None else tally.map_sum + shares
        return True

    def make_map(self, row: BulkRow) -> np.ndarray | None:
        """The positive shares of an image on the common grid; None if there are none."""
        shares = take_positive_shares(row.scores) if row.scores is not None and row.grid is not None else None
        if shares is None or row.grid is None:
            return None
        if self.grid is None:
            self.grid = (min(row.grid[0], MAX_SIDE), min(row.grid[1], MAX_SIDE))
        return resample_map(shares.reshape(row.grid), self.grid)

    def _count_words(self, tally: ClassTally, row: BulkRow) -> bool:
        totals = sum_by_word(list_word_shares(row))
        tally.word_sums.update(totals)
        tally.word_items.update(totals.keys())
        return sum(totals.values()) > 0

    def _drop_rare_words(self) -> None:
        """Keep the half of the words of each class that has most relevance so far."""
        self.dropped_words = True
        for tally in self.classes.values():
            kept = dict(rank_words(tally.word_sums)[: len(tally.word_sums) // 2])
            tally.word_sums = Counter(kept)
            tally.word_items = Counter({word: tally.word_items[word] for word in kept})

    # --- several methods ----------------------------------------------------------------------------------------------

    def _compare_methods(self, rows: Sequence[BulkRow]) -> None:
        correlations = []
        for first, second in itertools.combinations(rows, 2):
            value = correlate_scores(first.scores, second.scores)
            if value is not None:
                correlations.append(value)
                pair = first.method, second.method
                self.pair_sums[pair] = self.pair_sums.get(pair, 0.0) + value
                self.pair_items[pair] += 1
        if correlations:
            heapq.heappush(self._disagreeing, (-float(np.mean(correlations)), rows[0].id))
            if len(self._disagreeing) > MAX_DISAGREEMENTS:
                heapq.heappop(self._disagreeing)


def correlate_scores(first: np.ndarray | None, second: np.ndarray | None) -> float | None:
    """Spearman's rank correlation; None if it is undefined."""
    if first is None or second is None or len(first) != len(second) or len(first) < 3:
        return None
    value = spearman(first, second)
    return None if np.isnan(value) else value
