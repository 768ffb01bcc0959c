"""Scores of one model: was the mark used, was it found, was anything accused, and if it was missed, why."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

USED = 0.1  # accuracy on marked items that is lost without the mark
FIRST = 3  # findings that a reader looks at
RECALL, PRECISION = 0.5, 0.8


class Row(Protocol):
    id: str


class Found(Protocol):
    """What is scored of a finding."""

    rows: Sequence[Row]
    is_suspicious: bool
    criteria: Mapping[str, bool | None]


@dataclass(frozen=True)
class Score:
    found: bool
    accused: bool
    missed: str  # why, if the mark was not found
    rank: int | None  # of the first suspicious finding that holds the mark


def holds_mark(ids: Collection[str], marked: Collection[str]) -> bool:
    """Whether a finding holds half of the marked items, and four of five of its items are marked."""
    both = len(set(ids) & set(marked))
    return both >= RECALL * len(marked) > 0 and both >= PRECISION * len(ids)


def score_findings(findings: Sequence[Found], marks: Mapping[str, Collection[str]]) -> Score:
    """marks: the ids of the marked items, by mark; a finding must hold one of the marks."""
    suspicious = [one for one in findings if one.is_suspicious]
    holding = [one for one in findings if any(holds_mark([row.id for row in one.rows], ids) for ids in marks.values())]
    ranks = [rank for rank, one in enumerate(suspicious, 1) if one in holding]
    if ranks and ranks[0] <= FIRST:
        return Score(True, bool(suspicious), "", ranks[0])
    return Score(False, bool(suspicious), explain_miss(holding, bool(ranks)), ranks[0] if ranks else None)


def explain_miss(holding: Sequence[Found], is_suspicious: bool) -> str:
    if is_suspicious:
        return f"not among the first {FIRST}"
    if not holding:
        return "no finding gathers the marked items"
    failed = [name for name, holds in holding[0].criteria.items() if holds is False and name != "off the object"]
    return f"gathered, but not called {' or '.join(failed) or 'suspicious'}"


def name_role(role: str, with_mark: float, without_mark: float) -> str:
    """used, ignoring, clean, or weak: a mark that is neither used nor ignored, which counts for nothing."""
    if role == "clean":
        return role
    loss = round(with_mark - without_mark, 6)
    if role == "planted" and loss >= USED:
        return "used"
    return "ignoring" if role == "ignoring" and abs(loss) < USED else "weak"
