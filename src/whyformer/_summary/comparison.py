"""compare_runs(): two bulk runs, of two checkpoints or two months, and RunComparison, to read, show and save."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from whyformer._plain import archive
from whyformer._runs.arguments import check_run_number
from whyformer._summary.comparison_page import make_runs_report
from whyformer._summary.moves import (
    LEVEL,
    MIN_ITEMS,
    TIE,
    ClassMove,
    Evidence,
    MovedItem,
    RunItem,
    ShareChange,
    compare_answers,
    compare_evidence,
    count_changes,
    find_foreign_labels,
    leave_out_labels,
    list_class_names,
    measure_items,
    read_run_items,
)
from whyformer._summary.rows import StoredRun, get_planned, open_stored_run
from whyformer._summary.run import PER_CLASS, choose_summarised_method
from whyformer._summary.wording import format_p
from whyformer.errors import InputError
from whyformer.results.result import Result, choose_formats
from whyformer.show.blocks import Report
from whyformer.show.score_rows import CellValue, as_csv_cell
from whyformer.show.visible import make_visible
from whyformer.show.wording import shorten_text

MOVE_COLUMNS = ("class", "items_a", "items_b", "paired", "moved", "chance", "p", "adjusted_p", "gained", "lost")
SHOWN_WORDS, SHOWN_ROWS, SHOWN_ITEMS, NAMED_CLASSES = 5, 40, 20, 3


@dataclass(frozen=True, eq=False, repr=False)
class RunComparison(Result):
    """What changed from one bulk run to another: the evidence of each class, the predictions, single items."""

    a: Path
    b: Path
    names: tuple[str, str]  # of the runs, in tables
    method: str
    items: tuple[int, int]
    shared: int  # items of both runs
    classes: tuple[ClassMove, ...] = field(repr=False)  # those that moved first
    answers: tuple[ShareChange, ...] = field(repr=False)  # right predictions, then how often each class is predicted
    changes: tuple[tuple[str, str, int], ...] = field(repr=False)  # predictions of shared items: from, to, items
    moved_items: tuple[MovedItem, ...] = field(repr=False)  # shared items, those that moved most first
    foreign: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # labels that are no classes of each model
    has_common_class: bool = True  # predicted in both runs
    notes: tuple[str, ...] = ()

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        **choose_formats(".html .txt"),
        ".json": lambda comparison: comparison_to_json(comparison),
        ".csv": lambda comparison: moves_to_csv(comparison).encode("utf-8", "backslashreplace"),
    }

    @property
    def moved(self) -> tuple[ClassMove, ...]:
        """The classes whose evidence moved significantly."""
        return tuple(move for move in self.classes if move.is_certain)

    @property
    def verdict(self) -> str:
        """One sentence about the evidence, and one about the predictions."""
        return " ".join([self._describe_evidence(), *self._describe_answers()])

    def _describe_evidence(self) -> str:
        if not self.classes:
            return f"No class has {MIN_ITEMS} items in both runs, so no evidence was compared."
        if not self.moved:
            return f"The evidence of none of {len(self.classes)} classes moved significantly (p < {LEVEL}, Holm)."
        named = ", ".join(
            f"{shorten_text(one.name, 40)} by {one.moved:.0%} (by chance {one.chance:.0%}, {format_p(one.adjusted_p)})"
            for one in self.moved[:NAMED_CLASSES]
        )
        more = f" and {len(self.moved) - NAMED_CLASSES} more" if len(self.moved) > NAMED_CLASSES else ""
        return f"The evidence of {len(self.moved)} of {len(self.classes)} classes moved: {named}{more}."

    def _describe_answers(self) -> Iterator[str]:
        for which, labels in zip(("first", "second"), self.foreign, strict=True):
            if labels:
                named = ", ".join(shorten_text(label, 40) for label in labels[:NAMED_CLASSES])
                more = f" and {len(labels) - NAMED_CLASSES} more" if len(labels) > NAMED_CLASSES else ""
                yield (
                    f"The labels {named}{more} are no classes of the {which} model, as far as it predicts; items with "
                    "them count neither as right nor as wrong."
                )
        right = next((one for one in self.answers if one.what == "right"), None)
        if right is not None:
            certainty = format_p(right.adjusted_p) if right.adjusted_p < LEVEL else "not significant"
            yield f"Right predictions: {right.before:.1%} before, {right.after:.1%} after ({certainty})."
        if not self.has_common_class:
            yield "The runs predict no class in common, so predictions are not compared."
        elif self.shared:
            changed = sum(count for _, _, count in self.changes)
            yield f"{changed} of {self.shared} shared items are predicted otherwise."

    def __repr__(self) -> str:
        return f"<RunComparison of {' and '.join(map(make_visible, self.names))}: {self.shared} shared items>"

    def records(self) -> list[dict[str, CellValue]]:
        """One mapping per class, those that moved first."""
        return [make_move_record(move) for move in self.classes]

    def _report(self) -> Report:
        return make_runs_report(self)


def compare_runs(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    method: str | None = None,
    class_limit: int = PER_CLASS,
    seed: int = 0,
) -> RunComparison:
    """What changed from bulk run `a` to bulk run `b`: of two checkpoints on one data set, or one model on two.

    Items are the same if their ids and contents are. Classes that both runs share their items of are tested pair by
    pair, others as two samples; see moves.py for the tests. method: the method whose scores are compared; None is the
    first of run a. class_limit: at most this many items of each class are compared, chosen by a hash of seed and id.
    """
    check_run_number("class_limit", class_limit, least=MIN_ITEMS)
    check_run_number("seed", seed, least=0)
    runs = [open_stored_run(Path(folder)) for folder in (a, b)]
    label = choose_summarised_method(runs[0], method)
    choose_summarised_method(runs[1], label)
    (first, failed), (second, failed_later) = (read_run_items(run, label) for run in runs)
    if not first or not second:
        raise InputError(
            f"{b if first else a} has no images or texts that are explained by a class: nothing can be compared.",
            code="E_DATA",
        )
    known = sorted(first.keys() & second.keys())
    shared = [id for id in known if is_same_item(first[id], second[id])]
    foreign = find_foreign_labels_of_runs(runs, first, second)
    left_out = {*foreign[0], *foreign[1]}
    has_common_class = bool(list_class_names(first) & list_class_names(second))
    return RunComparison(
        a=Path(a),
        b=Path(b),
        names=name_runs(runs),
        method=label,
        items=(len(first), len(second)),
        shared=len(shared),
        classes=tuple(compare_evidence(first, second, shared, class_limit, seed)),
        answers=tuple(
            compare_answers(leave_out_labels(first, left_out), leave_out_labels(second, left_out), shared, seed)
        ),
        changes=tuple(count_changes(first, second, shared)) if has_common_class else (),
        moved_items=tuple(one for one in measure_items(first, second, shared)[:SHOWN_ITEMS] if one.moved > TIE),
        foreign=foreign,
        has_common_class=has_common_class,
        notes=tuple(list_notes(runs, label, len(known) - len(shared), (failed, failed_later))),
    )


def find_foreign_labels_of_runs(
    runs: Sequence[StoredRun], first: dict[str, RunItem], second: dict[str, RunItem]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """For each run, the labels that are no classes of its model."""
    classes = [get_planned(run.plan, "model", "labels") for run in runs]
    is_same_set = None if None in classes else classes[0] == classes[1]
    return (
        tuple(find_foreign_labels(first, second, is_same_set)),
        tuple(find_foreign_labels(second, first, is_same_set)),
    )


def is_same_item(one: RunItem, other: RunItem) -> bool:
    """Whether it is not only called the same; runs that were not asked for hashes are believed."""
    return one.kind == other.kind and (None in (one.content, other.content) or one.content == other.content)


def name_runs(runs: Sequence[StoredRun]) -> tuple[str, str]:
    """The names of the folders, or of the nearest folders around them that differ; A and B for one folder."""
    parts = zip(*(reversed(run.folder.resolve().parts) for run in runs), strict=False)
    return next(((first, second) for first, second in parts if first != second), ("A", "B"))


def list_notes(runs: Sequence[StoredRun], method: str, changed: int, failed: tuple[int, int]) -> Iterator[str]:
    """What to know about the numbers."""
    for run in runs:
        yield from run.notes
    same = [get_planned(runs[0].plan, *path) == get_planned(runs[1].plan, *path) for path in
            (("model", "weights"), ("methods", method), ("preprocessing",), ("target",))]  # fmt: skip
    if get_planned(runs[0].plan, "model", "weights") is not None:
        yield "Both runs have the same weights." if same[0] else "The runs have different weights."
    for is_same, what in zip(same[1:], ("settings of the method", "preprocessing", "target"), strict=True):
        if not is_same:
            yield f"The {what} differ between the runs, which can move the evidence by itself."
    if changed:
        yield f"{changed} ids are in both runs with other contents; they are not taken for the same items."
    if any(failed):
        yield f"{failed[0]} items of the first run and {failed[1]} of the second failed, and are left out."


def make_move_record(move: ClassMove) -> dict[str, CellValue]:
    gained, lost = (", ".join(word for word, _ in words) for words in move.list_words(SHOWN_WORDS))
    values = (move.name, *move.items, move.is_paired, move.moved, move.chance, move.p, move.adjusted_p, gained, lost)
    return dict(zip(MOVE_COLUMNS, values, strict=True))


# --- files ------------------------------------------------------------------------------------------------------------


def moves_to_csv(comparison: RunComparison) -> str:
    """One row per class."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(MOVE_COLUMNS)
    writer.writerows(map(as_csv_cell, record.values()) for record in comparison.records())
    return file.getvalue()


