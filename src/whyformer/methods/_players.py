"""Players: the units that a perturbation keeps or removes as a whole, and the model's answers to coalitions of them.

A player is a patch, a superpixel, a token, or a word with all its tokens. Special tokens and padding belong to no
player and are always kept.

    team = players_of(probe, "word")                            one Players per example
    worth = ask_coalitions(probe, team, coalitions, fill=None)  coalitions[i]: [n player] of example i, True: kept
    scores = spread_values(team, values)                        values[i]: [player]

All coalitions of all examples go through the model in one call of the probe.

    with choose_players([regions]): ...          the players of every method inside, unless it names units itself
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.tokens import Pieces
from whyformer._plain.words import group_pieces
from whyformer.errors import MethodError
from whyformer.methods._answers import read_answers
from whyformer.methods._settings import IMAGE_UNITS, TEXT_UNITS, check_choice


@dataclass(frozen=True)
class Players:
    """The player that each patch, token or pixel of one example belongs to."""

    owner: Tensor  # [unit] or [height width]: the number of the player, -1 for none
    count: int
    grid_shape: tuple[int, int]  # rows and columns of the players; a text is one row

    def keep(self, coalitions: Tensor) -> Tensor:
        """[n *place]: True where something is kept, for each coalition [n player]."""
        always_kept = torch.ones(len(coalitions), 1, dtype=torch.bool)  # column -1: what belongs to no player
        return torch.cat([coalitions.bool(), always_kept], dim=1)[:, self.owner]

    def spread(self, values: Tensor) -> Tensor:
        """[*place]: each player's value divided equally among what belongs to it, so that the sum is preserved."""
        owned = self.owner[self.owner >= 0]
        share = values.double() / owned.bincount(minlength=self.count)
        return torch.cat([share, share.new_zeros(1)])[self.owner]


chosen_players: ContextVar[tuple[Players, ...] | None] = ContextVar("chosen_players", default=None)


@contextmanager
def choose_players(team: Sequence[Players]) -> Iterator[None]:
    """The players, one entry per example, of methods that are called inside without `units`."""
    token = chosen_players.set(tuple(team))
    try:
        yield
    finally:
        chosen_players.reset(token)


def players_of(probe: Probe, units: str | None, *, text: str = "token", superpixels: int = 49) -> list[Players]:
    """The players of each example; units=None: the chosen ones, else patches for an image and `text` for a text."""
    if units is None and (chosen := chosen_players.get()) is not None:
        return list(chosen)
    if probe.is_image:
        chosen = check_choice("units", "patch" if units is None else units, IMAGE_UNITS)
        if chosen == "patch":
            return [make_patch_players(probe)] * probe.batch
        return [make_superpixel_players(probe, example, superpixels) for example in range(probe.batch)]
    chosen = check_choice("units", text if units is None else units, TEXT_UNITS)
    return [make_text_players(probe, example, chosen == "word") for example in range(probe.batch)]


def make_patch_players(probe: Probe) -> Players:
    if probe.grid is None:
        raise MethodError(
            "The patches of this image are unknown, so they cannot be removed one by one. Use units='superpixel' if "
            "the method has it, or a method that works on pixels, such as rise."
        )
    return Players(torch.arange(probe.units), probe.units, (probe.grid.rows, probe.grid.columns))


def make_text_players(probe: Probe, example: int, whole: bool) -> Players:
    """The tokens of a text, or with `whole` its words; if the text is unknown, every token is a word."""
    tokens, real = probe.tokens[example], probe.real[example].tolist()
    assert isinstance(tokens, Pieces)
    groups = group_pieces(tokens) if whole else [[i] for i in range(len(tokens))]
    groups = [group for group in groups if all(real[i] for i in group)]
    owner = torch.full((len(tokens),), -1)
    for player, group in enumerate(groups):
        owner[group] = player
    return Players(owner, len(groups), (1, len(groups)))


def make_superpixel_players(probe: Probe, example: int, count: int) -> Players:
    """Areas of similar colour of one image."""
    owner = segment_superpixels(probe.encoded.inputs[probe.encoded.main][example].double().cpu(), count)
    areas = int(owner.max()) + 1
    return Players(owner, areas, (1, areas))


# --- coalitions -------------------------------------------------------------------------------------------------------


def ask_coalitions(
    probe: Probe,
    team: Sequence[Players],
    coalitions: Sequence[Tensor],
    *,
    fill: str | None,
    seed: int = 0,
    of: str = "score",
) -> list[Tensor]:
    """The model's answers to the coalitions of each example, [n] in float64."""
    sizes = [len(some) for some in coalitions]
    if not sum(sizes):
        return [torch.zeros(0, dtype=torch.float64) for _ in sizes]
    keep = torch.cat([players.keep(some) for players, some in zip(team, coalitions, strict=True)])
    rows = torch.arange(probe.batch).repeat_interleave(torch.tensor(sizes))
    return list(read_answers(probe, probe.keep_only(keep, rows, fill, seed=seed), rows, of).split(sizes))


def spread_values(team: Sequence[Players], values: Sequence[Tensor]) -> Tensor:
    """[batch *place]: the values of the players, spread over what belongs to them."""
    return torch.stack([players.spread(some) for players, some in zip(team, values, strict=True)])


# --- superpixels ------------------------------------------------------------------------------------------------------


def segment_superpixels(image: Tensor, count: int, *, compactness: float = 1.0, rounds: int = 10) -> Tensor:
    """[height width] from [channel height width]: about `count` areas, numbered from 0.

    As in SLIC (Achanta et al., 2012): k-means over colours and positions that starts from a regular grid. One standard
    deviation of the colours weighs as much as one step of that grid.
    """
    _, height, width = image.shape
    step = math.sqrt(height * width / count)
    rows = min(max(1, round(height / step)), count)
    columns = max(1, round(count / rows))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([y, x], dim=-1).reshape(-1, 2) * (compactness / step)
    colours = image.flatten(1).T - image.mean()
    # In a flat image the deviation is only rounding error: do not divide by it.
    colours = colours / colours.std().clamp(min=1e-6 * image.abs().max() + 1e-300)
    points = torch.cat([places.double(), colours], dim=1)
    owner = ((y * rows // height) * columns + x * columns // width).flatten()
    for _ in range(rounds):
        owner = owner.unique(return_inverse=True)[1]
        sizes = owner.bincount()
        centres = torch.zeros(len(sizes), points.size(1), dtype=torch.float64).index_add_(0, owner, points)
        owner = torch.cdist(points, centres / sizes[:, None]).argmin(dim=1)
    return owner.unique(return_inverse=True)[1].reshape(height, width)
