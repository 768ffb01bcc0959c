r"""QueryTiles: a matrix [batch head query key] that is made some queries at a time, and never whole.

    mixing = (grad * relevance).clamp(min=0).mean(dim=1)      nothing is computed yet
    for rows, part in iterate_rows(mixing): ...               [batch query key] of some queries

It stands for a tensor: methods are written for tensors and need no code for it. Operations that treat queries one by
one, entry by entry or along heads and keys, are put off and applied to each tile. Any other operation gets the whole
matrix, if there is memory for it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.tracing.fused_attention import take_rows
from whyformer._engine.tracing.operations import map_nested, name_of
from whyformer._engine.tracing.tiles import iterate_tiles, require_memory

ENTRYWISE = frozenset(
    "add radd sub rsub mul rmul truediv rtruediv rdiv div neg abs clamp clamp_min relu sigmoid exp square "
    "masked_fill where eq ne gt ge lt le and or invert logical_not to double float nan_to_num".split()
)
REDUCTIONS = frozenset("sum mean amax amin all any".split())
OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv neg abs eq ne gt ge lt le and or invert matmul rmatmul pow mod".split()
)


class QueryTiles:
    """A matrix [... query key] of which `make(rows)` computes some queries."""

    def __init__(self, make: Callable[[slice], Tensor], shape: tuple[int, ...], like: Tensor, rows: int) -> None:
        self.make, self.shape, self.rows = make, torch.Size(shape), rows
        self.dtype, self.device = like.dtype, like.device

    def iterate(self, row: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """The queries and the matrix of each tile; not of tiles where `row` [batch query] is 0, but of one at least."""
        tiles = list(iterate_tiles(self.shape[-2], self.rows))
        if row is not None:
            tiles = [tile for tile in tiles if bool(row[:, tile].any())] or tiles[:1]
        return ((tile, self.make(tile)) for tile in tiles)

    def whole(self) -> Tensor:
        """The matrix itself."""
        require_memory(
            2 * math.prod(self.shape) * self.dtype.itemsize,
            self.device,
            f"An attention matrix of {' x '.join(f'{size:,}' for size in self.shape)} numbers, whole",
            "Use a method that computes it in tiles, such as rollout, transformer_attribution, generic_attention or "
            "attcat, or one without attention matrices, such as attnlrp or gradient_x_input; or fewer tokens.",
        )
        return torch.cat([part for _, part in self.iterate()], dim=-2)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    # --- standing for a tensor ---------------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        if name in ENTRYWISE:
            return make_tiles(func, args, kwargs)
        if name in REDUCTIONS and (deferred := reduce_tiles(func, args, kwargs)) is not None:
            return deferred
        if name == "getitem" and keeps_queries(args[0], args[1]):
            return make_tiles(func, args, kwargs)
        if name == "getitem" and (rows := read_query_slice(args[0], args[1])) is not None:
            return args[0].make(rows)
        whole = [map_nested(value, make_whole) for value in args]
        return func(*whole, **{key: map_nested(value, make_whole) for key, value in kwargs.items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(Tensor, name)
        if not callable(found):
            return getattr(self.whole(), name)
        return lambda *args, **kwargs: self.__torch_function__(found, (), (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.__torch_function__(Tensor.__getitem__, (), (self, index))

    def __len__(self) -> int:
        return self.shape[0]

    __hash__ = object.__hash__


def add_operator(name: str) -> None:
    function = getattr(Tensor, f"__{name}__")
    setattr(QueryTiles, f"__{name}__", lambda self, *others: self.__torch_function__(function, (), (self, *others)))


for _name in OPERATORS:
    add_operator(_name)


def make_whole(value: Any) -> Any:
    return value.whole() if isinstance(value, QueryTiles) else value


def iterate_rows(matrix: Any, row: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """The tiles of a matrix [... query key] with their queries, without those where `row` is 0; a tensor is one."""
    return matrix.iterate(row) if isinstance(matrix, QueryTiles) else iter([(slice(0, matrix.size(-2)), matrix)])


def make_tiles(function: Callable[..., Any], args: Any, kwargs: Any) -> QueryTiles:
    """The result of a function that treats queries one by one, put off."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, QueryTiles)]
    first = given[0]

    def make(rows: slice) -> Tensor:
        def pick(value: Any) -> Any:
            if isinstance(value, QueryTiles):
                return value.make(rows)
            return take_rows(value, rows) if isinstance(value, Tensor) and value.dim() > 1 else value

        return function(*map(pick, args), **{key: pick(value) for key, value in kwargs.items()})

    seen = make(slice(0, 0))  # no query: only shape and type
    shape = (*seen.shape[:-2], first.shape[-2], seen.shape[-1])
    return QueryTiles(make, shape, seen, min(one.rows for one in given))


def reduce_tiles(function: Callable[..., Any], args: Any, kwargs: Any) -> QueryTiles | None:
    """A sum, mean or the like over heads, or over keys that stay as an axis; None over anything else."""
    matrix = args[0]
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(axis, int) or not isinstance(matrix, QueryTiles):
        return None
    axis = axis % matrix.ndim - matrix.ndim
    keeps = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    return make_tiles(function, args, kwargs) if axis < -2 or (axis == -1 and keeps) else None


def keeps_queries(matrix: Any, index: Any) -> bool:
    """Whether an index picks examples or heads only."""
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(one, Tensor) for one in index):
        return False
    return Ellipsis not in index and None not in index and len(index) <= matrix.ndim - 2


def read_query_slice(matrix: Any, index: Any) -> slice | None:
    """The queries that `matrix[:, :, 4:8]` picks; None for any other index."""
    if not isinstance(index, tuple) or len(index) != matrix.ndim - 1 or not isinstance(index[-1], slice):
        return None
    first, last, step = index[-1].indices(matrix.shape[-2])
    is_plain = step == 1 and all(type(one) is slice and one == slice(None) for one in index[:-1])
    return slice(first, max(first, last)) if is_plain else None
