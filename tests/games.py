"""Games: probes whose answer is a known function of the players that are kept, and models that add up what they see.

In both, the worth of each token or patch can be computed by hand.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._engine.probe.probe import Answers
from whyformer._engine.targets.target import Target
from whyformer._plain.tokens import Grid, Pieces

Worth = Callable[[frozenset[int]], float]


class Game:
    """A probe that answers a coalition with its worth: for one text, or for an image of rows x columns patches."""

    def __init__(self, worth: Worth, players: int, *, grid: tuple[int, int] | None = None, is_image: bool = False):
        self.worth, self.batch, self.units = worth, 1, players
        self.is_image, self.grid = is_image or grid is not None, Grid(*grid) if grid else None
        names = tuple(f"t{i}" for i in range(players))
        no, none = (False,) * players, (None,) * players
        self.tokens = (self.grid or Pieces(names, special=no, padding=no, spans=none),)
        self.real = torch.ones(1, players, dtype=torch.bool)
        self.fingerprints, self.targets = (5,), (Target(0, "0", score=0.0),)
        self.rows_asked = 0
        self.fills: set[str | None] = set()

    @property
    def before(self) -> Answers:
        return self.answers([self.worth(frozenset(range(self.units)))])

    def keep_only(self, keep: Tensor, of: Tensor, fill: str | None = None, *, seed: int = 0) -> Answers:
        assert not of.any()
        self.rows_asked += len(keep)
        self.fills.add(fill)
        return self.answers(self.worth(frozenset(row.nonzero()[:, 0].tolist())) for row in keep)

    def answers(self, scores: Iterable[float]) -> Answers:
        score = torch.tensor(list(scores), dtype=torch.float64)
        return Answers(score, score.sigmoid(), score[:, None])


def random_game(players: int, seed: int = 0) -> Worth:
    """A game in which every coalition has a random worth."""
    table = torch.randn(2**players, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return lambda there: float(table[sum(2**player for player in there)])


def additive_game(weights: Sequence[float], base: float = 0.0) -> Worth:
    return lambda there: base + sum(weights[player] for player in there)


def shapley(worth: Worth, players: int, orders: Iterable[Sequence[int]] | None = None) -> Tensor:
    """By definition: the mean gain when a player joins those before it, over all orders (or the given ones)."""
    values, count = torch.zeros(players, dtype=torch.float64), 0
    for order in permutations(range(players)) if orders is None else orders:
        count += 1
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            values[player] += worth(before | {player}) - worth(before)
    return values / count


class AddsWords(nn.Module):
    """Class 0 gets the sum of the words' worths, class 1 minus twice that; attention has no effect."""

    def __init__(self, worth: Sequence[float]) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(worth), 2)
        with torch.no_grad():
            self.embed.weight.copy_(torch.tensor([[w, -2 * w] for w in worth]))
        self.double().eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        x = x + 0 * F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return (x * mask[..., None]).sum(1)


class AddsPatches(nn.Module):
    """Class 0 gets the sum of all pixels, class 1 minus twice that, by patches of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 2, 2, stride=2, bias=False)
        with torch.no_grad():
            self.patches.weight.copy_(torch.tensor([1.0, -2.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2))
        self.double().eval()

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = x + 0 * F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return x.sum(1)


WORTH = [0.0, 1.0, -2.0, 0.5, 3.0, -0.25, 0.75, 4.0]
TEXTS = {
    "input_ids": torch.tensor([[1, 2, 3, 4, 7], [4, 5, 6, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
}
WORTH_OF_TEXTS = torch.tensor([[1.0, -2.0, 0.5, 3.0, 4.0], [3.0, -0.25, 0.75, 0.0, 0.0]], dtype=torch.float64)
PICTURES = {"pixel_values": torch.arange(32, dtype=torch.float64).reshape(2, 1, 4, 4) / 8 - 1}
WORTH_OF_PICTURES = PICTURES["pixel_values"].unflatten(2, (2, 2)).unflatten(4, (2, 2)).sum((1, 3, 5)).flatten(1)