def comparison_to_json(comparison: RunComparison) -> bytes:
    """Everything but the images, as JSON."""
    fields = {
        "verdict": comparison.verdict,
        "runs": comparison.names,
        "method": comparison.method,
        "items": comparison.items,
        "shared": comparison.shared,
        "classes": [
            {**record, "before": describe_mean(move.before), "after": describe_mean(move.after)}
            for record, move in zip(comparison.records(), comparison.classes, strict=True)
        ],
        "answers": [asdict(one) for one in comparison.answers],
        "changes": [{"from": old, "to": new, "items": count} for old, new, count in comparison.changes],
        "labels_that_are_no_classes": comparison.foreign,
        "moved_items": [
            {"id": one.before.id, "class_a": one.before.class_name, "class_b": one.after.class_name, "moved": one.moved}
            for one in comparison.moved_items
        ],
        "notes": comparison.notes,
    }
    return (json.dumps(archive.as_json_value(fields), indent=1) + "\n").encode("ascii")


def describe_mean(evidence: Evidence) -> list[list[float]] | dict[str, float]:
    """A map, or the words with the largest shares."""
    if isinstance(evidence, np.ndarray):
        return [[float(share) for share in row] for row in evidence]
    return dict(sorted(evidence.items(), key=lambda item: (-item[1], item[0]))[:50])
