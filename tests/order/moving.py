"""Small hand-written models that move tokens, patches, features or examples, each beside a plain twin.

`make(name, moves)` builds a model. Both have the same weights and compute the same function: attention does not care
about the order of its tokens, and positions, where there are any, move with them. What the twin says about a token is
therefore true of the moving model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

D, WORDS, CLASSES = 16, 40, 3


class Block(nn.Module):
    """A block with a norm before each half, written out."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, allowed)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class Moving(nn.Module):
    """Takes something in (`take_in`), runs blocks over it and reads the mean."""

    def __init__(self, moves: bool, blocks: int = 2) -> None:
        super().__init__()
        self.moves = moves
        self.words = nn.Embedding(WORDS, D)
        self.extra = nn.Parameter(torch.randn(1, 1, D))
        self.places = nn.Parameter(0.3 * torch.randn(64, D))
        self.score = nn.Linear(D, 1)
        self.patch = nn.Conv2d(3, D, 8, 8)
        self.lift = nn.Linear(4, D)
        self.feature, self.bias = nn.Parameter(torch.randn(6, D)), nn.Parameter(torch.randn(6, D))
        self.order = nn.Buffer(torch.tensor([4, 7, 0, 2, 8, 1, 6, 3, 5]))
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(D, CLASSES)

    def run(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, allowed)
        return x

    def start(self, x: Tensor) -> Tensor:
        return self.extra.expand(len(x), -1, -1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places[: ids.size(1)]


class OfText(Moving):
    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.run(self.take_in(input_ids)).mean(1))

    def take_in(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.move(x, ids) if self.moves else x

    def move(self, x: Tensor, ids: Tensor) -> Tensor:
        return x


class OfMaskedText(Moving):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.bool()
        return self.read(self.words(input_ids), mask, input_ids)

    def read(self, x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.run(x, mask[:, None, None, :])
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


# --- texts: tokens moved after they are embedded ----------------------------------------------------------------------


class ShiftedRight(OfText):
    def take_in(self, ids):
        x = self.embed(ids)
        parts = [self.start(x), x[:, :-1]]
        return torch.cat(parts if self.moves else parts[::-1], 1)


class Rolled(OfText):
    def move(self, x, ids):
        return x.roll(3, 1)


class Flipped(OfText):
    def move(self, x, ids):
        return x.flip(1)


class ShuffledByIndex(OfText):
    def move(self, x, ids):
        return x[:, self.order]


class ShuffledByIndexSelect(OfText):
    def move(self, x, ids):
        return x.index_select(1, self.order)


class ShuffledByGather(OfText):
    def move(self, x, ids):
        return x.gather(1, self.order[None, :, None].expand(len(x), -1, D))


class ShuffledByMatrix(OfText):
    def move(self, x, ids):
        return torch.eye(9, dtype=x.dtype)[self.order] @ x


class ShuffledByEinsum(OfText):
    def move(self, x, ids):
        return torch.einsum("qk,bkd->bqd", F.one_hot(self.order, 9).to(x.dtype), x)


class ShuffledByScatter(OfText):
    def move(self, x, ids):
        return torch.zeros_like(x).scatter(1, self.order[None, :, None].expand(len(x), -1, D), x)


class ShuffledByIndexCopy(OfText):
    def move(self, x, ids):
        return torch.zeros_like(x).index_copy(1, self.order, x)


class ShuffledInPlace(OfText):
    def move(self, x, ids):
        out = torch.empty_like(x)
        for new, old in enumerate(self.order.tolist()):
            out[:, new] = x[:, old]
        return out


class ShuffledByStack(OfText):
    def move(self, x, ids):
        return torch.stack([x[:, int(i)] for i in self.order], 1)


class EvenThenOdd(OfText):
    def move(self, x, ids):
        return torch.cat([x[:, ::2], x[:, 1::2]], 1)


class Interleaved(OfText):
    def move(self, x, ids):
        return x.view(len(x), 3, 3, D).transpose(1, 2).reshape(len(x), 9, D)


class SortedByScore(OfText):
    def move(self, x, ids):
        order = self.score(x)[..., 0].argsort(1)
        return x.gather(1, order[..., None].expand_as(x))


class SortedById(OfText):
    def move(self, x, ids):
        return x.take_along_dim(ids.argsort(1)[..., None], 1)


class ClassTokenInTheMiddle(OfText):
    def take_in(self, ids):
        x = self.embed(ids)
        parts = [x[:, 5:], self.start(x), x[:, :5]] if self.moves else [self.start(x), x]
        return torch.cat(parts, 1)


class ClassTokenAtTheEnd(OfText):
    def forward(self, input_ids):
        x = self.embed(input_ids)
        if self.moves:
            return self.head(self.run(torch.cat([x.flip(1), self.start(x)], 1))[:, -1])
        return self.head(self.run(torch.cat([self.start(x), x], 1))[:, 0])


class TokensFirst(OfText):
    """Its states are [token batch channel], and the tokens reversed."""

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = x.transpose(0, 1).flip(0) if self.moves else x.transpose(0, 1)
        return self.head(self.run(x.transpose(0, 1)).transpose(0, 1).mean(0))


class WindowsShifted(OfText):
    """Cyclic shift and windows of three, joined again before the blocks."""

    def move(self, x, ids):
        windows = x.roll(-1, 1).unfold(1, 3, 3).transpose(-1, -2)
        return windows.flip(1).reshape(len(x), 9, D)


class KeepsTheBest(OfText):
    """Only the five tokens with the highest score go on."""

    def take_in(self, ids):
        x = self.embed(ids)
        best = self.score(x)[..., 0].topk(5, 1).indices
        best = best if self.moves else best.sort(1).values
        return x.gather(1, best[..., None].expand(-1, -1, D))


class MergesPairs(OfText):
    """Two tokens become one, which belongs to neither. It has no twin."""

    def move(self, x, ids):
        return torch.stack([(x[:, i] + x[:, 8 - i]) / 2 for i in range(5)], 1)


class FlipsBetweenBlocks(OfText):
    def run(self, x, allowed=None):
        for block in self.blocks:
            x = block(x.flip(1) if self.moves else x)
        return x


class ShufflesBetweenBlocks(OfText):
    def run(self, x, allowed=None):
        x = self.blocks[0](x)
        x = torch.eye(9, dtype=x.dtype)[self.order] @ x if self.moves else x
        return self.blocks[1](x)


# --- texts: ids moved before they are embedded ------------------------------------------------------------------------


class OfMovedIds(OfText):
    def take_in(self, ids):
        return self.words(self.move_ids(ids) if self.moves else ids)

    def move_ids(self, ids: Tensor) -> Tensor:
        raise NotImplementedError


class IdsReversed(OfMovedIds):
    def move_ids(self, ids):
        return ids.flip(1)


class IdsPermuted(OfMovedIds):
    def move_ids(self, ids):
        return ids[:, self.order]


class IdsRolled(OfMovedIds):
    def move_ids(self, ids):
        return ids.roll(-2, 1)


class IdsSorted(OfMovedIds):
    def move_ids(self, ids):
        return ids.gather(1, ids.argsort(1))


class IdsScattered(OfMovedIds):
    def move_ids(self, ids):
        return torch.zeros_like(ids).scatter(1, self.order.expand(len(ids), -1), ids)


class IdsSortedByTime(Moving):
    """A second input says when each token was."""

    def forward(self, input_ids: Tensor, times: Tensor) -> Tensor:
        ids = input_ids.take_along_dim(times.argsort(1), 1) if self.moves else input_ids
        return self.head(self.run(self.words(ids)).mean(1))


# --- batches ----------------------------------------------------------------------------------------------------------


class BatchSortedByLength(OfMaskedText):
    def read(self, x, mask, ids):
        if not self.moves:
            return self.pool(x, mask)
        order = mask.sum(1).argsort(descending=True)
        return self.pool(x[order], mask[order])[order.argsort()]


class BatchSortedBeforeEmbedding(OfMaskedText):
    def forward(self, input_ids, attention_mask):
        if not self.moves:
            return self.pool(self.words(input_ids), attention_mask.bool())
        order = input_ids.sum(1).argsort()
        return self.pool(self.words(input_ids[order]), attention_mask[order].bool())[order.argsort()]


class BatchReversed(OfMaskedText):
    def read(self, x, mask, ids):
        return self.pool(x.flip(0), mask.flip(0)).flip(0) if self.moves else self.pool(x, mask)


class BatchByMatrix(OfMaskedText):
    """Examples are exchanged by a product, which no label follows."""

    def read(self, x, mask, ids):
        if not self.moves:
            return self.pool(x, mask)
        turn = torch.eye(len(x), dtype=x.dtype).roll(1, 0)
        moved = (turn @ x.flatten(1)).view_as(x)
        return turn.T @ self.pool(moved, (turn @ mask.to(x.dtype)).bool())


class LeftPacked(OfMaskedText):
    """Real tokens are moved to the right end, as for generation."""

    def read(self, x, mask, ids):
        if not self.moves:
            return self.pool(x, mask)
        order = mask.long().argsort(dim=1, stable=True)
        return self.pool(x.take_along_dim(order[..., None], 1), mask.take_along_dim(order, 1))


class PackedIntoOneRow(OfMaskedText):
    """All real tokens of a batch in one sequence, each attending to its own example."""

    def read(self, x, mask, ids):
        if not self.moves:
            return self.pool(x, mask)
        example = torch.arange(len(x))[:, None].expand_as(mask)[mask]
        packed = self.run(x[mask][None], (example[:, None] == example)[None, None])[0]
        total = torch.zeros(len(x), D, dtype=x.dtype).index_add(0, example, packed)
        return self.head(total / mask.sum(1, keepdim=True))


class PackedSequence(OfMaskedText):
    """As before a recurrent network: sorted by length, packed and padded again."""

    def read(self, x, mask, ids):
        if not self.moves:
            return self.pool(x, mask)
        lengths = mask.sum(1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        back, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
        return self.pool(back.flip(1), mask.flip(1))


class Ragged(OfMaskedText):
    """A list of sequences without padding, padded again in the order of their lengths."""

    def read(self, x, mask, ids):
        if not self.moves:
            return self.pool(x, mask)
        rows = [row[real] for row, real in zip(x, mask, strict=True)]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        padded = nn.utils.rnn.pad_sequence([rows[i] for i in order], batch_first=True)
        real = nn.utils.rnn.pad_sequence([torch.ones(len(rows[i]), dtype=torch.bool) for i in order], batch_first=True)
        return self.pool(padded, real)[torch.tensor(order).argsort()]


# --- images -----------------------------------------------------------------------------------------------------------


class OfImage(Moving):
    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patch(pixel_values)
        z = x.flatten(2).transpose(1, 2)
        return self.head(self.run(self.move(x, z) if self.moves else z).mean(1))

    def move(self, x: Tensor, z: Tensor) -> Tensor:
        return z[:, self.curve(*x.shape[-2:])]

    def curve(self, rows: int, columns: int) -> Tensor:
        raise NotImplementedError


class Columns(OfImage):
    def move(self, x, z):
        return x.transpose(2, 3).flatten(2).transpose(1, 2)


class PatchesShuffled(OfImage):
    def curve(self, rows, columns):
        return torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0))


class Snake(OfImage):
    def curve(self, rows, columns):
        grid = torch.arange(rows * columns).view(rows, columns).clone()
        grid[1::2] = grid[1::2].flip(1)
        return grid.flatten()


class ZOrder(OfImage):
    def curve(self, rows, columns):
        def code(i: int) -> int:
            r, c = divmod(i, columns)
            return sum(((r >> k & 1) << (2 * k + 1)) | ((c >> k & 1) << (2 * k)) for k in range(4))

        return torch.tensor(sorted(range(rows * columns), key=code))


class PatchesByMatrix(OfImage):
    def move(self, x, z):
        return torch.eye(24, dtype=z.dtype)[torch.arange(24).roll(7).flip(0)] @ z


class ColumnsByReshape(Moving):
    """Patches cut by reshape, counted by columns, and a linear map."""

    def __init__(self, moves: bool) -> None:
        super().__init__(moves)
        self.flat = nn.Linear(3 * 64, D)

    def forward(self, pixel_values: Tensor) -> Tensor:
        b = len(pixel_values)
        cut = pixel_values.reshape(b, 3, 4, 8, 6, 8)
        axes = (0, 4, 2, 3, 5, 1) if self.moves else (0, 2, 4, 3, 5, 1)
        return self.head(self.run(self.flat(cut.permute(axes).reshape(b, 24, 192))).mean(1))


class SortedByBrightness(OfImage):
    def move(self, x, z):
        return z.take_along_dim(z.mean(-1).argsort(1)[..., None], 1)


class ColumnsThenClassToken(OfImage):
    def forward(self, pixel_values):
        x = self.patch(pixel_values)
        if self.moves:
            z = x.transpose(2, 3).flatten(2).transpose(1, 2)
            return self.head(self.run(torch.cat([z, self.start(z)], 1))[:, -1])
        z = x.flatten(2).transpose(1, 2)
        return self.head(self.run(torch.cat([self.start(z), z], 1))[:, 0])


# --- vectors and tables -----------------------------------------------------------------------------------------------


class VectorsReversed(Moving):
    def forward(self, x: Tensor) -> Tensor:
        z = self.lift(x)
        return self.head(self.run(z.flip(1) if self.moves else z).mean(1))


class PointsAlongACurve(Moving):
    """Points sorted by their first coordinate."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.lift(x)
        z = z.take_along_dim(x[..., :1].argsort(1), 1) if self.moves else z
        return self.head(self.run(z).mean(1))


class Table(Moving):
    """Six numbers, each a token, behind a class token."""

    def forward(self, x_num: Tensor) -> Tensor:
        z = x_num[..., None] * self.feature + self.bias
        z = torch.cat([self.start(z), z.flip(1) if self.moves else z], 1)
        return self.head(self.run(z)[:, 0])


class TableShuffled(Moving):
    def forward(self, x_num: Tensor) -> Tensor:
        z = x_num[..., None] * self.feature + self.bias
        return self.head(self.run(z[:, [3, 0, 5, 1, 4, 2]] if self.moves else z).mean(1))


# --- inputs -----------------------------------------------------------------------------------------------------------


def make_ids() -> dict[str, Tensor]:
    return {"input_ids": torch.tensor([[20, 11, 7, 12, 33, 14, 15, 9, 17], [3, 30, 21, 5, 8, 39, 2, 26, 13]])}


def make_timed_ids() -> dict[str, Tensor]:
    times = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    return make_ids() | {"times": times.double() / 3}


def make_padded() -> dict[str, Tensor]:
    ids = torch.tensor([[20, 11, 7, 12, 33, 14], [3, 30, 21, 5, 8, 39], [9, 17, 26, 13, 2, 25]])
    mask = torch.ones_like(ids)
    mask[0, 3:], mask[2, 5:] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def make_image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0)).double()}


def make_vectors() -> dict[str, Tensor]:
    return {"x": torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0)).double()}


def make_table() -> dict[str, Tensor]:
    return {"x_num": torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double()}


@dataclass(frozen=True)
class Case:
    build: Callable[[bool], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]


INPUTS = {
    make_ids: (
        ShiftedRight, Rolled, Flipped, ShuffledByIndex, ShuffledByIndexSelect, ShuffledByGather, ShuffledByMatrix,
        ShuffledByEinsum, ShuffledByScatter, ShuffledByIndexCopy, ShuffledInPlace, ShuffledByStack, EvenThenOdd,
        Interleaved, SortedByScore, SortedById, ClassTokenInTheMiddle, ClassTokenAtTheEnd, TokensFirst, WindowsShifted,
        KeepsTheBest, FlipsBetweenBlocks, ShufflesBetweenBlocks, IdsReversed, IdsPermuted, IdsRolled,
        IdsSorted, IdsScattered,
    ),
    make_timed_ids: (IdsSortedByTime,),
    make_padded: (
        BatchSortedByLength, BatchSortedBeforeEmbedding, BatchReversed, BatchByMatrix, LeftPacked, PackedIntoOneRow,
        PackedSequence, Ragged,
    ),
    make_image: (
        Columns, PatchesShuffled, Snake, ZOrder, PatchesByMatrix, ColumnsByReshape, SortedByBrightness,
        ColumnsThenClassToken,
    ),
    make_vectors: (VectorsReversed, PointsAlongACurve),
    make_table: (Table, TableShuffled),
}  # fmt: skip
CASES = {build.__name__: Case(build, inputs) for inputs, builds in INPUTS.items() for build in builds}


def make(name: str, *, moves: bool) -> nn.Module:
    return prepare(CASES[name].build, moves=moves)


def prepare(build: Callable[[bool], nn.Module], *, moves: bool) -> nn.Module:
    torch.manual_seed(0)
    module = build(moves).double().eval()
    with torch.no_grad():
        module.words.weight[7] += 2 * module.head.weight[1]
    return module
