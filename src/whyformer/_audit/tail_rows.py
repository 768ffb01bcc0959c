"""The same tail for other rows: examples several times or not at all, or the queries that are replaced alone.

    choose_rows(tail, {3: 0}, torch.tensor([0, 0, 2]))      axis 0 of the weights of block 3: examples 0, 0 and 2
    choose_rows(tail, {3: 2}, torch.tensor([0]))            axis 2: the first query alone

Operations of a tail treat the rows of a batch independently; where they treat the tokens independently too (everything
after the attention of the last block), one query can be computed without the others. So each operation is followed
with one question: which axis of its result has the rows? From this the constants are cut to the chosen rows, and sizes
that an operation is told (`view`) change accordingly.

An axis may contain the rows beside others, as after `view(rows * tokens, channels)`: it has the sizes outer x rows x
inner. An operation that is not known here, or that mixes the rows, raises `Inseparable`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.tail import Shape, Tail, TailStep, finish_tail
from whyformer._engine import Slot, map_entries

aten = torch.ops.aten
Operand = Slot | Tensor


class Inseparable(Exception):
    """The rows cannot be computed one without the others. The message says at which operation."""


@dataclass(frozen=True)
class RowAxis:
    """The axis that contains the rows: outer x rows x inner entries."""

    axis: int
    outer: int = 1
    inner: int = 1


def choose_rows(tail: Tail, axes: Mapping[int, int], rows: Tensor) -> Tail:
    """The tail for these rows of the given axis of each input."""
    slots = {tail.inputs[block]: RowAxis(axis) for block, axis in axes.items()}
    counts = {tail.shapes[slot][place.axis] for slot, place in slots.items()}
    if len(counts) != 1:
        raise Inseparable("the inputs have different numbers of rows")
    choice = RowChoice(tail, slots, counts.pop(), rows)
    for step in tail.steps:
        choice.follow(step)
    return finish_tail(tail.inputs, choice.steps, tail.output, choice.shapes)


class RowChoice:
    """Goes through the operations of a tail and keeps the chosen rows of each."""

    def __init__(self, tail: Tail, axes: Mapping[int, RowAxis], count: int, rows: Tensor) -> None:
        self.before, self.count, self.rows = tail.shapes, count, rows
        self.axes: dict[int, RowAxis | None] = dict(axes)
        self.steps: list[TailStep] = []
        self.shapes = dict(tail.shapes)
        self._next = max(tail.shapes) + 1
        self._cut: dict[tuple[int, RowAxis], Operand] = {}
        for slot, place in axes.items():
            self.shapes[slot] = self.resize(tail.shapes[slot], place)

    def follow(self, step: TailStep) -> None:
        """Add the operation for the chosen rows."""
        if all(self.axes.get(number) is None for number in step.operands()):
            self.steps.append(step)  # the same in every row
            return
        name = step.function._schema.name.removeprefix("aten::")
        rule = RULES.get(name)
        if rule is None and torch.Tag.pointwise in step.function.tags:
            rule = follow_pointwise
        if rule is None:
            raise Inseparable(f"{name} is not known")
        new, places = rule(self, step)
        self.steps.append(new)
        for number, place in zip(step.outputs, places, strict=True):
            if number is not None:
                self.axes[number] = place
                self.shapes[number] = self.resize(self.before[number], place)

    # --- what the rules ask -------------------------------------------------------------------------------------------

    def place_of(self, operand: Any) -> RowAxis | None:
        return self.axes.get(operand.number) if isinstance(operand, Slot) else None

    def shape_of(self, operand: Operand) -> Shape:
        """The shape with all rows."""
        return self.before[operand.number] if isinstance(operand, Slot) else tuple(operand.shape)

    def out_shape(self, step: TailStep, at: int = 0) -> Shape:
        number = step.outputs[at]
        assert number is not None
        return self.before[number]

    def resize(self, shape: Shape, place: RowAxis | None) -> Shape:
        """A shape with the chosen rows in place of all."""
        if place is None:
            return shape
        size = place.outer * len(self.rows) * place.inner
        return (*shape[: place.axis], size, *shape[place.axis + 1 :])

    def locate(self, shape: Shape, before: int) -> RowAxis:
        """The axis of a shape that has the rows, if `before` entries vary slower than they do."""
        for axis, size in enumerate(shape):
            outer, rest = divmod(before, prod(shape[:axis]))
            if rest == 0 and 0 < outer * self.count <= size and size % (outer * self.count) == 0:
                return RowAxis(axis, outer, size // (outer * self.count))
        raise Inseparable(f"rows are spread over several axes of {list(shape)}")

    def slower(self, operand: Operand) -> int:
        """How many entries of an operand vary slower than its rows."""
        place = self.require_place(operand)
        return prod(self.shape_of(operand)[: place.axis]) * place.outer

    def require_place(self, operand: Operand) -> RowAxis:
        place = self.place_of(operand)
        if place is None:
            raise Inseparable("an operand has no rows")
        return place

    def fit(self, operand: Any, place: RowAxis) -> Any:
        """The operand with the chosen rows of this axis; unchanged where it has one row for all."""
        if not isinstance(operand, Slot | Tensor):
            return operand
        own = self.place_of(operand)
        if own is not None:
            if own != place:
                raise Inseparable("two operands have their rows in different axes")
            return operand
        size = self.shape_of(operand)[place.axis]
        if size == 1:
            return operand
        if size != place.outer * self.count * place.inner:
            raise Inseparable("an operand has another number of rows")
        key = (operand.number if isinstance(operand, Slot) else -1 - id(operand), place)
        if key not in self._cut:
            self._cut[key] = self._cut_rows(operand, place)
        return self._cut[key]

    def find_places(self, index: Tensor) -> Tensor:
        """Where the rows of this index are among the chosen ones."""
        places = torch.full((self.count,), -1, device=index.device)
        places[self.rows.to(index.device)] = torch.arange(len(self.rows), device=index.device)
        found = places[index % self.count]
        if bool((found < 0).any()):
            raise Inseparable("a row is needed that was not chosen")
        return found

    def _cut_rows(self, operand: Operand, place: RowAxis) -> Operand:
        device = self.rows.device if isinstance(operand, Slot) else operand.device
        index = torch.arange(place.outer * self.count * place.inner, device=device)
        index = index.view(place.outer, self.count, place.inner)[:, self.rows.to(device)].flatten()
        if isinstance(operand, Tensor):
            return operand.index_select(place.axis, index)
        number, self._next = self._next, self._next + 1
        self.before = {**self.before, number: self.before[operand.number]}
        self.shapes[number] = self.resize(self.before[operand.number], place)
        self.axes[number] = place
        self.steps.append(TailStep(aten.index_select.default, (operand, place.axis, index), {}, (number,)))
        return Slot(number)


# --- rules: the operation for the chosen rows, and where its results have them ----------------------------------------

Followed = tuple[TailStep, Sequence[RowAxis | None]]
Rule = Callable[[RowChoice, TailStep], Followed]


def change(step: TailStep, *args: Any, **kwargs: Any) -> TailStep:
    return TailStep(step.function, args, kwargs or step.kwargs, step.outputs, step.is_tuple)


def list_operands(value: Any) -> list[Operand]:
    found: list[Operand] = []
    map_entries(value, Tensor, found.append)
    map_entries(value, Slot, found.append)
    return found


def follow_pointwise(choice: RowChoice, step: TailStep) -> Followed:
    """Operands are aligned at their last axes, as in broadcasting."""
    shape = choice.out_shape(step)
    places = set()
    for operand in list_operands([step.args, dict(step.kwargs)]):
        place = choice.place_of(operand)
        if place is not None:
            shift = len(shape) - len(choice.shape_of(operand))
            places.add(RowAxis(place.axis + shift, place.outer, place.inner))
    if len(places) != 1:
        raise Inseparable(f"{step.function}: operands have their rows in different axes")
    place = places.pop()

    def fit(operand: Operand) -> Any:
        axis = place.axis - (len(shape) - len(choice.shape_of(operand)))
        return operand if axis < 0 else choice.fit(operand, RowAxis(axis, place.outer, place.inner))

    fit_all = lambda value: map_entries(map_entries(value, Tensor, fit), Slot, fit)  # noqa: E731
    new = TailStep(step.function, fit_all(step.args), fit_all(dict(step.kwargs)), step.outputs, step.is_tuple)
    return new, [place] * len(step.outputs)


def follow_reshape(choice: RowChoice, step: TailStep) -> Followed:
    """The same entries in the same order: what varies slower than the rows still does."""
    shape = choice.out_shape(step)
    place = choice.locate(shape, choice.slower(step.args[0]))
    new = TailStep(aten.reshape.default, (step.args[0], list(choice.resize(shape, place))), {}, step.outputs)
    return new, [place]


def follow_copy(choice: RowChoice, step: TailStep) -> Followed:
    return step, [choice.place_of(step.args[0])]


def follow_expand(choice: RowChoice, step: TailStep) -> Followed:
    place, shape = choice.require_place(step.args[0]), choice.out_shape(step)
    moved = RowAxis(place.axis + len(shape) - len(choice.shape_of(step.args[0])), place.outer, place.inner)
    return change(step, step.args[0], list(choice.resize(shape, moved))), [moved]


def follow_permute(choice: RowChoice, step: TailStep) -> Followed:
    place = choice.require_place(step.args[0])
    order = list(range(len(choice.shape_of(step.args[0]))))
    if step.function is aten.permute.default:
        order = [order[axis] for axis in step.args[1]]
    else:
        first, second = step.args[1:] if len(step.args) == 3 else (0, -1)
        order[first], order[second] = order[second], order[first]
    return step, [RowAxis(order.index(place.axis), place.outer, place.inner)]


def follow_product(choice: RowChoice, step: TailStep) -> Followed:
    """mm, addmm, bmm, baddbmm: rows of the first factor, columns of the second, or the batch of both."""
    *added, first, second = step.args
    own, other = choice.place_of(first), choice.place_of(second)
    dims = len(choice.shape_of(first))
    if dims == 3 and 0 in (p.axis for p in (own, other) if p is not None):
        place = own if own is not None and own.axis == 0 else other
        assert place is not None
        first, second = choice.fit(first, place), choice.fit(second, place)
    elif own is not None and other is None and own.axis == dims - 2:
        place = own
    elif other is not None and own is None and other.axis == dims - 1:
        place = other
    else:
        raise Inseparable(f"{step.function} sums over the rows")
    shape = choice.out_shape(step)
    fitted = []
    for bias in added:
        axis = place.axis - (len(shape) - len(choice.shape_of(bias)))
        fitted.append(bias if axis < 0 else choice.fit(bias, RowAxis(axis, place.outer, place.inner)))
    return change(step, *fitted, first, second), [place]


def follow_linear(choice: RowChoice, step: TailStep) -> Followed:
    place = choice.require_place(step.args[0])
    if place.axis == len(choice.shape_of(step.args[0])) - 1 or any(choice.place_of(w) for w in step.args[1:]):
        raise Inseparable("linear sums over the rows")
    return step, [place]


def follow_norm(choice: RowChoice, step: TailStep) -> Followed:
    """native_layer_norm: its result, and its mean and deviation with axes of size 1."""
    place = choice.require_place(step.args[0])
    if place.axis >= len(choice.shape_of(step.args[0])) - len(step.args[1]):
        raise Inseparable("a layer norm is over the rows")
    return step, [place] * len(step.outputs)


def follow_reduction(choice: RowChoice, step: TailStep) -> Followed:
    """A sum, mean or softmax over other axes than that of the rows."""
    place = choice.require_place(step.args[0])
    dims = len(choice.shape_of(step.args[0]))
    given = step.args[1] if len(step.args) > 1 else None
    over = [given] if isinstance(given, int) else list(given or range(dims))
    reduced = {axis % dims for axis in over}
    if place.axis in reduced:
        raise Inseparable(f"{step.function} is over the rows")
    gone = 0
    if len(choice.out_shape(step)) < dims:
        gone = sum(axis < place.axis for axis in reduced)
    return step, [RowAxis(place.axis - gone, place.outer, place.inner)] * len(step.outputs)


def follow_select(choice: RowChoice, step: TailStep) -> Followed:
    """One entry of an axis. If that is the axis of the rows, one of them is left."""
    place = choice.require_place(step.args[0])
    dims = len(choice.shape_of(step.args[0]))
    axis = step.args[1] % dims
    if axis != place.axis:
        return step, [RowAxis(place.axis - (axis < place.axis), place.outer, place.inner)]
    if place.outer * place.inner > 1:
        raise Inseparable("select takes one of the rows and of others")
    return change(step, step.args[0], axis, int(choice.find_places(torch.tensor(step.args[2])))), [None]


def follow_slice(choice: RowChoice, step: TailStep) -> Followed:
    place = choice.require_place(step.args[0])
    axis = (step.args[1] if len(step.args) > 1 else 0) % len(choice.shape_of(step.args[0]))
    if axis != place.axis:
        return step, [place]
    if choice.out_shape(step) != choice.shape_of(step.args[0]):
        raise Inseparable("slice takes a part of the rows")
    return TailStep(aten.alias.default, (step.args[0],), {}, step.outputs), [place]


def follow_index(choice: RowChoice, step: TailStep) -> Followed:
    """x[arange(rows), last], one entry of each row; or x[:, last], some of the rows."""
    place, indices = choice.require_place(step.args[0]), list(step.args[1])
    own = indices[place.axis] if place.axis < len(indices) else None
    if own is None and all(index is None for index in indices[: place.axis]):
        return step, [place]  # a later axis is indexed
    size = choice.shape_of(step.args[0])[place.axis]
    if not isinstance(own, Tensor) or size != choice.count:
        raise Inseparable("rows are indexed")
    if place.axis == 0 and own.shape == (size,) and torch.equal(own, torch.arange(size, device=own.device)):
        each = torch.arange(len(choice.rows), device=own.device)
        others = [None if index is None else choice.fit(index, RowAxis(index.dim() - 1)) for index in indices[1:]]
        return change(step, step.args[0], [each, *others]), [RowAxis(0)]
    indices[place.axis] = choice.find_places(own)
    return change(step, step.args[0], indices), [None]


def follow_cat(choice: RowChoice, step: TailStep) -> Followed:
    joined = step.args[0]
    places = {choice.place_of(tensor) for tensor in joined} - {None}
    dims = len(choice.out_shape(step))
    place = places.pop()
    assert place is not None
    if places or (step.args[1] if len(step.args) > 1 else 0) % dims == place.axis:
        raise Inseparable("cat joins the rows with others")
    is_nothing = lambda tensor: choice.shape_of(tensor) == (0,)  # noqa: E731 (a cache that is empty)
    fitted = [tensor if is_nothing(tensor) else choice.fit(tensor, place) for tensor in joined]
    return change(step, fitted, *step.args[1:]), [place]


def follow_split(choice: RowChoice, step: TailStep) -> Followed:
    place = choice.require_place(step.args[0])
    default = step.args[2] if len(step.args) > 2 else 0
    if default % len(choice.shape_of(step.args[0])) == place.axis:
        raise Inseparable("split divides the rows")
    return step, [place] * len(step.outputs)


def follow_attention(choice: RowChoice, step: TailStep) -> Followed:
    """Fused attention of a later block: rows are its batch."""
    place = next(p for p in map(choice.place_of, step.args[:3]) if p is not None)
    if place.axis != 0:
        raise Inseparable("rows are tokens of a later attention")
    fitted = [choice.fit(operand, place) for operand in step.args[:3]]
    fit = lambda operand: choice.fit(operand, place)  # noqa: E731
    kwargs = map_entries(map_entries(dict(step.kwargs), Tensor, fit), Slot, fit)
    new = TailStep(step.function, (*fitted, *step.args[3:]), kwargs, step.outputs, step.is_tuple)
    return new, [place, *(RowAxis(0) if n is not None else None for n in step.outputs[1:])]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze"), follow_reshape),
    **dict.fromkeys(("clone", "detach", "alias", "_to_copy", "contiguous"), follow_copy),
    "expand": follow_expand,
    **dict.fromkeys(("permute", "transpose", "t"), follow_permute),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), follow_product),
    "linear": follow_linear,
    "native_layer_norm": follow_norm,
    **dict.fromkeys(("mean", "sum", "amax", "amin", "var", "_softmax", "_log_softmax", "_safe_softmax", "any", "all"),
                    follow_reduction),
    "select": follow_select,
    "slice": follow_slice,
    "index": follow_index,
    "cat": follow_cat,
    **dict.fromkeys(("split", "split_with_sizes"), follow_split),
    "_scaled_dot_product_flash_attention_for_cpu": follow_attention,
}  # fmt: skip
