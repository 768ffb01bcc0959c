r"""The experiments of Jain & Wallace on one model: an audit with their settings, as the numbers of their tables.

    rows = measure_jain_wallace(model, examples)      one row of numbers per example
    rows.correlation("gradient")                      mean, spread and share significant of Kendall's tau
    rows.permutation("[0, 0.25)")                     median over examples of the median output difference
    rows.adversarial()                                mean and median of the epsilon-max JSD, share >= 0.525

Jain & Wallace, Attention is not Explanation, NAACL 2019. arXiv:1902.10186. Their tolerance for "the same output" is
0.01 for classification and 0.05 for question answering and inference (preset "paper"). The released code searches
within 0.01 and selects within 0.05 for both (preset "released"); the numbers of the authors' files are of that kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import numpy as np

from whyformer._audit import Audit, audit
from whyformer._audit.checks import (
    DELETED,
    GRADIENT,
    LARGEST_WEIGHT_BINS,
    PRESETS,
    SIGNIFICANCE_LEVEL,
    TOP_K_DISTANCE,
    AuditRow,
    SearchSettings,
)
from whyformer._audit.report import FAR_JSD
from whyformer._model import Model, is_text_pair
from whyformer.data import Data
from whyformer.errors import InputError
from whyformer_papers.jain_wallace_tasks import TaskExample

QUESTION_TOLERANCE = 0.05
PAIRS = {
    "gradient": f"attention ~ {GRADIENT}",
    "leave_one_out": f"attention ~ {DELETED}",
    "yardstick": f"{GRADIENT} ~ {DELETED}",
}  # the columns of the published tables
BIN_NAMES = tuple(f"[{low:g}, {high:g})" for low, high in pairwise(LARGEST_WEIGHT_BINS))
ATTENTION_TESTS = ("agreement", "replacement", "adversarial")
Examples = Data | Sequence[TaskExample]


class Correlation(NamedTuple):
    """Kendall's tau over examples: mean, standard deviation, share with p <= 0.05."""

    mean: float
    spread: float
    significant: float
    examples: int


class FoundDistance(NamedTuple):
    """The epsilon-max JSD over examples, and the share of the attainable distance."""

    mean: float
    median: float
    far: float  # the share of examples with at least 0.525
    of_attainable: float
    examples: int


class RowFields(TypedDict):
    """`JainWallaceRows` as a JSON file has it."""

    labels: list[str]
    columns: dict[str, list[float | None]]


@dataclass(frozen=True)
class JainWallaceRows:
    """What one model was measured to do, by example. A column has NaN where a number is undefined or not measured."""

    labels: tuple[str, ...]
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["predicted"])

    @property
    def accuracy(self) -> float:
        known = self.columns["label"] >= 0
        return mean_of(self.columns["predicted"][known] == self.columns["label"][known])

    def of_class(self, index: int | None) -> np.ndarray:
        """The examples of one predicted class; all for None."""
        predicted = self.columns["predicted"]
        return np.ones(len(predicted), dtype=bool) if index is None else predicted == index

    def in_bin(self, name: str) -> np.ndarray:
        """The examples whose largest weight is in one of BIN_NAMES; the last one includes 1."""
        return np.clip((self.columns["largest"] * 4).astype(int), 0, 3) == BIN_NAMES.index(name)

    def correlation(self, pair: str, predicted: int | None = None) -> Correlation:
        """pair: gradient, leave_one_out or yardstick (gradient against leave-one-out)."""
        chosen = self.of_class(predicted) & np.isfinite(self.columns[f"{pair}_tau"])
        tau, p = self.columns[f"{pair}_tau"][chosen], self.columns[f"{pair}_p"][chosen]
        spread = float(np.std(tau)) if len(tau) else float("nan")
        return Correlation(mean_of(tau), spread, mean_of(p <= SIGNIFICANCE_LEVEL), int(chosen.sum()))

    def top_k_distance(self, pair: str, predicted: int | None = None) -> float:
        return mean_of(self._finite(f"{pair}_{TOP_K_DISTANCE}", self.of_class(predicted)))

    def permutation(self, bin_name: str | None = None, predicted: int | None = None) -> tuple[float, int]:
        """The median over examples of the median output difference, and the number of examples."""
        chosen = self.of_class(predicted) & (True if bin_name is None else self.in_bin(bin_name))
        moved = self._finite("permuted", chosen)
        return (float(np.median(moved)) if len(moved) else float("nan")), len(moved)

    def adversarial(self, predicted: int | None = None) -> FoundDistance:
        chosen = self.of_class(predicted) & np.isfinite(self.columns["jsd"])
        found, attainable = self.columns["jsd"][chosen], self.columns["attainable"][chosen]
        median = float(np.median(found)) if len(found) else float("nan")
        share = mean_of(found[attainable > 0] / attainable[attainable > 0])
        return FoundDistance(mean_of(found), median, mean_of(found >= FAR_JSD), share, len(found))

    def _finite(self, column: str, chosen: np.ndarray) -> np.ndarray:
        values = self.columns[column][chosen]
        return values[np.isfinite(values)]

    def to_fields(self) -> RowFields:
        """Plain lists for a JSON file, rounded to 6 digits; None where a number is undefined."""
        lists = {
            name: [None if value != value else round(value, 6) for value in values.tolist()]
            for name, values in self.columns.items()
        }
        return {"labels": list(self.labels), "columns": lists}

    @staticmethod
    def from_fields(fields: RowFields) -> "JainWallaceRows":
        columns = {name: np.array(values, dtype=np.float64) for name, values in fields["columns"].items()}
        return JainWallaceRows(tuple(fields["labels"]), columns)


