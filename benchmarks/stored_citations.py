"""Verdicts and scores of stored outcomes (citation_outcomes.py): what cite() says, without running a model again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whyformer._cite.ablations import Ablations
from whyformer._cite.calibration import measure_features
from whyformer._cite.effort import EFFORTS, PER_RELEVANCE, RIVAL
from whyformer._cite.likelihood import Likelihood
from whyformer._cite.mention import match_question
from whyformer._cite.verification import Evidence, find_evidence, find_rival_basis

Entry = Mapping[str, Any]
AskModel = Callable[[torch.Tensor], torch.Tensor]  # [n]: the log-odds with these sources [n source]


def read_entries(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Whole lines; the last one of a run that was stopped may be cut."""
    for file in files:
        for line in file.read_text("utf-8").splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def write_set(keep: Sequence[bool]) -> str:
    return f"{sum(1 << i for i, kept in enumerate(keep) if kept):x}"


def round_outcome(value: float) -> float:
    return float(f"{value:.6g}")


def read_set(written: str, sources: int) -> tuple[bool, ...]:
    number = int(written, 16)
    return tuple(bool(number >> source & 1) for source in range(sources))


class StoredAblations(Ablations):
    """Knows the log-odds of the ablations that were stored, and no others.

    ask_model: while outcomes are recorded, what is missing is asked of the model and stored.
    """

    def __init__(
        self, entry: Entry, tokens: int, spans: Sequence[Sequence[int]], ask_model: AskModel | None = None
    ) -> None:
        count = len(entry["relevance"])
        self.written, self.ask_model = entry["known"], ask_model
        self.stored = {read_set(written, count): value for written, value in entry["known"].items()}
        self.lengths = torch.tensor([stop - start for start, stop in spans], dtype=torch.float64) / tokens
        self.full, self.forwards = entry["full"], 0.0
        self.known = {(True,) * count: self.full}

    def ask(self, keep: torch.Tensor) -> torch.Tensor:
        rows = [tuple(row) for row in keep.bool().tolist()]
        missing = [row for row in dict.fromkeys(rows) if row not in self.known and row not in self.stored]
        if missing and self.ask_model is not None:
            values = [round_outcome(value) for value in self.ask_model(torch.tensor(missing)).tolist()]
            self.stored |= dict(zip(missing, values, strict=True))
            self.written |= {write_set(row): value for row, value in zip(missing, values, strict=True)}
        new = {row: self.stored[row] for row in dict.fromkeys(rows) if row not in self.known}
        self.known |= new
        self.forwards += float(self.count_forwards(torch.tensor(list(new))).sum()) if new else 0.0
        return torch.tensor([self.known[row] for row in rows], dtype=torch.float64)

    def count_forwards(self, keep: torch.Tensor) -> torch.Tensor:
        return 1 - (~keep.bool()).double() @ self.lengths

    def leave_out(self, sets: Sequence[Sequence[int]]) -> torch.Tensor:
        keep = torch.ones(len(sets), len(self.lengths), dtype=torch.bool)
        for row, left_out in zip(keep, sets, strict=True):
            row[list(left_out)] = False
        return keep


def find_stored_evidence(entry: Entry, effort: str, ask_model: AskModel | None = None) -> tuple[Evidence, float]:
    """What an answer rests on, and what that cost in forwards, a relevance pass counted as three."""
    relevance, plan = np.array(entry["relevance"]), EFFORTS[effort]
    if not plan.leaves_out:
        return Evidence(relevance, int(relevance.argmax()), relevance), PER_RELEVANCE
    rival = entry.get("rival")
    ablations = StoredAblations(entry, entry["tokens"], entry["spans"], ask_model)
    left = plan.forwards - PER_RELEVANCE - RIVAL * (rival is not None)
    found = find_evidence(ablations, relevance, left, entry["least"], asked=read_asked_words(entry))
    spent = PER_RELEVANCE + ablations.forwards
    if rival is not None:
        others = StoredAblations(rival, entry["tokens"], entry["spans"])
        found.against = find_rival_basis(others, np.array(rival["relevance"]), rival["containing"]) or found.against
        spent += PER_RELEVANCE + others.forwards
    return found, spent


def read_asked_words(entry: Entry) -> np.ndarray:
    """[word source]: which sources contain each word of the question."""
    count = len(entry["relevance"])
    return np.array([read_set(written, count) for written in entry["asked"]], dtype=bool).reshape(-1, count)


def judge_stored_claim(entry: Entry, effort: str) -> dict[str, Any]:
    """A case of citation_verdicts.py."""
    found, spent = find_stored_evidence(entry, effort)
    likelihood = Likelihood(0.0, 0.0, 0.0, entry["least"])
    topic = match_question(read_asked_words(entry), found.likely_basis)
    labels = ("model", "world", "seed", "passages", "kind", "way", "support", "against")
    return {
        **{name: entry[name] for name in labels if name in entry}, "effort": effort,
        "basis": list(found.likely_basis), "how": found.how, "opposed": list(found.against),
        "features": measure_features(likelihood, found, entry["mentioned"], topic), "forwards": spent,
    }  # fmt: skip
