"""Token numbers: one numbering of all tokens of an image, for a model whose layers do not all have the same ones.

In most models every attention covers the same tokens, and labels count its rows (provenance.py). Here that does not
hold: attention is divided into windows, stages merge tokens (Swin, PVT), a class token joins late (CaiT), learned
queries ask. Labels then keep one number per token through the whole run:

    0, 1, 2, ...       the patches, as the first attention sees them
    ADDED + k          tokens that the model adds: a class token, a learned query
    MERGED + k         tokens that stand for several of these

A merged token stands for those that it was computed from. Where a convolution or a pool mixes more than that
(overlapping kernels), it stands for those in its cell of the grid, as a patch stands for its part of the image.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

ADDED, MERGED = 1 << 20, 1 << 24


@dataclass
class TokenNumbers:
    """The tokens of one run. A position is that of a patch or added token in the joined sequence, patches first."""

    grid: tuple[int, int]  # rows and columns of the patches
    added: int = 0
    merged: dict[tuple[int, ...], int] = field(default_factory=dict)  # patches and added tokens -> their merged token
    members: list[tuple[int, ...]] = field(default_factory=list)  # of each merged token

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def length(self) -> int:
        """Of the joined sequence."""
        return self.patches + self.added

    def add(self, count: int, device: torch.device) -> Tensor:
        """[count]: the numbers of new tokens."""
        self.added += count
        return torch.arange(ADDED + self.added - count, ADDED + self.added, dtype=torch.int32, device=device)

    def merge(self, label: Tensor) -> Tensor:
        """[...] from [... token]: the token that stands for those along the last axis, -1 where there are none."""
        rows, which = label.reshape(-1, label.size(-1)).unique(dim=0, return_inverse=True)
        numbers = [self.find_merged(row) for row in rows.tolist()]
        return torch.tensor(numbers, dtype=torch.int32, device=label.device)[which].view(label.shape[:-1])

    def label_grid(self, size: tuple[int, int], device: torch.device) -> Tensor | None:
        """[1 1 row column]: the tokens of a grid over the whole image; None if it is finer than the patches."""
        if size[0] > self.grid[0] or size[1] > self.grid[1]:
            return None
        patches = torch.arange(self.patches, dtype=torch.int32, device=device).view(1, 1, *self.grid)
        return self.merge_cells(patches, size)

    def merge_cells(self, label: Tensor, size: tuple[int, int]) -> Tensor:
        """[... row column] of this smaller size: each token stands for those in its cell of the grid."""
        for axis, count in zip((-2, -1), size, strict=True):
            if label.size(axis) > 1:
                cell = torch.arange(label.size(axis), device=label.device) * count // label.size(axis)
                tokens = label.movedim(axis, -1)
                largest = int(cell.bincount().max())
                parts = [F.pad(part, (0, largest - part.size(-1)), value=-1) for part in split_cells(tokens, cell)]
                label = self.merge(torch.stack(parts, -2)).movedim(-1, axis)
        return label

    def find_merged(self, tokens: list[int]) -> int:
        """The number of the token that stands for these."""
        key = tuple(sorted({member for token in tokens for member in self.list_members(token)}))
        if len(key) < 2:
            return key[0] if key else -1
        if key not in self.merged:
            self.merged[key] = MERGED + len(self.members)
            self.members.append(key)
        return self.merged[key]

    def list_members(self, token: int) -> tuple[int, ...]:
        """The patches and added tokens that a token stands for."""
        return self.members[token - MERGED] if token >= MERGED else (token,) if token >= 0 else ()

    def expand(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """For a vector of tokens: the index of each, once for every member, and the positions of the members."""
        known, which = tokens.unique(return_inverse=True)
        members = [self.list_members(token) for token in known.tolist()]
        counts = torch.tensor([len(one) for one in members], device=tokens.device)
        positions = [token if token < ADDED else token - ADDED + self.patches for one in members for token in one]
        flat, starts = torch.tensor(positions, device=tokens.device), counts.cumsum(0) - counts
        index = torch.arange(len(tokens), device=tokens.device).repeat_interleave(counts[which])
        ends = counts[which].cumsum(0) - counts[which]
        within = torch.arange(len(index), device=tokens.device) - ends[index]
        return index, flat[within + starts[which[index]]]

    def share(self, tokens: Tensor) -> Tensor:
        """For each of these, 1 / the number of its members."""
        known, which = tokens.unique(return_inverse=True)
        shares = [1 / max(len(self.list_members(token)), 1) for token in known.tolist()]
        return torch.tensor(shares, dtype=torch.float64, device=tokens.device)[which]

    def spread(self, amounts: Tensor, tokens: Tensor) -> Tensor:
        """[batch position] from [batch token]: what belongs to a merged token is divided equally."""
        index, positions = self.expand(tokens)
        whole = amounts.new_zeros(len(amounts), self.length)
        return whole.index_add_(1, positions, (amounts * self.share(tokens).to(amounts))[:, index])


def split_cells(tokens: Tensor, cell: Tensor) -> list[Tensor]:
    return [tokens[..., cell == number] for number in range(int(cell.max()) + 1)]
