"""Players: what a perturbation takes away together, and what the model answers when only some of them stay.

A player is a patch, a superpixel, a token, or a word with all its pieces. Special tokens and padding belong to nobody
and always stay.

    team = players_of(probe, "word")                         one Players for each example
    worth = asked(probe, team, coalitions, fill=None)        coalitions[i]: [n player] of example i, True: stays
    scores = spread(team, values)                            values[i]: [player]

All coalitions of all examples go through the model in one call.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine.probe import Answers, Probe
from whyformer._plain.tokens import Pieces
from whyformer._plain.words import group_pieces
from whyformer.errors import MethodError
from whyformer.methods._settings import check_choice

ANSWER_KINDS = ("score", "probability")
IMAGE_UNITS = ("patch", "superpixel")
TEXT_UNITS = ("word", "token")


@dataclass(frozen=True)
class Players:
    """Who each patch, token or pixel of one example belongs to."""

    owner: Tensor  # [unit] or [height width]: the number of the player, -1 nobody
    count: int
    grid_shape: tuple[int, int]  # rows and columns the players stand in; a text is one row

    def keep(self, coalitions: Tensor) -> Tensor:
        """[n *place]: what stays when only these players do."""
        nobody = torch.ones(len(coalitions), 1, dtype=torch.bool)
        return torch.cat([coalitions.bool(), nobody], dim=1)[:, self.owner]

    def spread(self, values: Tensor) -> Tensor:
        """[*place]: each player's value in equal shares on what belongs to it, so that the sum stays the same."""
        owned = self.owner[self.owner >= 0]
        share = values.double() / owned.bincount(minlength=self.count)
        return torch.cat([share, share.new_zeros(1)])[self.owner]


def players_of(probe: Probe, units: str | None, *, text: str = "token", superpixels: int = 49) -> list[Players]:
    """The players of each example; without `units`, patches of a picture and what `text` says of a text."""
    if probe.is_image:
        chosen = check_choice("units", "patch" if units is None else units, IMAGE_UNITS)
        return (
            [make_superpixel_players(probe, example, superpixels) for example in range(probe.batch)]
            if chosen == "superpixel"
            else [make_patch_players(probe)] * probe.batch
        )
    chosen = check_choice("units", text if units is None else units, TEXT_UNITS)
    return [make_text_players(probe, example, chosen == "word") for example in range(probe.batch)]


def make_patch_players(probe: Probe) -> Players:
    if probe.grid is None:
        raise MethodError(
            "The patches of this picture are not known, so they cannot be taken away one by one. Use "
            "units='superpixel' where a method has it, or a method that works on pixels, such as rise."
        )
    return Players(torch.arange(probe.units), probe.units, (probe.grid.rows, probe.grid.columns))


def make_text_players(probe: Probe, example: int, whole: bool) -> Players:
    """Tokens of a text, or its words: what stands between blanks. Without a text to find words in, every token."""
    tokens, real = probe.tokens[example], probe.real[example].tolist()
    assert isinstance(tokens, Pieces)
    groups = group_pieces(tokens) if whole else [[i] for i in range(len(tokens))]
    groups = [group for group in groups if all(real[i] for i in group)]
    owner = torch.full((len(tokens),), -1)
    for player, group in enumerate(groups):
        owner[group] = player
    return Players(owner, len(groups), (1, len(groups)))


# --- superpixels ------------------------------------------------------------------------------------------------------


def make_superpixel_players(probe: Probe, example: int, count: int) -> Players:
    """Areas of like colour, by k-means over colour and place."""
    owner = segment_superpixels(probe.encoded.inputs[probe.encoded.main][example].double().cpu(), count)
    found = int(owner.max()) + 1
    return Players(owner, found, (1, found))


def segment_superpixels(picture: Tensor, count: int, *, compactness: float = 1.0, rounds: int = 10) -> Tensor:
    """[height width] from [channel height width]: about `count` areas, numbered from 0.

    As in SLIC (Achanta et al., 2012): k-means over colours and places that starts from a regular grid; one unit of
    colour, its standard deviation, weighs as much as one step of that grid.
    """
    _, height, width = picture.shape
    step = math.sqrt(height * width / count)
    rows = min(max(1, round(height / step)), count)
    columns = max(1, round(count / rows))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([y, x], dim=-1).reshape(-1, 2) * (compactness / step)
    colours = picture.flatten(1).T - picture.mean()
    colours = colours / colours.std().clamp(min=1e-6 * picture.abs().max() + 1e-300)  # flat: no colour but rounding
    points = torch.cat([places.double(), colours], dim=1)
    owner = ((y * rows // height) * columns + x * columns // width).flatten()
    for _ in range(rounds):
        owner = owner.unique(return_inverse=True)[1]
        sizes = owner.bincount()
        centres = torch.zeros(len(sizes), points.size(1), dtype=torch.float64).index_add_(0, owner, points)
        owner = torch.cdist(points, centres / sizes[:, None]).argmin(dim=1)
    return owner.unique(return_inverse=True)[1].reshape(height, width)


# --- asking -----------------------------------------------------------------------------------------------------------


def ask_coalitions(
    probe: Probe,
    team: Sequence[Players],
    coalitions: Sequence[Tensor],
    *,
    fill: str | None,
    seed: int = 0,
    of: str = "score",
) -> list[Tensor]:
    """What the model answers to each coalition of each example, [n] in float64."""
    sizes = [len(some) for some in coalitions]
    if not sum(sizes):
        return [torch.zeros(0, dtype=torch.float64) for _ in sizes]
    keep = torch.cat([players.keep(some) for players, some in zip(team, coalitions, strict=True)])
    rows = torch.arange(probe.batch).repeat_interleave(torch.tensor(sizes))
    return list(read_answers(probe, probe.keep_only(keep, rows, fill, seed=seed), rows, of).split(sizes))


def read_answers(probe: Probe, answers: Answers, rows: Tensor, of: str) -> Tensor:
    """The score, or the probability, [n] in float64. Of a contrast it is that of the one class against the other."""
    score = answers.score.double().cpu()
    if check_choice("of", of, ANSWER_KINDS) == "score":
        return score
    is_contrast = torch.tensor([target.versus is not None for target in probe.targets])[rows]
    return torch.where(is_contrast, score.sigmoid(), answers.probability.double().cpu())


def read_clean_answers(probe: Probe, of: str) -> Tensor:
    """What the model answers to the examples as they are, [batch] in float64."""
    return read_answers(probe, probe.before, torch.arange(probe.batch), of)


def spread_values(team: Sequence[Players], values: Sequence[Tensor]) -> Tensor:
    """[batch *place]: the values of the players on what belongs to them."""
    return torch.stack([players.spread(some) for players, some in zip(team, values, strict=True)])
