"""The anatomy of a model: tokens are made, mixed and read; a head answers, and something is returned.

    Anatomy(make, mix, read, head, give)        of class with_inputs(Anatomy, "input_ids")

The plain forms of each part are here. The strange ones are the kinds, in `made.py` to `passed.py`.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, CLASSES, VOCABULARY, CHANNELS = 16, 2, 3, 40, 3
PATCH, SIDE = 3, 12
PATCHES = (SIDE // PATCH) ** 2
CODES, NUMBERS, LEVELS = 4, 3, 5  # of a table: columns of codes, columns of numbers, values of a code

Function = Callable[..., Any]


class Anatomy(nn.Module):
    """The parts in order. Of several inputs the first is made into tokens, and the others go to the mixing."""

    def __init__(self, make: nn.Module, mix: nn.Module, read: Function, head: nn.Module, give: Function) -> None:
        super().__init__()
        self.make, self.mix, self.head = make, mix, head
        self.read, self.give = read, give

    def logits(self, first: Tensor, *others: Tensor) -> Tensor:
        return self.head(self.read(self.mix(self.make(first), *others)))

    def answer(self, *given: Tensor) -> Any:
        return self.give(self.logits(*given))


@cache
def with_inputs(anatomy: type[Anatomy], *names: str) -> type[Anatomy]:
    """A class like this one, whose forward takes inputs of these names."""

    def forward(self: Anatomy, *values: Tensor, **named: Tensor) -> Any:
        return self.answer(*values, *(named[name] for name in names if name in named))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *names)])
    return type("Model", (anatomy,), {"forward": forward})


class Changed(nn.Module):
    """A part whose input is changed first, inside of the model."""

    def __init__(self, change: Function, part: nn.Module) -> None:
        super().__init__()
        self.change, self.part = change, part

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.part(self.change(x), *others)


# --- tokens ----------------------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Token ids, with learned positions or without."""

    def __init__(self, places: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.3 * torch.randn(32, WIDTH)) if places else None

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        return h if self.places is None else h + self.places[: h.size(-2)]


class Steps(nn.Module):
    """A series [batch step channel]."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(CHANNELS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)


class Columns(nn.Module):
    """A table [batch column] of numbers: each has a direction and a bias of its own."""

    def __init__(self, columns: int = CODES + NUMBERS) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, WIDTH))
        self.shift = nn.Parameter(torch.randn(columns, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None] * self.scale + self.shift


class Patches(nn.Module):
    """An image, cut by a convolution, with positions and, if asked for, a class token."""

    def __init__(self, class_token: bool, patch: int = PATCH, side: int = SIDE) -> None:
        super().__init__()
        self.cut = nn.Conv2d(CHANNELS, WIDTH, patch, patch)
        self.places = nn.Parameter(0.3 * torch.randn((side // patch) ** 2, WIDTH))
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH)) if class_token else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.cut(x).flatten(2).mT + self.places
        return h if self.first is None else torch.cat([self.first.expand(len(h), -1, -1), h], 1)


# --- mixing ----------------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """The encoder layers of torch, one after the other."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(  # noqa: E731
            WIDTH, HEADS, 2 * WIDTH, dropout=0, batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList(layer() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Attention(nn.Module):
    """Self-attention written out, with a bias that is added to its scores if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(-3, -2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * (WIDTH // HEADS) ** -0.5
        scores = scores if bias is None else scores + bias
        return self.out((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.one(x), bias)
        return x + self.down(F.gelu(self.up(self.two(x))))


class Blocks(nn.Module):
    """Blocks written by hand, one after the other."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, bias)
        return x


# --- reading ---------------------------------------------------------------------------------------------------------


def read_mean(x: Tensor) -> Tensor:
    return x.mean(1)


def read_first(x: Tensor) -> Tensor:
    return x[:, 0]


def read_last(x: Tensor) -> Tensor:
    return x[:, -1]


def read_sum(x: Tensor) -> Tensor:
    return x.sum(1) / 8


def keep(x: Any) -> Any:
    return x
