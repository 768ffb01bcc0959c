"""Objects in an image: a model that answers with a class and a box for each of its learned queries (DETR)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.target_like import Named, Settled, TargetKind
from whyformer._engine.targets.target_words import check_task, write_name
from whyformer._engine.targets.terms import Term
from whyformer.errors import TargetError

BOXES = "pred_boxes"  # the field of the output: [batch query 4], centre and size as shares of the image
SIDES = ("x", "y", "width", "height")
Side = Literal["x", "y", "width", "height"]


@dataclass(frozen=True)
class Query(TargetKind):
    """The logit of a class at one query of a model that finds objects, or one side of the box of that query.

    By default the query that is surest of an object, and the class it names; with a label alone, the query that is
    surest of this class. side: "x" and "y" of the centre, "width" or "height" of the box, instead of the class.
    """

    number: int | None = None
    label: Named | None = None
    side: Side | None = None

    def settle(self, view: AnswerView, row: int) -> Settled:
        check_task(view, "query", "Query", "a model that finds objects by queries")
        chances = find_chances(view, row)
        index = None if self.label is None else view.names.index(self.label)
        if self.number is None:
            number = int((chances.amax(-1) if index is None else chances[:, index]).argmax())
        else:
            number = check_query(self.number, len(chances))
        index = int(chances[number].argmax()) if index is None else index
        what = f"{view.names.label(index)} at query {number}"
        if self.side is None:
            return Settled((Term((number, index)),), what, Query(number, index))
        if self.side not in SIDES:
            raise TargetError(f"A box has no side {self.side!r}. Sides are: {', '.join(SIDES)}.")
        term = Term((number, SIDES.index(self.side)), field=BOXES)
        return Settled((term,), f"{self.side} of the box of {what}", Query(number, index, self.side))

    def __str__(self) -> str:
        number = "" if self.number is None else str(self.number)
        label = "" if self.label is None else f"={write_name(self.label)}"
        side = "" if self.side is None else f"@{self.side}"
        return f"query:{number}{label}{side}".removesuffix(":")


def find_chances(view: AnswerView, row: int) -> Tensor:
    """[query class]: the probability of each class of objects; each has one of its own where none means no object."""
    logits = view.logits[row].double()
    return logits.softmax(-1)[:, :-1] if view.names_nothing else logits.sigmoid()


def check_query(number: int, count: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        raise TargetError(f"There is no query {number!r}. Queries are 0 to {count - 1}.")
    return number
