r"""ROAD, remove and debias: what the answer loses when pixels are imputed from their neighbours.

$$ \text{ROAD} = \frac{1}{K} \sum_k p(\text{without the lowest fraction } k) - p(\text{without the highest}) $$

Removed pixels solve $x_p = \sum_{q \in N(p)} w_q x_q$ with weight 1/6 for each of the four direct neighbours and 1/12
for each diagonal one (fewer at the border, normalised to sum to 1; _imputation.py), plus a little noise, so that the
shape of the removed area is not itself a cue. Rong et al., A Consistent and Efficient Evaluation Strategy for
Attribution Methods, ICML 2022. arXiv:2202.00449

The paper reports accuracy curves for both orders; the difference of the target's probabilities needs no label. The
curve contains both: first with the highest removed, then with the lowest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._model import as_pixels
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_flag
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError
from whyformer.metrics._imputation import impute_images
from whyformer.metrics._ordering import TieOrder, to_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    RemovalUnit,
    as_step_answers,
    find_removable_units,
    keep_all_but_first,
    rank_for_removal,
    read_input_images,
)
from whyformer.metrics._settings import allow_noise, check_metric_settings, drop_zero_fraction
from whyformer.results.explanation import Explanation


@metric(paper="Rong et al., ICML 2022", better="higher", kind="faithfulness", only="images")
@check_metric_settings(noise=allow_noise, exact=allow_flag)
def road(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
    per: RemovalUnit = "patch",
    noise: float = 0.01,
    exact: bool = False,
    ties: TieOrder = "random",
    seed: int = 0,
) -> Measurement:
    """How much more the target's probability falls when the highest-scored patches are imputed, not the lowest.

    per: "pixel" or "patch".
    noise: the standard deviation of the noise added to imputed pixels, relative to that of the image.
    exact: impute to rounding error by elimination, however many pixels are removed. Otherwise removals of more than
        4,096 pixels are imputed iteratively, to about a thousandth of the image's standard deviation.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Higher is better. Control: a random map gets about 0, the inverted map the negative of the map itself.
    """
    if not probe.is_image:
        raise InputError("ROAD imputes pixels, but the input is a text. Use aopc or comprehensiveness.")
    at = drop_zero_fraction(fractions)
    units = find_removable_units(explanation, probe, per=per)
    counts = torch.tensor([[to_unit_count(f, n) for f in at] for n in units.counts])
    ranks = [rank_for_removal(units, probe, seed=seed, ties=ties, lowest=lowest) for lowest in (False, True)]
    keep = torch.cat([keep_all_but_first(rank, counts) for rank in ranks], 1)
    variants, of = make_variants(probe, keep, units.shape, noise, exact, seed)
    curve = as_step_answers(probe.replace_inputs(variants, of), probe.batch).probability
    highest, lowest = curve.chunk(2, 1)
    return Measurement((lowest - highest).mean(1), curve, (*at, *at))


def make_variants(
    probe: Probe, keep: Tensor, shape: Sequence[int], noise: float, exact: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch x step channel height width]: images with the removed part imputed, and the example each belongs to."""
    given = read_input_images(probe)
    height, width = given.shape[-2:]
    rows: list[Tensor] = []
    for i, fingerprint in enumerate(probe.fingerprints):
        image = given[i].detach().cpu().double()
        drawn = torch.randn((height, width, len(image)), generator=make_generator(seed, int(fingerprint)),
                            dtype=torch.float64).permute(2, 0, 1)  # fmt: skip
        kept, grid = keep[i].reshape(-1, *shape), probe.tokens[i]
        if len(shape) != 2 and isinstance(grid, Grid):
            kept = torch.stack([patches_to_pixels(one, grid, height, width) for one in keep[i]])
        imputed = impute_images(image, kept, exactly=exact)
        rows.append(imputed.addcmul_((~kept[:, None]).double(), noise * image.std(correction=0) * drawn).to(given))
    of = torch.arange(len(keep)).repeat_interleave(keep.shape[1])
    return torch.cat(rows), of


def patches_to_pixels(kept: Tensor, grid: Grid, height: int, width: int) -> Tensor:
    """[height width] from one value per patch."""
    if grid.covers is None and (height % grid.rows or width % grid.columns):
        raise InputError(
            f"{height} x {width} pixels cannot be divided evenly into {grid.rows} x {grid.columns} patches."
        )
    return as_pixels(kept[None], grid, (height, width))[0]
