r"""How evidence moved between two runs, class by class: what is compared, and the tests.

The evidence of an item is a distribution: shares of its positive scores over the patches of a grid, or over words. The
evidence of a class is the mean over its items. It *moved* by the total variation distance of the two means,

$$ m = \tfrac12 \sum_k |\bar p_k - \bar q_k|, $$

the part of the evidence that is elsewhere now, from 0 to 1. The test is a permutation test with m itself: where the
runs share their items, the two maps of each item are swapped at random (paired); otherwise items are dealt to the two
runs at random. The mean of m over these tries is what chance gives. p-values are corrected by Holm over all classes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from whyformer._plain.statistics import MAX_NUMBERS_HELD, adjust_p_values, iterate_exchanges, paired_test
from whyformer._runs.parts import BulkRow
from whyformer._runs.preparation import normalise_class_name
from whyformer._summary.rows import StoredRun
from whyformer._summary.shares import list_word_shares, rank_words, resample_map, sum_by_word, take_positive_shares

LEVEL = 0.05
FINEST = 8  # rows and columns of a map
MIN_ITEMS = 8  # of a class in each run, to be compared
MAX_WORDS = 2_000  # of a class; the others count as one
TRIES, TRIES_PER_CLASS = 2_000, 100  # at least; more for many classes, so that Holm's correction leaves room
TIE = 1e-9
Evidence: TypeAlias = np.ndarray | dict[str, float]  # a map [row column], or the shares of words


@dataclass(frozen=True, eq=False)
class RunItem:
    """What is compared of one item."""

    id: str
    class_name: str  # that is explained
    label: str | None
    prediction: str | None
    is_right: bool | None
    probability: float | None
    content: str | None
    source: str | None
    kind: str
    evidence: Evidence | None  # None without a positive score


@dataclass(frozen=True, eq=False)
class ClassMove:
    """How the evidence of one class moved."""

    name: str
    items: tuple[int, int]  # in each run
    is_paired: bool
    moved: float  # part of the evidence, from 0 to 1
    chance: float  # what two runs without a difference give on average
    p: float
    before: Evidence  # means
    after: Evidence
    adjusted_p: float = float("nan")

    @property
    def is_certain(self) -> bool:
        return bool(self.adjusted_p < LEVEL)

    def list_words(self, count: int) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """The words that gained, and those that lost, with the change of their share."""
        if isinstance(self.before, np.ndarray) or isinstance(self.after, np.ndarray):
            return [], []
        changes = {word: self.after.get(word, 0.0) - self.before.get(word, 0.0) for word in {*self.before, *self.after}}
        gained = rank_words({word: change for word, change in changes.items() if change > TIE})
        lost = rank_words({word: -change for word, change in changes.items() if change < -TIE})
        return gained[:count], [(word, -change) for word, change in lost[:count]]


@dataclass(frozen=True)
class ShareChange:
    """A share of the items in each run, such as the right predictions, and the test of its change."""

    what: str
    items: tuple[int, int]
    before: float
    after: float
    p: float
    adjusted_p: float = float("nan")

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class MovedItem:
    """An item of both runs whose evidence moved."""

    before: RunItem
    after: RunItem
    moved: float


def read_run_items(run: StoredRun, method: str) -> tuple[dict[str, RunItem], int]:
    """The items that this method explains by a class, by id; and how many have an error instead."""
    items: dict[str, RunItem] = {}
    failed = 0
    for rows in run.iterate_parts():
        for row in rows:
            if row.method == method and row.error is not None:
                failed += 1
            elif row.method == method and row.kind in ("image", "text") and row.target is not None:
                items[row.id] = make_run_item(row)
    return items, failed


def make_run_item(row: BulkRow) -> RunItem:
    name = row.prediction_name if row.prediction is not None else None
    return RunItem(
        row.id, row.class_name, row.label, name, row.is_right, row.probability, row.content, row.source, row.kind,
        measure_evidence(row),
    )  # fmt: skip


def measure_evidence(row: BulkRow) -> Evidence | None:
    """The shares of an item, on a grid of at most FINEST x FINEST, or of its words."""
    if row.kind == "text":
        return sum_by_word(list_word_shares(row)) or None
    shares = take_positive_shares(row.scores) if row.scores is not None and row.grid is not None else None
    if shares is None or row.grid is None:
        return None
    rows, columns = row.grid
    return resample_map(shares.reshape(row.grid), (min(rows, FINEST), min(columns, FINEST))).astype(np.float32)


# --- evidence ---------------------------------------------------------------------------------------------------------


def compare_evidence(
    a: dict[str, RunItem], b: dict[str, RunItem], shared: Sequence[str], class_limit: int, seed: int
) -> list[ClassMove]:
    """The classes that both runs explain often enough, those that moved most first; equal ones by name."""
    own = [group_by_class(items, class_limit, seed) for items in (a, b)]
    both = {id: item for id in shared if (item := a[id]).class_name == b[id].class_name and b[id].evidence is not None}
    pairs = group_by_class(both, class_limit, seed)
    names = [name for name in sorted(own[0].keys() & own[1].keys()) if min(len(one[name]) for one in own) >= MIN_ITEMS]
    tries = max(TRIES, TRIES_PER_CLASS * len(names))
    moves = []
    for name in names:
        paired = pairs.get(name, [])
        is_paired = len(paired) >= max(MIN_ITEMS, min(len(one[name]) for one in own) / 2)
        first = paired if is_paired else own[0][name]
        second = [b[item.id] for item in paired] if is_paired else own[1][name]
        moves.append(measure_move(name, first, second, is_paired, tries, seed))
    adjusted = adjust_p_values([move.p for move in moves])
    moves = [replace(move, adjusted_p=p) for move, p in zip(moves, adjusted, strict=True)]
    return sorted(moves, key=lambda move: (not move.is_certain, move.chance - move.moved, move.name))


def group_by_class(items: dict[str, RunItem], class_limit: int, seed: int) -> dict[str, list[RunItem]]:
    """At most so many items of each class, chosen by a hash of seed and id: the same in both runs, in any order."""
    classes: dict[str, list[RunItem]] = {}
    for item in items.values():
        if item.evidence is not None:
            classes.setdefault(item.class_name, []).append(item)
    return {
        name: sorted(same, key=lambda item: draw_rank(item.id, seed))[:class_limit] for name, same in classes.items()
    }


def draw_rank(id: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{id}".encode("utf-8", "surrogatepass")).digest()


def measure_move(
    name: str, first: Sequence[RunItem], second: Sequence[RunItem], is_paired: bool, tries: int, seed: int
) -> ClassMove:
    x, y, keys = stack_evidence([item.evidence for item in first], [item.evidence for item in second])
    before, after = x.mean(0), y.mean(0)
    moved = total_variation(before, after)
    draws = swap_pairs(x, y, tries, seed) if is_paired else deal_items(x, y, tries, seed)
    by_chance = np.concatenate([np.abs(means).sum(1) / 2 for means in draws])
    p = float((by_chance >= moved - TIE).mean())
    return ClassMove(
        name, (len(x), len(y)), is_paired, moved, float(by_chance.mean()), p,
        unstack_evidence(before, keys), unstack_evidence(after, keys),
    )  # fmt: skip


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).sum() / 2)


def swap_pairs(x: np.ndarray, y: np.ndarray, tries: int, seed: int) -> Iterator[np.ndarray]:
    """[try part]: the difference of the means if items are swapped; the first try swaps none."""
    for swapped in iterate_exchanges(len(x), seed, tries):
        yield (1.0 - 2.0 * swapped) @ (x - y) / len(x)


def deal_items(x: np.ndarray, y: np.ndarray, tries: int, seed: int) -> Iterator[np.ndarray]:
    """[try part]: the difference of the means if items are dealt to the two runs; the first try is as observed."""
    pool, generator = np.concatenate([x, y]), np.random.default_rng(seed)
    weights = np.concatenate([np.full(len(x), 1 / len(x)), np.full(len(y), -1 / len(y))])
    yield (weights @ pool)[None]
    step = max(1, MAX_NUMBERS_HELD // len(pool))
    for start in range(0, tries, step):
        yield generator.permuted(np.tile(weights, (min(step, tries - start), 1)), axis=1) @ pool


def stack_evidence(
    first: Sequence[Evidence | None], second: Sequence[Evidence | None]
) -> tuple[np.ndarray, np.ndarray, tuple[int, int] | list[str]]:
    """[item part] of both runs, and what the parts are: a grid, or words of which the last stands for all others."""
    maps = [one for one in (*first, *second) if isinstance(one, np.ndarray)]
    if len(maps) == len(first) + len(second):
        grid = min(one.shape[0] for one in maps), min(one.shape[1] for one in maps)
        stacked = np.stack([resample_map(one, grid).ravel() for one in maps])
        return stacked[: len(first)], stacked[len(first) :], grid
    texts = [one if isinstance(one, dict) else {} for one in (*first, *second)]
    totals: Counter[str] = Counter()
    for one in texts:
        totals.update(one)
    words = [word for word, _ in rank_words(totals)[:MAX_WORDS]]
    columns = {word: column for column, word in enumerate(words)}
    stacked = np.zeros((len(texts), len(words) + 1))
    for row, one in enumerate(texts):
        for word, share in one.items():
            stacked[row, columns.get(word, len(words))] += share
    return stacked[: len(first)], stacked[len(first) :], words


def unstack_evidence(mean: np.ndarray, keys: tuple[int, int] | list[str]) -> Evidence:
    if isinstance(keys, tuple):
        return mean.reshape(keys)
    return {word: float(share) for word, share in zip(keys, mean, strict=False)}


def measure_items(a: dict[str, RunItem], b: dict[str, RunItem], shared: Sequence[str]) -> list[MovedItem]:
    """The items of both runs, those that moved most first; also such that another class is explained of."""
    moved = []
    for id in shared:
        one, other = a[id].evidence, b[id].evidence
        if one is not None and other is not None and isinstance(one, dict) == isinstance(other, dict):
            x, y, _ = stack_evidence([one], [other])
            moved.append(MovedItem(a[id], b[id], total_variation(x[0], y[0])))
    return sorted(moved, key=lambda item: (-item.moved, item.before.id))


# --- predictions ------------------------------------------------------------------------------------------------------


def list_class_names(items: dict[str, RunItem]) -> set[str]:
    """The classes that a run predicts or explains, as labels are compared with them."""
    names = (name for item in items.values() for name in (item.class_name, item.prediction) if name is not None)
    return {normalise_class_name(name) for name in names}


def find_foreign_labels(items: dict[str, RunItem], other: dict[str, RunItem], is_same_set: bool | None) -> list[str]:
    """Labels that are no classes of the model of this run, as far as it predicts.

    is_same_set: whether both models have the same classes; None if that is not known. A class of the model that it
    does not predict any more is a finding, so that single labels are left out only where the classes differ.
    """
    labels = sorted({item.label for item in items.values() if item.label is not None})
    own, known = list_class_names(items), list_class_names(other)
    right = {item.label for item in items.values() if item.is_right}
    foreign = [label for label in labels if label not in right and normalise_class_name(label) not in own]
    if len(foreign) == len(labels) and not (is_same_set and known & set(map(normalise_class_name, labels))):
        return foreign
    return foreign if is_same_set is False else []


def leave_out_labels(items: dict[str, RunItem], labels: Collection[str]) -> dict[str, RunItem]:
    """The items, with these labels neither right nor wrong."""
    return {id: replace(item, is_right=None) if item.label in labels else item for id, item in items.items()}


def compare_answers(
    a: dict[str, RunItem], b: dict[str, RunItem], shared: Sequence[str], seed: int
) -> list[ShareChange]:
    """The share of right predictions, over all items and by label, and how often each class is predicted."""
    is_paired = 2 * len(shared) >= min(len(a), len(b)) and bool(shared)
    first = [a[id] for id in shared] if is_paired else list(a.values())
    second = [b[id] for id in shared] if is_paired else list(b.values())

    def measure(what: str, read: Callable[[RunItem], bool | None]) -> ShareChange:
        return compare_shares(what, list(map(read, first)), list(map(read, second)), is_paired, seed)

    changes = [measure("right", lambda item: item.is_right)]
    for label in sorted({item.label for item in (*first, *second) if item.label is not None}):
        changes.append(measure(f"right, of {label}", partial(is_right_of, label)))
    both = list_class_names(a) & list_class_names(b)
    for name in sorted({item.prediction for item in (*first, *second) if item.prediction is not None} if both else ()):
        changes.append(measure(f"predicted {name}", partial(is_predicted, name)))
    known = [change for change in changes if min(change.items)]
    adjusted = adjust_p_values([change.p for change in known])
    return [replace(change, adjusted_p=p) for change, p in zip(known, adjusted, strict=True)]


def is_right_of(label: str, item: RunItem) -> bool | None:
    return item.is_right if item.label == label else None


def is_predicted(name: str, item: RunItem) -> bool | None:
    return None if item.prediction is None else item.prediction == name


def compare_shares(
    what: str, first: Sequence[bool | None], second: Sequence[bool | None], is_paired: bool, seed: int
) -> ShareChange:
    x, y = (np.array([np.nan if one is None else float(one) for one in values]) for values in (first, second))
    if is_paired:
        known = ~np.isnan(x) & ~np.isnan(y)
        x, y = x[known], y[known]
        differing = x != y  # the others are the same whichever way they are swapped
        p = paired_test(x[differing], y[differing], seed) if differing.any() else 1.0
    else:
        x, y = x[~np.isnan(x)], y[~np.isnan(y)]
        p = deal_counts(x, y, seed)
    before, after = (float(one.mean()) if len(one) else float("nan") for one in (x, y))
    return ShareChange(what, (len(x), len(y)), before, after, p if len(x) and len(y) else float("nan"))


def deal_counts(x: np.ndarray, y: np.ndarray, seed: int, tries: int = 10_000) -> float:
    """The permutation test of two shares: how often dealing all items at random gives as large a difference."""
    if not len(x) or not len(y):
        return float("nan")
    total = int(x.sum() + y.sum())
    draws = np.random.default_rng(seed).hypergeometric(total, len(x) + len(y) - total, len(x), tries)
    differences = np.abs(draws / len(x) - (total - draws) / len(y))
    return float(((differences >= abs(x.mean() - y.mean()) - TIE).sum() + 1) / (tries + 1))


def count_changes(a: dict[str, RunItem], b: dict[str, RunItem], shared: Sequence[str]) -> list[tuple[str, str, int]]:
    """Predictions of shared items that changed: from, to, how many; the most frequent first."""
    pairs = Counter((str(a[id].prediction), str(b[id].prediction)) for id in shared)
    changed = [(old, new, count) for (old, new), count in pairs.items() if old != new]
    return sorted(changed, key=lambda change: (-change[2], change[:2]))
