r"""Conditioning: how much rounding can change the scores.

    e = explain(model, inputs, "lrp")
    e.conditioning.estimate        one number per example: the expected error of the relevance, relative to it
    e.conditioning.is_determined   one flag per example: rounding does not decide the order of the top scores

    e = explain(model, inputs, "lrp", health=True)
    print(e.conditioning)          also what changes if all weights and inputs are moved by one rounding

The estimate is part of every relevance pass (`_engine/relevance/rounding.py`). It tells well-conditioned methods and
models from ill-conditioned ones by orders of magnitude; how far one map of an ill-conditioned method is off is partly
chance, and only the exact measurement shows it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DETAIL_PREFIX = "rounding "  # names of details in saved files
PARTS = ("estimate", "change", "rank_correlation", "same_top")
LIMIT = 0.01  # an estimate above this: rounding may decide the order of the top scores
TOP = 5  # how many of the top scores are compared
SOUND = "a method that divides by nothing that cancels, such as gamma_attribution (images) or libragrad (texts)"
ADVICE = f'Use precision="float64" (--precision float64), or {SOUND}.'
NOTES = {
    "float32": f"Rounding in float32 may decide the order of the top scores. {ADVICE}",
    "float64": f"Rounding may decide the order of the top scores, even in float64. Use {SOUND}.",
}


@dataclass(frozen=True)
class Conditioning:
    """How much rounding can change the scores of each example. The last three are there with health=True."""

    estimate: Tensor  # [batch] expected error of the relevance that the method reads, relative to it
    change: Tensor | None = None  # [batch] largest change of a score by one rounding, relative to the largest score
    rank_correlation: Tensor | None = None  # [batch] of the scores before and after
    same_top: Tensor | None = None  # [batch] 1 if the top five scores keep their order, else 0

    @property
    def is_determined(self) -> Tensor:
        """[batch]: True where rounding does not change the order of the top scores: measured, or else estimated."""
        return self.estimate <= LIMIT if self.same_top is None else self.same_top > 0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        count, low = len(self.estimate), int((~self.is_determined).sum())
        where = "" if count == 1 else f" in {low} of {count} examples" if low else f" in any of the {count} examples"
        if self.change is None or self.rank_correlation is None:
            verb = "may decide" if low else "does not decide"
            size = f" (estimated error {float(self.estimate.max()):.0e} of the relevance)" if count else ""
            return f"Rounding {verb} the order of the top scores{where}{size}."
        verb = "changes" if low else "does not change"
        change, rank = float(self.change.max()), float(self.rank_correlation.min())
        return (
            f"Rounding {verb} the order of the top {TOP} scores{where}: moved by one rounding, scores change by up to "
            f"{change:.0e} of the largest; rank correlation {rank:.4f}."
        )

    @property
    def caution(self) -> str:
        """A short line for figures; empty if rounding does not change the order of the top scores."""
        if bool(self.is_determined.all()):
            return ""
        verb = "may decide" if self.same_top is None else "changes"
        return f"Rounding {verb} the order of the top scores."

    def __str__(self) -> str:
        return self.verdict

    def __len__(self) -> int:
        return len(self.estimate)

    def __getitem__(self, wanted: slice) -> "Conditioning":
        some = Conditioning.from_details({name: part[wanted] for name, part in self.to_details().items()})
        assert some is not None
        return some

    def to_details(self) -> dict[str, Tensor]:
        """Tensors that begin with the batch, to keep in the details of an explanation."""
        parts = {DETAIL_PREFIX + name.replace("_", " "): getattr(self, name) for name in PARTS}
        return {name: part for name, part in parts.items() if part is not None}

    @staticmethod
    def from_details(details: Mapping[str, Tensor]) -> "Conditioning | None":
        """The inverse of `to_details`; None if the details hold no estimate."""
        parts = [details.get(DETAIL_PREFIX + name.replace("_", " ")) for name in PARTS]
        return None if parts[0] is None else Conditioning(parts[0], *parts[1:])


def note_undetermined(conditioning: Conditioning, dtype: torch.dtype) -> tuple[str, ...]:
    """The note for an explanation in which rounding may decide the order of the top scores of an example."""
    if bool(conditioning.is_determined.all()):
        return ()
    return (NOTES["float64" if dtype == torch.float64 else "float32"],)


def drop_settled_notes(notes: Sequence[str], conditioning: Conditioning | None) -> tuple[str, ...]:
    """The notes of some examples of an explanation, without the one on rounding if it is about the others."""
    is_settled = conditioning is not None and bool(conditioning.is_determined.all())
    return tuple(note for note in notes if not (is_settled and note in NOTES.values()))
