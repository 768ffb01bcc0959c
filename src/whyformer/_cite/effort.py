"""What cite() spends on one answer: said beforehand, counted afterwards.

    fast      one relevance pass; verdicts by how certain the answer is, so fewer of them
    checked   also as many coded ablations as 12 forwards allow, for verdict and scores; if the model would rather say
              something else, a relevance pass of that, and fewer ablations
    thorough  the same, 8 candidates left out alone, 64 random ablations for the scores, 32 fresh ones to measure them

A relevance pass costs a forward, which also has the probabilities of the answer, and about two more. An ablation costs
the share of the tokens of the prompt that it reads: without half of them, half a forward. An answer of several
sentences costs that for each of them too.
"""

from dataclasses import dataclass

from whyformer._cite.faithfulness import RANDOM_SETS, TOP_SIZES
from whyformer.errors import InputError

PER_RELEVANCE = 3  # forwards
RIVAL = PER_RELEVANCE + 2  # forwards: what another answer rests on
CONFIRMED = 5  # sets of candidates that are left out together, in a thorough search


@dataclass(frozen=True)
class Effort:
    """How much is asked of the model for one answer or sentence."""

    forwards: int  # for relevance and coded ablations
    checks: int = 0  # candidates that are left out alone
    samples: int = 0  # random ablations for the scores
    measured: int = 0  # random ablations that measure them

    @property
    def leaves_out(self) -> bool:
        return self.forwards > PER_RELEVANCE

    def count_forwards(self) -> int:
        """At most, a relevance pass counted as three."""
        checked = self.checks + CONFIRMED if self.checks else 0
        measured = self.measured + (RANDOM_SETS + 1) * len(TOP_SIZES) if self.measured else 0
        return self.forwards + checked + self.samples + measured


EFFORTS: dict[str, Effort] = {
    "fast": Effort(PER_RELEVANCE),
    "checked": Effort(12),
    "thorough": Effort(12, checks=8, samples=64, measured=32),
}


def choose_effort(name: str) -> Effort:
    if name not in EFFORTS:
        raise InputError(f"effort must be one of {', '.join(EFFORTS)}, got {name!r:.80}.", code="E_OPTION")
    return EFFORTS[name]


def describe_effort(name: str, sentences: int = 1, own_runs: str = "") -> str:
    """What one answer costs, in a sentence. own_runs: a method whose runs of the model are not counted in it."""
    parts = sentences + 1 if sentences > 1 else 1
    forwards = choose_effort(name).count_forwards() * parts
    more = f", and those of {own_runs}" if own_runs else ""
    return f"{name}: at most {forwards} forwards, a relevance pass counted as three{more}"


def describe_log_effort(name: str) -> str:
    """What a record of a log costs, in a sentence."""
    return f"{describe_effort(name)}, for each record, and as many for each sentence if an answer has several"
