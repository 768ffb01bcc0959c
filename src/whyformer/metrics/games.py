r"""The deletion and insertion games: the target's probability while units are removed from, or added to, the input.

$$ \text{deletion} = \int_0^1 p(\text{without the top fraction } x) \, dx \qquad
   \text{insertion} = \int_0^1 p(\text{only the top fraction } x) \, dx $$

Petsiuk, Das & Saenko, RISE: Randomized Input Sampling for Explanation of Black-box Models, BMVC 2018. arXiv:1806.07421

As in the paper, pixels are replaced by grey (0 after normalisation) in the deletion game and inserted into a blurred
copy in the insertion game. The paper steps one row of pixels at a time; here the fractions are a setting.
"""

from collections.abc import Sequence
from typing import Any

from whyformer._engine import Probe
from whyformer._plain.setting_checks import take_settings_of
from whyformer.metrics._ordering import TieOrder, to_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import RemovalUnit, ask_without_units, choose_fill, trapezoid_area
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

TWENTIETHS = tuple(k / 20 for k in range(21))


@check_metric_settings()
def play_game(
    explanation: Explanation,
    probe: Probe,
    inserts: bool,
    *,
    fractions: Sequence[float] = TWENTIETHS,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    ties: TieOrder = "random",
    seed: int = 0,
) -> Measurement:
    """The target's mean probability while units are removed from the input, or inserted into an empty one."""
    fill = choose_fill(probe, fill, image="blur" if inserts else "zero")
    curve = ask_without_units(
        explanation, probe, fractions, to_unit_count, fill=fill, seed=seed, ties=ties, per=per, keeps=inserts
    ).probability
    at = tuple(fractions)
    return Measurement(trapezoid_area(curve, at) / (at[-1] - at[0]) if len(at) > 1 else curve[:, 0].clone(), curve, at)


@metric(paper="Petsiuk et al., BMVC 2018", better="lower", kind="faithfulness")
@take_settings_of(play_game)
def deletion(explanation: Explanation, probe: Probe, **settings: Any) -> Measurement:
    """The target's mean probability while the highest-scored pixels (or tokens) are removed first.

    per: "pixel" or "patch" for images; texts lose tokens.
    fill: by default 0 for images, the probe's fill for texts.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Lower is better. Control: a random order; it must score higher than a good map and lower than an inverted one.
    """
    return play_game(explanation, probe, False, **settings)


@metric(paper="Petsiuk et al., BMVC 2018", better="higher", kind="faithfulness")
@take_settings_of(play_game)
def insertion(explanation: Explanation, probe: Probe, **settings: Any) -> Measurement:
    """The target's mean probability while the highest-scored pixels (or tokens) are inserted first.

    per: "pixel" or "patch" for images; texts gain tokens.
    fill: what the empty input consists of; by default a blurred copy for images, the probe's fill for texts.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Higher is better. Control: a random order; it must score lower than a good map and higher than an inverted one.
    """
    return play_game(explanation, probe, True, **settings)
