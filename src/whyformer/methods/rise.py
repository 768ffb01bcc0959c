r"""RISE: the mean answer over random masks that keep a position.

$$ s_j = \frac{1}{N\,p} \sum_{i=1}^{N} y(x \odot M_i)\, M_{ij}, \qquad \mathbb{E}[M_{ij}] = p $$

Petsiuk, Das & Saenko, RISE: Randomized Input Sampling for Explanation of Black-box Models, BMVC 2018, eq. 6.
arXiv:1806.07421

Masks for an image are random binary grids of `cells` x `cells`, enlarged beyond the image by bilinear interpolation and
cropped at a random position (section 3.2); a mask blends the image with its fill. The paper uses 4000 to 8000 masks;
here that is `budget`. Words cannot be blended: masks for a text keep or remove each token.

$y$ is the probability, as in the paper; for a regression model it is the model's output, and scores may be negative.
`normalise="coverage"` divides by how often a position was actually kept instead of the expected number, which is less
noisy at small budgets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine import Probe
from whyformer._model import send_to_device
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_choice, allow_number, allow_whole_number
from whyformer.errors import MethodError
from whyformer.methods._answers import read_answers
from whyformer.methods._players import ask_coalitions, players_of, spread_values
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(paper="Petsiuk et al., BMVC 2018", class_specific=True, signed=False, cost="`budget` forwards")
@check_method_settings(
    budget=allow_whole_number(1),
    cells=allow_whole_number(1, 256),
    kept=allow_number("a number > 0 and <= 1", most=1, above=0),
    normalise=allow_choice(("expected", "coverage")),
)
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
    """The mean probability of the target over random masks that keep a pixel or token.

    budget: number of masks.
    cells: side of the binary grid behind a mask of an image.
    kept: the probability that a cell or token is kept.
    normalise: "expected" (the paper) or "coverage".
    fill: what replaces the masked part.
    """
    sum_answers = sum_pixel_answers if probe.is_image else sum_token_answers
    total, covered = sum_answers(probe, budget, cells, kept, fill, seed)
    return total / (covered.clamp(min=1e-9) if normalise == "coverage" else budget * kept)


def sum_token_answers(
    probe: Probe, budget: int, cells: int, kept: float, fill: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch token] twice: the sum of answers with a token kept, and how often it was kept."""
    team = players_of(probe, "token")
    masks = [
        torch.rand(budget, players.count, dtype=torch.float64, generator=make_generator(seed, fingerprint)) < kept
        for players, fingerprint in zip(team, probe.fingerprints, strict=True)
    ]
    answers = ask_coalitions(probe, team, masks, fill=fill, seed=seed, of="probability")
    total = [answer @ mask.double() for answer, mask in zip(answers, masks, strict=True)]
    return spread_values(team, total), spread_values(team, [mask.double().sum(0) for mask in masks])


def sum_pixel_answers(
    probe: Probe, budget: int, cells: int, kept: float, fill: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch height width] twice: the sum of answers weighted by the masks, and the sum of the masks."""
    if fill == "drop":
        raise MethodError(
            "fill='drop' removes whole patches, but RISE masks are per pixel. Use another fill.", code="E_OPTION"
        )
    pixels = probe.encoded.inputs[probe.encoded.main]
    empty = probe.baseline(probe.fill if fill is None else fill, seed=seed).permute(0, 3, 1, 2)
    masks = [
        RiseMasks.draw(budget, cells, kept, pixels.shape[-2:], make_generator(seed, fingerprint))
        for fingerprint in probe.fingerprints
    ]
    of = torch.arange(probe.batch).repeat_interleave(budget)

    def blend(rows: Tensor) -> Tensor:
        examples = of[rows]
        parts = [masks[i].enlarge(rows[examples == i] % budget) for i in examples.unique().tolist()]
        stays = send_to_device(torch.cat(parts)[:, None].to(pixels.dtype), pixels.device)
        at = send_to_device(examples, pixels.device)
        return pixels[at] * stays + empty[at].to(pixels) * (1 - stays)

    answers = read_answers(probe, probe.replace_inputs(blend, of), of, "probability").split(budget)
    total, covered = zip(
        *(drawn.sum_answers(answer) for drawn, answer in zip(masks, answers, strict=True)), strict=True
    )
    return torch.stack(total), torch.stack(covered)


@dataclass(frozen=True)
class RiseMasks:
    """The masks of one image, before they are enlarged. Enlarging is linear: rows @ small mask @ columns."""

    small_masks: Tensor  # [mask cell cell]
    corner: Tensor  # [mask 2]: where the mask is cropped, top and left
    rows: Tensor  # [mask height cell]: the bilinear weights of its rows
    columns: Tensor  # [left cell width]: those of columns, for every place where they may be cropped

    @staticmethod
    def draw(budget: int, cells: int, kept: float, size: Sequence[int], generator: torch.Generator) -> "RiseMasks":
        coins = torch.rand(budget, cells, cells, dtype=torch.float64, generator=generator) < kept
        corner = torch.rand(budget, 2, dtype=torch.float64, generator=generator)
        steps = torch.tensor([math.ceil(side / cells) for side in size])
        corner = (corner * steps).long()
        vertical, horizontal = (make_crops(side, cells) for side in size)
        return RiseMasks(coins.double(), corner, vertical[corner[:, 0]], horizontal.mT)

    def enlarge(self, masks: Tensor) -> Tensor:
        """[n height width], from 0 to 1, of the masks with these numbers."""
        return self.rows[masks] @ self.small_masks[masks] @ self.columns[self.corner[masks, 1]]

    def sum_answers(self, answers: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the enlarged masks times their answers, and the sum of the masks alone."""
        tall, left = self.rows @ self.small_masks, self.corner[:, 1]
        sums = tall.new_zeros(2, len(self.columns), *tall.shape[1:])  # of the masks with the same columns
        sums[0].index_add_(0, left, tall * answers[:, None, None])
        sums[1].index_add_(0, left, tall)
        total, covered = (sums @ self.columns).sum(1)
        return total, covered


def make_crops(side: int, cells: int) -> Tensor:
    """[offset side cell]: the bilinear weights of the cells in each pixel, for every crop of the enlarged grid."""
    step = math.ceil(side / cells)
    grown = F.interpolate(torch.eye(cells, dtype=torch.float64)[None], size=(cells + 1) * step, mode="linear")[0]
    return grown.T.unfold(0, side, 1)[: step + 1].mT
