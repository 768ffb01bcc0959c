"""Ask many models, and count what came of it."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from strangers.grammar import FAMILIES, draw_methods
from strangers.outcome import MET, OUTCOMES, Outcome, Question, ask

DRAWN = 3  # methods beside the default


@dataclass(frozen=True)
class Answer:
    """What came of one method on one model."""

    kinds: tuple[str, ...]
    outcome: Outcome

    @property
    def is_met(self) -> bool:
        return self.outcome.kind in MET


def ask_all(questions: Iterable[Question], seed: int, drawn: int = DRAWN) -> Iterator[Answer]:
    """The default and some drawn methods of each; those of which no right answer is known are drawn again."""
    for number, question in enumerate(questions):
        dice = random.Random(f"methods {seed} {number}")
        found = 0
        for method, settings in draw_methods(question, dice):
            if found > drawn:
                break
            outcome = ask(question, method, settings)
            if outcome is not None:
                yield Answer(question.kinds, outcome)
            found += outcome is not None or method is None


def count_by_family(answers: Iterable[Answer]) -> dict[str, Counter[str]]:
    """Of the first kind of each model."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        counts[FAMILIES[answer.kinds[0]]][answer.outcome.kind] += 1
    return counts


def write_table(answers: list[Answer]) -> str:
    """A row for each family of kinds, and the sum."""
    counts = count_by_family(answers)
    counts["all"] = sum(counts.values(), Counter())
    short = ["right", "noted", "named", "refused", "needless", "raw", "alarm", "SILENT"]
    lines = [f"{'':18}" + "".join(f"{word:>9}" for word in short)]
    for family, own in counts.items():
        lines.append(f"{family:18}" + "".join(f"{own[kind]:>9}" for kind in OUTCOMES))
    whole = sum(counts["all"].values())
    shares = [f"{kind} {counts['all'][kind] / max(whole, 1):.1%}" for kind in OUTCOMES]
    return "\n".join([*lines, f"{whole} answers: " + ", ".join(shares)])
