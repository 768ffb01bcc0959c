r"""The deletion and insertion games: the probability of the target while units go out of, or come into, the picture.

$$ \text{deletion} = \int_0^1 p(\text{without the top share } x) \, dx \qquad
   \text{insertion} = \int_0^1 p(\text{only the top share } x) \, dx $$

Petsiuk, Das & Saenko, RISE: Randomized Input Sampling for Explanation of Black-box Models, BMVC 2018. arXiv:1806.07421

As there, pictures are emptied to grey (0 after normalisation) in the deletion game and filled up from a blurred copy in
the insertion game. The paper steps one row of pixels at a time; here the fractions are a setting.
"""

from collections.abc import Sequence

import torch

from whyformer._engine.probe import Probe
from whyformer.metrics._ordering import to_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    RemovalUnit,
    ask_variants,
    check_fractions,
    find_units,
    keep_all_but_first,
    keep_only_first,
    rank_for_removal,
    trapezoid_area,
)
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
    """The target's mean probability while the highest scored pixels (or tokens) are taken out first.

    Lower is better. Control: a random order; it must lie above a good map and below the inverted one.
    """
    return play_game(
        explanation, probe, fractions, per, fill or ("zero" if probe.is_image else None), seed, inserts=False
    )


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
    """The target's mean probability while the highest scored pixels (or tokens) come into an empty input first.

    Higher is better. Control: a random order; it must lie below a good map and above the inverted one.
    """
    return play_game(
        explanation, probe, fractions, per, fill or ("blur" if probe.is_image else None), seed, inserts=True
    )


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
    found = find_units(explanation, probe, per=per)
    place = rank_for_removal(found, probe, seed=seed)
    counts = torch.tensor([[to_unit_count(f, n) for f in at] for n in found.counts])
    keep = keep_only_first(place, counts) if inserts else keep_all_but_first(place, counts)
    curve = ask_variants(probe, keep, found.shape, fill=fill, seed=seed).probability
    curve[~found.real.any(1)] = float("nan")
    return Measurement(trapezoid_area(curve, at) / (at[-1] - at[0]) if len(at) > 1 else curve[:, 0].clone(), curve, at)
