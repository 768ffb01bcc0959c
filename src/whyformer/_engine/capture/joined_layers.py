"""Layers whose attentions do not all cover the same tokens, as matrices over one sequence.

PlacedMatrix: attention over some of the tokens, as a matrix over all of them that is made as late as possible.

The matrix of windows or merged tokens is small; over all tokens of an image it is mostly 0, or copies. What acts on
entries one by one, and leaves 0 as it is, acts on the small one, and so does the mean over heads. Only then is it
placed, some queries at a time, as all QueryTiles.

The layers of a model whose attentions do not all cover the same tokens, each as a matrix over one sequence.

Attentions that read the same states belong to one layer: with the same queries they are further heads of it (parallel
blocks), with other queries each is a part of its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.capture.query_tiles import ENTRYWISE, QueryTiles
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.operations import name_of
from whyformer._engine.tracing.placement import Placement
from whyformer._engine.tracing.tiles import current_setting
from whyformer._engine.tracing.token_numbers import TokenNumbers
from whyformer.errors import UnsupportedModel


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


# --- all attentions of a layer ----------------------------------------------------------------------------------------


LARGE = 2**22  # entries: such matrices are placed late
UNKNOWN = "which tokens it covers is not known"
TWICE = "a token is in several windows"


@dataclass(frozen=True)
class PlacedSite:
    """An attention site and where it is in the shared sequence."""

    number: int  # in the list of sites
    placement: Placement


@dataclass(frozen=True)
class JoinedLayers:
    """All attentions of a run, by layer."""

    layers: tuple[tuple[PlacedSite, ...], ...]
    batch: int

    @classmethod
    def find(cls, sites: Sequence[AttentionSite], numbers: TokenNumbers, batch: int) -> "JoinedLayers":
        refuse_two_resolutions(sites, numbers)
        placed = [PlacedSite(number, place_site(site, numbers, batch)) for number, site in enumerate(sites)]
        by_layer = groupby(placed, lambda one: sites[one.number].epoch)
        return cls(tuple(tuple(group) for _, group in by_layer), batch)

    @property
    def first_sites(self) -> list[int]:
        """The number of the first site of each layer."""
        return [layer[0].number for layer in self.layers]

    def list_makers(
        self, readers: Sequence[Callable[[], Tensor]], *, by_query: bool = False, by_key: bool = False
    ) -> list[Callable[[], Tensor]]:
        """For each layer, what makes its matrix [batch head query key], from the readers of the matrix of each site."""
        return [partial(self.make, layer, readers, by_query, by_key) for layer in self.layers]

    def make(
        self, layer: Sequence[PlacedSite], readers: Sequence[Callable[[], Tensor]], by_query: bool, by_key: bool
    ) -> Tensor:
        sites = [one.placement for one in layer]
        pairs = zip(layer, sites, strict=True)
        matrices = [site.share(readers[one.number](), by_query=by_query, by_key=by_key) for one, site in pairs]
        length, like = sites[0].length, matrices[0]
        adds_heads = have_same_queries(layer)
        shape = (self.batch, sum(site.heads for site in sites) if adds_heads else sites[0].heads, length, length)
        if len(layer) == 1 and sites[0].has_axis_of_heads and torch.Size(shape).numel() > LARGE:
            return PlacedMatrix(matrices[0], sites[0], shape)  # type: ignore[return-value]

        def read(rows: slice) -> Tensor:
            parts = [site.place(matrix, rows) for site, matrix in zip(sites, matrices, strict=True)]
            return torch.cat(parts, 1) if adds_heads else torch.stack(parts).sum(0)

        rows = current_setting.get().choose_rows(shape, like.element_size())
        return QueryTiles(read, shape, like, rows) if rows else read(slice(0, length))  # type: ignore[return-value]


def refuse_two_resolutions(sites: Sequence[AttentionSite], numbers: TokenNumbers) -> None:
    """Refuse a model in which tokens live on beside those that they were merged into (CrossViT, LookViT).

    Both would be at the same positions. Once a merged token has attended, it takes the place of its members.
    """
    taken_by: dict[int, int] = {}  # the merged token that has taken the place of each
    for site in sites:
        if site.tokens is None:
            continue
        queries, keys = (label.unique().tolist() for label in (site.tokens.queries, site.tokens.keys))
        for token in {*queries, *keys}:
            members = set(numbers.list_members(token))
            holders = {taken_by[member] for member in members if member in taken_by}
            if any(not members >= set(numbers.list_members(holder)) for holder in holders):
                raise UnsupportedModel(
                    f"Attention in {site.path} is not self-attention over one sequence: it uses tokens beside those "
                    "that they were merged into (two resolutions). Methods that need attention do not support this yet."
                )
        taken_by |= {member: token for token in queries for member in numbers.list_members(token)}


def place_site(site: AttentionSite, numbers: TokenNumbers, batch: int) -> Placement:
    obstacle = UNKNOWN
    if site.tokens is not None:
        placement = Placement(site.tokens, numbers, batch)
        if placement.is_clear:
            return placement
        obstacle = TWICE
    raise UnsupportedModel(
        f"Attention in {site.path} is not self-attention over one sequence: {obstacle}. Methods that need attention do "
        "not support this yet."
    )


def have_same_queries(layer: Sequence[PlacedSite]) -> bool:
    """Whether the sites of a layer are heads of one attention; if not, each must have queries of its own."""
    asked = [(one.placement.group >= 0).any(1) for one in layer]
    if all(torch.equal(other, asked[0]) for other in asked[1:]):
        return True
    heads = {one.placement.heads for one in layer}
    if len(heads) > 1 or bool((torch.stack(asked).sum(0) > 1).any()):
        raise UnsupportedModel(
            "Attentions of one layer share some of their queries, but not all, which is not supported."
        )
    return False