def read_pair(pair: str, what: str, row: AuditRow) -> float | None:
    return row["pairs"].get(pair, {}).get(what)


def mean_of(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def choose_jain_wallace_search(preset: str, *, has_question: bool) -> SearchSettings:
    """The settings of the adversarial search for a task with or without a question."""
    if preset not in PRESETS:
        raise InputError(f"There is no preset {preset!r}. Available: {', '.join(PRESETS)}.", code="E_OPTION")
    if preset == "paper" and has_question:
        return SearchSettings(tolerance=QUESTION_TOLERANCE, selection=QUESTION_TOLERANCE)
    return PRESETS[preset]


def measure_jain_wallace(
    model: Model,
    examples: Examples,
    *,
    tests: Sequence[str] = ATTENTION_TESTS,
    preset: str = "released",
    draws: int = 100,
    search_limit: int | None = 200,
    limit: int | None = None,
) -> JainWallaceRows:
    """Audit a model on (input, label). A text is a classification; a pair of texts has a question."""
    first = load_first(examples)
    search: Any = choose_jain_wallace_search(preset, has_question=is_text_pair(first))
    found = audit(
        model, examples if isinstance(examples, Data) else list(examples), "last",
        tests=tests, preset=search, samples=draws, kinds=["permutation"], search_limit=search_limit, limit=limit,
    )  # fmt: skip
    return collect_jain_wallace_rows(found)


def load_first(examples: Examples) -> str | tuple[str, str]:
    return examples.examples[0].load() if isinstance(examples, Data) else examples[0][0]


def collect_jain_wallace_rows(found: Audit, attention: str | None = None) -> JainWallaceRows:
    """The numbers of the tables, from the rows of an audit; by default of its first attention."""
    name = found.attention[0] if attention is None else attention
    by_test: dict[str, dict[int, AuditRow]] = {}
    for row in found.rows:
        if row["attention"] in ("", name) and not row.get("undefined"):
            by_test.setdefault(row["test"], {})[row["example"]] = row
    answers = by_test["answer"]

    def column(test: str, read: Callable[[AuditRow], float | None]) -> np.ndarray:
        found_rows = by_test.get(test, {})
        numbers = [read(found_rows[i]) if i in found_rows else None for i in sorted(answers)]
        return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)

    columns = {
        "predicted": column("answer", lambda row: row["predicted"]),
        "label": column("answer", lambda row: -1 if row["label"] is None else row["label"]),
        "tokens": column("answer", lambda row: row["tokens"]),
        "permuted": column("replacement", lambda row: row["kinds"]["permutation"]["tvd"]),
        "jsd": column("adversarial", lambda row: row["jsd"]),
        "attainable": column("adversarial", lambda row: row["attainable"]),
    }
    moved, searched = (column(test, lambda row: row["largest"]) for test in ("replacement", "adversarial"))
    columns["largest"] = np.where(np.isfinite(moved), moved, searched)
    for short, pair in PAIRS.items():
        for what in ("tau", "p", TOP_K_DISTANCE):
            columns[f"{short}_{what}"] = column("agreement", partial(read_pair, pair, what))
    return JainWallaceRows(found.labels or (), columns)
