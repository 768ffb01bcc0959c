"""What was measured on one model of Jain & Wallace, as the numbers of the published tables, and how seeds combine.

A *cell* is one model: task, encoder, attention and seed. Its numbers are those of `JainWallaceRows`, overall and by
predicted class. Cells of the same model with other seeds form a group: the mean of their numbers is shown, and the
range over seeds.

`jain_wallace_measured.json` is the `cells.json` that `training/jain_wallace/measure.py` wrote, of models that
`training/jain_wallace/train.py` trained.

`jain_wallace_earlier.json` is no such file: it has the numbers of an earlier run on SST-2 (punctuation kept, 30 % of
the words dropped in training, the epoch with the best accuracy), copied from its printed tables with two or three
digits. Its models are not in the repository. Tables show it as "earlier run", never mixed with the others.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from whyformer_papers.jain_wallace_rows import BIN_NAMES, PAIRS, JainWallaceRows
from whyformer_papers.jain_wallace_tasks import DATA_SETS

MEASURED_FILE = Path(__file__).parent / "jain_wallace_measured.json"
EARLIER_FILE = Path(__file__).parent / "jain_wallace_earlier.json"
EARLIER = "dropout"  # the suffix of its cells
MOST_CLASSES = 3  # tasks with more classes are reported overall only, as in the authors' files
OVERALL = "overall"


RoundedNumbers = list[float | None]


class CellNumbers(TypedDict, total=False):
    """The numbers of the tables: overall, and by class where there are few. None: undefined."""

    examples: int
    accuracy: float | None
    tau: dict[str, dict[str, RoundedNumbers]]  # by pair and class: mean, spread, share significant, examples
    top_k: dict[str, float | None]
    permuted: dict[str, list[RoundedNumbers]]  # by class: of all bins, then of each, the median and how many examples
    found: dict[str, RoundedNumbers]  # by class: mean, median, share of far ones, of the attainable distance, examples


@dataclass(frozen=True)
class ModelCell:
    """One measured model."""

    task: str
    encoder: str
    attention: str
    seed: int
    numbers: CellNumbers
    suffix: str = ""  # of a model that was trained in another way

    @property
    def model(self) -> tuple[str, str]:
        return self.encoder, self.attention

    @property
    def dataset(self) -> str:
        """The published data set that the task is, or is like; for another task its own name."""
        return DATA_SETS.get(self.task, self.task)


def summarise_cell(rows: JainWallaceRows) -> CellNumbers:
    labels = rows.labels if len(rows.labels) <= MOST_CLASSES else ()
    groups: dict[str, int | None] = {OVERALL: None, **{str(index): index for index in range(len(labels))}}
    return {
        "examples": len(rows),
        "accuracy": round_number(rows.accuracy),
        "tau": {pair: {name: round_all(rows.correlation(pair, at)) for name, at in groups.items()} for pair in PAIRS},
        "top_k": {pair: round_number(rows.top_k_distance(pair)) for pair in PAIRS},
        "permuted": {
            name: [round_all(rows.permutation(bin_name, at)) for bin_name in (None, *BIN_NAMES)]
            for name, at in groups.items()
        },
        "found": {name: round_all(rows.adversarial(at)) for name, at in groups.items()},
    }


def round_all(numbers: Iterable[float]) -> RoundedNumbers:
    return [round_number(number) for number in numbers]


def round_number(number: float) -> float | None:
    """To 4 digits; None for NaN, which JSON does not have."""
    return None if math.isnan(number) else round(number, 4)


@cache
def read_cells(file: Path) -> tuple[ModelCell, ...]:
    """The cells that are stored with the package: MEASURED_FILE, or EARLIER_FILE, whose cells have a suffix."""
    return tuple(ModelCell(**fields) for fields in json.loads(file.read_text("utf-8")))


@dataclass(frozen=True)
class CellGroup:
    """The same model with several seeds."""

    cells: Sequence[ModelCell]

    def read(self, *keys: str | int) -> list[float]:
        """One number of each cell, by its path; cells without it are left out."""
        found = []
        for cell in self.cells:
            value: Any = cell.numbers
            for key in keys:
                value = None if value is None else value.get(key) if isinstance(value, Mapping) else value[key]
            if value is not None:
                found.append(float(value))
        return found

    def mean(self, *keys: str | int) -> float | None:
        values = self.read(*keys)
        return sum(values) / len(values) if values else None


def group_cells(cells: Iterable[ModelCell], suffix: str = "") -> dict[tuple[str, tuple[str, str]], CellGroup]:
    """By data set and (encoder, attention); only models that were trained in the way that the suffix names."""
    groups: dict[tuple[str, tuple[str, str]], list[ModelCell]] = {}
    for cell in cells:
        if cell.suffix == suffix:
            groups.setdefault((cell.dataset, cell.model), []).append(cell)
    return {key: CellGroup(sorted(group, key=lambda cell: cell.seed)) for key, group in groups.items()}
