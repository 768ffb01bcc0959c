"""What cite() spends on one answer: said beforehand, counted afterwards.

    fast      one relevance pass; verdicts by how certain the answer is, so fewer of them
    checked   two relevance passes, of which one without the first source, four ablations for the verdict, and eight for
              the scores, which rest on these, on the first pass and on the prompt without the first source: 12 forwards
    thorough  the same with more checks, 64 random ablations for the scores and 32 fresh ones to measure them

A relevance pass costs a forward and about two more. An answer of several sentences costs that for each of them too.
"""

from dataclasses import dataclass

from whyformer._cite.estimate import CODES
from whyformer.errors import InputError

PER_RELEVANCE = 3  # forwards
BASELINE = 2  # forwards with all sources: of the log-odds that ablations are compared with, and of the probabilities


@dataclass(frozen=True)
class Effort:
    """How much is asked of the model for one answer or sentence."""

    relevance_passes: int
    blocks: int = 0  # of sources, left out as a whole
    coded: int = 0  # ablations that the scores are fitted to
    checks: int = 0  # of candidates
    samples: int = 0  # random ablations for the scores
    measured: int = 0  # random ablations that measure them

    def count_forwards(self) -> int:
        """At most, a relevance pass counted as three."""
        asked = self.blocks + self.coded + self.checks + self.samples + self.measured
        return self.relevance_passes * PER_RELEVANCE + asked + (BASELINE if asked else 1)


EFFORTS: dict[str, Effort] = {
    "fast": Effort(1),
    "checked": Effort(2, blocks=3, coded=2 * CODES, checks=1),
    "thorough": Effort(2, blocks=8, coded=2 * CODES, checks=8, samples=64, measured=32),
}


def choose_effort(name: str) -> Effort:
    if name not in EFFORTS:
        raise InputError(f"effort must be one of {', '.join(EFFORTS)}, got {name!r:.80}.", code="E_OPTION")
    return EFFORTS[name]


def describe_effort(name: str, sentences: int = 1) -> str:
    """What one answer costs, in a sentence."""
    parts = sentences + 1 if sentences > 1 else 1
    return f"{name}: at most {choose_effort(name).count_forwards() * parts} forwards, a relevance pass counted as three"


def describe_log_effort(name: str) -> str:
    """What a record of a log costs, in a sentence."""
    return f"{describe_effort(name)}, for each record, and as many for each sentence if an answer has several"
