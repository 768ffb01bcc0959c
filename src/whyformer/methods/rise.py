r"""RISE: the mean answer to random masks that leave a place in.

$$ s_j = \frac{1}{N\,p} \sum_{i=1}^{N} y(x \odot M_i)\, M_{ij}, \qquad \mathbb{E}[M_{ij}] = p $$

Petsiuk, Das & Saenko, RISE: Randomized Input Sampling for Explanation of Black-box Models, BMVC 2018, eq. 6.
arXiv:1806.07421

Masks of a picture are drawn as `cells` x `cells` coins, made larger than the picture by bilinear interpolation and cut
out at a random place (section 3.2); a mask mixes the picture with its fill. The paper takes 4000 to 8000 masks, which
we leave to `budget`. A text has no grey words: its masks are coins for its tokens, and gone is gone.

$y$ is the probability, as in the paper; of a model that answers with a number, that number, and then scores may be
below 0. `normalise="coverage"` divides by how often a place was really left in, not by how often it should have been,
which is less noisy at small budgets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods._players import ask_coalitions, players_of, read_answers, spread_values
from whyformer.methods._registry import method
from whyformer.methods._settings import check_choice, check_share, check_whole_number


@method(paper="Petsiuk et al., BMVC 2018", class_specific=True, signed=False, cost="`budget` forwards")
def rise(
    probe: Probe,
    *,
    budget: int = 1000,
    cells: int = 7,
    kept: float = 0.5,
    normalise: str = "expected",
    fill: str | None = None,
    seed: int = 0,
) -> Tensor:
    """The mean probability of the explained class over random masks that leave a pixel or token in.

    budget: masks. cells: coins each way under a mask of a picture. kept: how likely each is to leave in.
    normalise: "expected" (the paper) or "coverage". fill: what stands where the mask takes away.
    """
    budget, cells = check_whole_number("budget", budget, 1), check_whole_number("cells", cells, 1)
    check_choice("normalise", normalise, ("expected", "coverage"))
    if not check_share("kept", kept):
        raise MethodError("kept=0 takes everything away. Give a share above 0.")
    weighed = sum_pixel_answers if probe.is_image else sum_token_answers
    total, covered = weighed(probe, budget, cells, kept, fill, seed)
    return total / (covered.clamp(min=1e-9) if normalise == "coverage" else budget * kept)


def sum_token_answers(
    probe: Probe, budget: int, cells: int, kept: float, fill: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch token] twice: the answers added up where a token was left in, and how often it was."""
    team = players_of(probe, "token")
    masks = [
        torch.rand(budget, players.count, dtype=torch.float64, generator=make_generator(seed, mark)) < kept
        for players, mark in zip(team, probe.fingerprints, strict=True)
    ]
    answers = ask_coalitions(probe, team, masks, fill=fill, seed=seed, of="probability")
    total = [answer @ mask.double() for answer, mask in zip(answers, masks, strict=True)]
    return spread_values(team, total), spread_values(team, [mask.double().sum(0) for mask in masks])


def sum_pixel_answers(
    probe: Probe, budget: int, cells: int, kept: float, fill: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch height width] twice: the answers added up as far as a pixel was left in, and how far it was."""
    if fill == "drop":
        raise MethodError("fill='drop' takes whole patches away, but these masks go through them. Use another fill.")
    pixels = probe.encoded.inputs[probe.encoded.main]
    empty = probe.baseline(probe.fill if fill is None else fill, seed=seed).permute(0, 3, 1, 2)
    masks = [
        RiseMasks.draw(budget, cells, kept, pixels.shape[-2:], make_generator(seed, mark))
        for mark in probe.fingerprints
    ]
    of = torch.arange(probe.batch).repeat_interleave(budget)

    def mixed(rows: Tensor) -> Tensor:
        stays = torch.stack([masks[row // budget].enlarge(row % budget) for row in rows.tolist()])[:, None].to(pixels)
        at = of[rows].to(pixels.device)
        return pixels[at] * stays + empty[at].to(pixels) * (1 - stays)

    answers = read_answers(probe, probe.replace_inputs(mixed, of), of, "probability").split(budget)
    total, covered = zip(
        *(drawn.sum_answers(answer) for drawn, answer in zip(masks, answers, strict=True)), strict=True
    )
    return torch.stack(total), torch.stack(covered)


@dataclass(frozen=True)
class RiseMasks:
    """The masks of one picture, before they are made large."""

    small_masks: Tensor  # [mask cell cell]
    corner: Tensor  # [mask 2]: where the picture is cut out
    size: tuple[int, int]

    @staticmethod
    def draw(budget: int, cells: int, kept: float, size: Sequence[int], generator: torch.Generator) -> "RiseMasks":
        coins = torch.rand(budget, cells, cells, dtype=torch.float64, generator=generator) < kept
        corner = torch.rand(budget, 2, dtype=torch.float64, generator=generator)
        steps = torch.tensor([math.ceil(side / cells) for side in size])
        return RiseMasks(coins.double(), (corner * steps).long(), (int(size[0]), int(size[1])))

    def enlarge(self, mask: int) -> Tensor:
        """[height width], from 0 to 1."""
        (height, width), cells = self.size, self.small_masks.size(-1)
        grown = [(cells + 1) * math.ceil(side / cells) for side in self.size]
        wide = F.interpolate(self.small_masks[mask][None, None], size=grown, mode="bilinear", align_corners=False)[0, 0]
        top, left = self.corner[mask].tolist()
        return wide[top : top + height, left : left + width]

    def sum_answers(self, answers: Tensor) -> tuple[Tensor, Tensor]:
        total, covered = torch.zeros(self.size, dtype=torch.float64), torch.zeros(self.size, dtype=torch.float64)
        for mask, answer in enumerate(answers.tolist()):
            large = self.enlarge(mask)
            total += answer * large
            covered += large
        return total, covered
