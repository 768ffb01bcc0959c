r"""The deletion and insertion games: the target's probability while units are removed from, or added to, the input.

$$ \text{deletion} = \int_0^1 p(\text{without the top fraction } x) \, dx \qquad
   \text{insertion} = \int_0^1 p(\text{only the top fraction } x) \, dx $$

Petsiuk, Das & Saenko, RISE: Randomized Input Sampling for Explanation of Black-box Models, BMVC 2018. arXiv:1806.07421

As in the paper, pixels are replaced by grey (0 after normalisation) in the deletion game and inserted into a blurred
copy in the insertion game. The paper steps one row of pixels at a time; here the fractions are a setting.
"""

from collections.abc import Sequence

import torch

from whyformer._engine.probe import Probe
from whyformer.metrics._ordering import to_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    RemovalUnit,
    ask_variants,
    choose_fill,
    find_units,
    keep_all_but_first,
    keep_only_first,
    rank_for_removal,
    trapezoid_area,
)
from whyformer.metrics._settings import check_fractions
from whyformer.results.explanation import Explanation

TWENTIETHS = tuple(k / 20 for k in range(21))


@metric(paper="Petsiuk et al., BMVC 2018", better="lower", kind="faithfulness")
def deletion(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = TWENTIETHS,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    seed: int = 0,
) -> Measurement:
    """The target's mean probability while the highest scored pixels (or tokens) are removed first.

    per: "pixel" or "patch" for images; texts lose tokens.
    fill: by default 0 for images, the probe's fill for texts.

    Lower is better. Control: a random order; it must be above a good map and below the inverted one.
    """
    fill = choose_fill(probe, fill, image="zero")
    return play_game(explanation, probe, fractions, per, fill, seed, inserts=False)


@metric(paper="Petsiuk et al., BMVC 2018", better="higher", kind="faithfulness")
def insertion(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = TWENTIETHS,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    seed: int = 0,
) -> Measurement:
    """The target's mean probability while the highest scored pixels (or tokens) are inserted first.

    per: "pixel" or "patch" for images; texts gain tokens.
    fill: what the empty input consists of; by default a blurred copy for images, the probe's fill for texts.

    Higher is better. Control: a random order; it must be below a good map and above the inverted one.
    """
    fill = choose_fill(probe, fill, image="blur")
    return play_game(explanation, probe, fractions, per, fill, seed, inserts=True)


def play_game(
    explanation: Explanation,
    probe: Probe,
    fractions: Sequence[float],
    per: RemovalUnit,
    fill: str | None,
    seed: int,
    *,
    inserts: bool,
) -> Measurement:
    at = check_fractions(fractions)
    units = find_units(explanation, probe, per=per)
    place = rank_for_removal(units, probe, seed=seed)
    counts = torch.tensor([[to_unit_count(f, n) for f in at] for n in units.counts])
    keep = keep_only_first(place, counts) if inserts else keep_all_but_first(place, counts)
    curve = ask_variants(probe, keep, units.shape, fill=fill, seed=seed).probability
    curve[~units.real.any(1)] = float("nan")
    return Measurement(trapezoid_area(curve, at) / (at[-1] - at[0]) if len(at) > 1 else curve[:, 0].clone(), curve, at)
