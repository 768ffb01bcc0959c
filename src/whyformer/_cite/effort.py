"""What cite() spends on one answer: said beforehand, counted afterwards.

    fast      one relevance pass: scores of the sources, and nothing about what the answer rests on
    checked   16 coded ablations and direct checks; of more than eight sources also a relevance pass, which chooses
    thorough  all subsets of up to eight sources; of more, each alone and left out, and the pairs of five

An ablation counts as the share of the tokens that it reads, a relevance pass as three forwards.
"""

from dataclasses import dataclass

from whyformer.errors import InputError

OPENING = 6  # forwards more, to find a source in a group that was left out as one


@dataclass(frozen=True)
class Effort:
    """How much is asked of the model."""

    says: str
    forwards: int = 0  # for the answer, at most; 0: nothing is left out
    each: int = 0  # more for each further sentence
    is_complete: bool = False


EFFORTS = {
    "fast": Effort("fast: 3 forwards; nothing is left out"),
    "checked": Effort("checked: at most 14 forwards (22 of over eight sources), 4 for each further sentence", 14, 4),
    "thorough": Effort(
        "thorough: all subsets of up to eight sources; of more, singles and pairs", 256, is_complete=True
    ),
}


def choose_effort(name: str) -> Effort:
    if name not in EFFORTS:
        raise InputError(f"effort must be one of {', '.join(EFFORTS)}, got {name!r:.80}.", code="E_OPTION")
    return EFFORTS[name]
