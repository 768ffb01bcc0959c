"""PlacedMatrix: attention over some of the tokens, as a matrix over all of them that is made as late as possible.

The matrix of windows or merged tokens is small; over all tokens of an image it is mostly 0, or copies. What acts on
entries one by one, and leaves 0 as it is, acts on the small one, and so does the mean over heads. Only then is it
placed, some queries at a time, as all QueryTiles.
"""

from typing import Any

from torch import Tensor

from whyformer._engine.capture.query_tiles import ENTRYWISE, QueryTiles
from whyformer._engine.tracing import Placement, current_setting, name_of


class PlacedMatrix(QueryTiles):
    """A matrix [batch head query key], or [batch query key], from that of a site, [a head query key]."""

    def __init__(self, small: Tensor, placement: Placement, shape: tuple[int, ...]) -> None:
        self.small, self.placement = small, placement
        rows = current_setting.get().choose_rows(shape, small.element_size())
        super().__init__(self.place, shape, small, rows)

    def place(self, rows: slice) -> Tensor:
        placed = self.placement.place(self.small, rows)
        return placed if len(self.shape) == 4 else placed[:, 0]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = apply_to_small(func, args, kwargs)
        return QueryTiles.__torch_function__(func, types, args, kwargs) if made is None else made


def apply_to_small(function: Any, args: Any, kwargs: Any) -> PlacedMatrix | None:
    """The result of an operation that can act on the small matrix; None for any other."""
    first, name = args[0], name_of(function)
    if not isinstance(first, PlacedMatrix):
        return None
    if name in ("mean", "sum") and read_axis(args, kwargs) in (1, -3) and len(first.shape) == 4:
        small = function(first.small, dim=1, keepdim=True)
        return PlacedMatrix(small, first.placement.join_heads(), (first.shape[0], *first.shape[2:]))
    values = [*args, *kwargs.values()]
    tensors = [value for value in values if isinstance(value, Tensor | QueryTiles)]
    is_alike = all(isinstance(t, PlacedMatrix) and t.placement is first.placement for t in tensors)
    if name not in ENTRYWISE or not is_alike or not keeps_zero(function, args, kwargs):
        return None
    small = apply(function, args, kwargs, lambda matrix: matrix.small)
    return PlacedMatrix(small, first.placement, tuple(first.shape))


def read_axis(args: Any, kwargs: Any) -> Any:
    """The axis of a reduction without further arguments."""
    return (
        kwargs.get("dim") if len(args) == 1 and len(kwargs) == 1 else args[1] if len(args) == 2 and not kwargs else None
    )


def keeps_zero(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation on entries gives 0 where they are 0."""
    return not bool(apply(function, args, kwargs, lambda matrix: matrix.small.new_zeros(1)).any())


def apply(function: Any, args: Any, kwargs: Any, read: Any) -> Tensor:
    def replace(value: Any) -> Any:
        return read(value) if isinstance(value, PlacedMatrix) else value

    made: Tensor = function(*map(replace, args), **{key: replace(value) for key, value in kwargs.items()})
    return made
