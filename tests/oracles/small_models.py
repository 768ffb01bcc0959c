"""Two small models in plain torch, bit-identical in every environment: weights are sines, not random numbers.

`Pictures` is a vision transformer on 3 x 8 x 8 pixels, `Words` reads the mean of a text; both in float64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 8, 2


def wave(*shape: int, phase: float, size: float = 0.6) -> Tensor:
    """Deterministic numbers that look random."""
    count = int(torch.tensor(shape).prod())
    return (size * torch.sin(torch.arange(count, dtype=torch.float64) * 12.9898 + phase)).reshape(shape)


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_1(x)
        query, key, value = (
            part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.cls, self.places = nn.Parameter(torch.empty(1, 1, WIDTH)), nn.Parameter(torch.empty(1, 5, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, WIDTH), nn.Embedding(6, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.of_words(self.words(input_ids))

    def of_words(self, words: Tensor) -> Tensor:
        x = words + self.places(torch.arange(words.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def filled(module: nn.Module) -> nn.Module:
    """The module with its weights, in float64."""
    module = module.double().eval()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(wave(*parameter.shape, phase=1.7 * number))
    return module


def pictures() -> tuple[nn.Module, Tensor]:
    return filled(Pictures()), wave(2, 3, 8, 8, phase=0.3, size=1.5)


def words() -> tuple[nn.Module, Tensor]:
    return filled(Words()), torch.tensor([[3, 7, 11, 2, 19, 5], [8, 8, 1, 14, 6, 10]])


def samples(players: int, count: int = 20) -> Tensor:
    """[count player] coalitions, neither empty nor full."""
    there = wave(4 * count, players, phase=0.7) > 0
    some = there.any(1) & ~there.all(1)
    return there[some][:count]


TARGETS = [2, 0]
