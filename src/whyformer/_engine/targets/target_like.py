"""TargetLike: what explain() and the other verbs take as `target` and `versus`; the base of all kinds of target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

import numpy as np
from torch import Tensor
from typing_extensions import TypeAliasType

from whyformer._engine.targets.terms import Term

if TYPE_CHECKING:
    from whyformer._engine.targets.answer_view import AnswerView


@dataclass(frozen=True)
class Settled:
    """A target of one example: the terms of its score, its name, and the same target with everything fixed."""

    terms: tuple[Term, ...]
    label: str
    fixed: "TargetKind"
    note: str = ""


class TargetKind:
    """A target that is more than a class or a next token. Immutable; `str()` gives its text for the command line."""

    def settle(self, view: "AnswerView", row: int) -> Settled:
        raise NotImplementedError

    def __str__(self) -> str:
        arguments = "-".join(str(value) for value in vars(self).values() if value is not None)
        return f"{type(self).__name__.lower()}:{arguments}".removesuffix(":")


# A class or token by index or name; another kind of target; a function of the model's output; None: the prediction.
Named: TypeAlias = str | SupportsIndex
OneTarget: TypeAlias = Named | TargetKind | Callable[..., Tensor] | None
# One for all examples, or one for each.
TargetLike = TypeAliasType("TargetLike", "OneTarget | Sequence[TargetLike] | Tensor | np.ndarray")
