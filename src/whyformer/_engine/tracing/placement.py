r"""Placement: the attention of a part of the tokens, in the one sequence that all layers share (token_numbers.py).

A window, an attention between merged tokens, a class token that asks: each is a matrix over some tokens of that
sequence, and 0 elsewhere. A merged token that stands for $g$ tokens counts as $g$ identical copies of it, so that every
layer is over the same tokens. Copies of a key share its attention, since they have the same score; copies of a query
share what arrives at it, since the model reads their mean:

$$ A'_{ij} = A_{q(i)k(j)} / g_{k(j)}, \qquad \nabla A'_{ij} = \nabla A_{q(i)k(j)} / g_{q(i)}, \qquad
   R'_{ij} = R_{q(i)k(j)} / (g_{q(i)}\,g_{k(j)}) $$

No paper defines rollout and its relatives over stages that merge tokens. This is what they give, by their own
definition, for the model in which nothing is merged but the copies are computed alike.
"""

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine.tracing.provenance import Trace
from whyformer._engine.tracing.token_numbers import TokenNumbers


@dataclass(frozen=True)
class SiteTokens:
    """Which tokens an attention site covers, in the axes of the site: groups [a b] of heads and windows."""

    queries: Tensor  # [a b query]: the number of the token
    keys: Tensor  # [a b key]
    examples: Tensor  # [a b]
    heads: Tensor  # [a b]

    @classmethod
    def read(cls, output: Tensor, value: Tensor, rows: Trace, keys: Trace) -> "SiteTokens | None":
        """From the labels of queries and keys, in the model's order of axes [... token channel]; None if some lack."""
        lead, labels = output.shape[:-2], (rows.tokens, keys.tokens, rows.samples)
        if any(label is None or label.dim() != output.dim() or label.size(-1) > 1 for label in labels):
            return None
        queries, keyed, examples = (label for label in labels if label is not None)
        if examples.size(-2) > 1:
            return None
        is_head = [all(label.size(axis) == 1 for label in (queries, keyed, examples)) for axis in range(len(lead))]
        counts = [size if head else 1 for size, head in zip(lead, is_head, strict=True)]
        heads = torch.arange(torch.Size(counts).numel(), device=output.device).view(counts).expand(lead)
        return cls(
            queries[..., 0].expand(*lead, output.size(-2)),
            keyed[..., 0].expand(*lead, value.size(-2)),
            examples[..., 0, 0].expand(lead),
            heads,
        )

    def count_folded_heads(self) -> tuple[int, str]:
        """How many heads are folded into one axis with examples and windows, and in which order."""
        rows = torch.cat([self.examples[:, None], self.queries, self.keys], 1)
        heads = int(rows.unique(dim=0, return_counts=True)[1].min())
        is_repeated = bool((rows.view(-1, heads, rows.size(1)) == rows[::heads, None]).all())
        return heads, "batch first" if is_repeated else "heads first"

    def unfold(self, folds_heads: str, heads: int, batch_axis: int) -> "SiteTokens":
        """The same in the axes of the site: as its tensors are unfolded (AttentionSite.unfold)."""

        def arrange(label: Tensor, rest: int) -> Tensor:
            if folds_heads:
                label = label.unflatten(0, (-1, heads) if folds_heads == "batch first" else (heads, -1))
            label = label.movedim(batch_axis, 0)
            return label.flatten(1, -1 - rest) if label.dim() - rest > 1 else label.unsqueeze(1)

        head = self.heads
        if folds_heads:
            order = torch.arange(heads, device=head.device)
            head = order.repeat(len(head) // heads) if folds_heads == "batch first" else order.repeat_interleave(
                len(head) // heads)  # fmt: skip
        return SiteTokens(arrange(self.queries, 1), arrange(self.keys, 1), arrange(self.examples, 0), arrange(head, 0))


class Placement:
    """Where the entries of a site are in the matrix [batch head query key] over the sequence that all layers share."""

    def __init__(self, tokens: SiteTokens, numbers: TokenNumbers, batch: int) -> None:
        self.length, self.device = numbers.length, tokens.queries.device
        self.heads = int(tokens.heads.max()) + 1
        self.query_share, self.key_share = numbers.share(tokens.queries), numbers.share(tokens.keys)  # [a b token]
        self.group, self.row, is_free = self.locate_rows(tokens, numbers, batch)
        self.key, is_clear = self.locate_keys(tokens, numbers)
        self.is_clear = is_free and is_clear  # no token is asked for, or attended to, in two places
        keys = tokens.keys.flatten(0, 1)[self.group.clamp(min=0)]
        self.heads_share_keys = bool((keys == keys[:, :1]).all())
        heads = torch.arange(self.heads, device=self.device)
        self.has_axis_of_heads = torch.equal(tokens.heads, heads.expand_as(tokens.heads)) if len(heads) == (
            tokens.heads.size(1)) else False  # fmt: skip

    def locate_rows(self, tokens: SiteTokens, numbers: TokenNumbers, batch: int) -> tuple[Tensor, Tensor, bool]:
        """[batch head position]: the group of heads and windows, and the query in it; -1 where there is none."""
        count = tokens.queries.size(-1)
        entry, position = numbers.expand(tokens.queries.flatten())
        group, row = entry // count, entry % count
        place = (tokens.examples.flatten()[group].long() * self.heads + tokens.heads.flatten()[group]) * self.length
        place = place + position
        size = (batch, self.heads, self.length)
        made = [torch.full(size, -1, device=self.device).flatten().scatter(0, place, found) for found in (group, row)]
        return made[0].view(size), made[1].view(size), not bool((place.bincount() > 1).any())

    def locate_keys(self, tokens: SiteTokens, numbers: TokenNumbers) -> tuple[Tensor, bool]:
        """[group position]: the key of the group at each position, -1 where it has none."""
        count, groups = tokens.keys.size(-1), tokens.heads.numel()
        entry, position = numbers.expand(tokens.keys.flatten())
        place = entry // count * self.length + position
        keys = torch.full((groups * self.length,), -1, device=self.device).scatter(0, place, entry % count)
        return keys.view(groups, self.length), not bool((place.bincount() > 1).any())

    def share(self, matrix: Tensor, *, by_query: bool, by_key: bool) -> Tensor:
        """The matrix of the site, divided by the number of copies of each query or key."""
        matrix = matrix * self.query_share.to(matrix).unsqueeze(-1) if by_query else matrix
        return matrix * self.key_share.to(matrix).unsqueeze(-2) if by_key else matrix

    def place(self, matrix: Tensor, rows: slice) -> Tensor:
        """[batch head query key] of some queries of the shared sequence, from the matrix of the site."""
        group, row = self.group[..., rows], self.row[..., rows]
        near = group.clamp(min=0)
        picked = matrix.flatten(0, 1)[near, row.clamp(min=0)]
        keys = self.key[near[:, :1] if self.heads_share_keys else near]
        placed = picked.gather(-1, keys.clamp(min=0).expand(*picked.shape[:-1], -1))
        return placed * ((keys >= 0) & (group >= 0).unsqueeze(-1))

    def join_heads(self) -> "Placement":
        """The placement of a matrix whose heads, the second axis of the site, were reduced to one."""
        joined = copy(self)
        joined.heads, joined.key = 1, self.key.unflatten(0, (-1, self.heads))[:, 0]
        joined.group, joined.row = self.group[:, :1] // self.heads, self.row[:, :1]  # of -1 // heads, -1 remains
        return joined


def place_states(state: Tensor, trace: Trace, numbers: TokenNumbers, batch: int) -> tuple[Tensor, Tensor] | None:
    """[batch position channel] from states in any order of axes, 0 where a token has none, and [position]: the share.

    None if their tokens or examples are not known, or a token is in two places.
    """
    labels = (trace.tokens, trace.samples)
    if any(label is None or label.dim() != state.dim() for label in labels):
        return None
    tokens, examples = (label for label in labels if label is not None)
    places = [axis for axis in range(state.dim()) if tokens.size(axis) > 1 or examples.size(axis) > 1]
    shape = [state.size(axis) for axis in places]
    rows = state.permute(*places, *(axis for axis in range(state.dim()) if axis not in places))
    rows = rows.reshape(torch.Size(shape).numel(), -1)
    of_token, of_example = (
        label.permute(*places, *(a for a in range(state.dim()) if a not in places)).flatten(len(places))[..., 0]
        .expand(shape).flatten()
        for label in (tokens, examples)
    )  # fmt: skip
    entry, position = numbers.expand(of_token)
    place = of_example[entry].long() * numbers.length + position
    if bool((place.bincount() > 1).any()):
        return None
    whole = rows.new_zeros(batch * numbers.length, rows.size(1)).index_copy(0, place, rows[entry])
    shares = torch.ones(batch * numbers.length, dtype=torch.float64, device=state.device)
    shares = shares.scatter(0, place, numbers.share(of_token)[entry])
    return whole.view(batch, numbers.length, -1), shares.view(batch, -1)[0]
