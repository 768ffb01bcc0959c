r"""What the model says with the highest words hidden, and with everything hidden: the test of one explanation.

    e = explain(model, inputs, check=True)
    print(e.hiding)      99 % -> 97 % with the 2 highest words hidden; 61 % with every word hidden

An explanation says what the answer depends on, so the answer must change when that is hidden. A model that says the
same when everything is hidden has not used the input for it, whatever a map shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine import Target
from whyformer._plain.tokens import Grid, ScoredTokens

DETAIL = "answer with parts hidden"  # name of the detail in saved files
MEASURES = ("score", "probability", "per token")  # the last: the geometric mean over the tokens of an answer
LEAST_SHARE = 1 / 20  # of the distance to the answer with everything hidden
LEAST_PROBABILITY = 0.01  # a distance below one percentage point is none
CLEAR = 5  # times that: a change that a person would call one


@dataclass(frozen=True)
class Hiding:
    """The answer to each example: as it is, without its highest units, and without any; and how many were hidden."""

    answers: Tensor  # [batch 3]
    hidden: Tensor  # [batch], how many units are "the highest": 0 if no score is positive
    measures: tuple[str, ...]  # per example: "score", "probability", or "per token"
    units: tuple[str, ...]  # per example: "word", "token", "patch", or "part" of images and words
    predicted: tuple[bool, ...]

    @staticmethod
    def from_details(details: Mapping[str, Tensor], units: Sequence[str], targets: Sequence[Target]) -> "Hiding | None":
        """None if the explanation was not checked."""
        if DETAIL not in details:
            return None
        found = details[DETAIL]
        return Hiding(
            answers=found[:, :3],
            hidden=found[:, 3].long(),
            measures=tuple(MEASURES[int(one)] for one in found[:, 4]),
            units=tuple(units),
            predicted=tuple(target.predicted for target in targets),
        )

    def __len__(self) -> int:
        return len(self.answers)

    def describe(self, example: int = 0) -> str:
        """'99 % -> 97 % with the 2 highest words hidden; 61 % with every word hidden'"""
        before, top, nothing = (self.format_answer(example, column) for column in range(3))
        unit, count = self.units[example], int(self.hidden[example])
        highest = f"the highest {unit}" if count == 1 else f"the {count} highest {plural(unit)}"
        change = f"{before} -> {top} with {highest} hidden" if count else f"{before}; no {unit} has a positive score"
        share = " (per token)" if self.measures[example] == "per token" else ""
        return f"{change}; {nothing} with every {unit} hidden{share}"

    def warn(self, example: int = 0) -> str:
        """What the numbers speak against, in a sentence; empty if nothing."""
        before, top, nothing = self.answers[example].tolist()
        unit, least = self.units[example], self.least_distance(example)
        if abs(before - nothing) < least or (self.predicted[example] and nothing > before):
            if self.hidden[example] and before - top >= CLEAR * least:
                return (
                    f"The model gives the same answer with every {unit} hidden. The highest {plural(unit)} only keep "
                    "it: the others alone lower it."
                )
            return (
                f"The model gives the same answer with every {unit} hidden, so hiding cannot show which {plural(unit)} "
                "decide it, if any."
            )
        if self.hidden[example] and abs(before - top) < LEAST_SHARE * abs(before - nothing):
            return (
                f"Hiding the highest {plural(unit)} hardly changes the answer: it depends on others, or others are "
                "enough for it."
            )
        return ""

    def least_distance(self, example: int) -> float:
        """The smallest change of the answer that counts as one."""
        if self.measures[example] != "score":
            return LEAST_PROBABILITY
        return LEAST_PROBABILITY * float(self.answers[example, 0].abs())

    def format_answer(self, example: int, column: int) -> str:
        answer = float(self.answers[example, column])
        return f"{answer:.3g}" if self.measures[example] == "score" else f"{100 * answer:.0f} %"

    def list_lines(self, example: int = 0) -> tuple[str, ...]:
        """The numbers and, if there is one, the warning."""
        warning = self.warn(example)
        return (self.describe(example), *([warning] if warning else []))

    def __str__(self) -> str:
        return "\n".join(line for example in range(len(self)) for line in self.list_lines(example))


def name_hidden_unit(tokens: ScoredTokens) -> str:
    if isinstance(tokens, Grid):
        return "patch"
    return "token" if tokens.text is None else "word"


def plural(unit: str) -> str:
    return "patches" if unit == "patch" else f"{unit}s"


def make_hiding_detail(answers: Tensor, hidden: Sequence[int], measure: str) -> dict[str, Tensor]:
    """The detail that `Hiding.from_details` reads; answers: [batch 3]."""
    facts = [[float(count), float(MEASURES.index(measure))] for count in hidden]
    return {DETAIL: torch.cat([answers.double(), torch.tensor(facts, dtype=torch.double)], 1)}
