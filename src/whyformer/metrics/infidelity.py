r"""Infidelity and faithfulness correlation: do summed scores predict the effect of removing random units?

$$ \text{infidelity} = \mathbb{E}_S \Big( \beta \sum_{i \in S} \phi_i - (f(x) - f(x_{\setminus S})) \Big)^2 \qquad
   \rho = \operatorname{corr}_S \Big( \sum_{i \in S} \phi_i, \; f(x) - f(x_{\setminus S}) \Big) $$

with $f$ the explained logit and $S$ random units that are removed. Infidelity: Yeh et al., On the (In)fidelity and
Sensitivity of Explanations, NeurIPS 2019, arXiv:1901.09392. Correlation: Bhatt, Weller & Moura, Evaluating and
Aggregating Feature-based Model Explanations, IJCAI 2020, arXiv:2005.00631.

In the paper $\beta = 1$ (`preset="paper"`), which only suits methods whose scores are in units of the logit. By default
$\beta \ge 0$ is the factor that fits best, and the error is divided by the mean of $(f(x) - f(x_{\setminus S}))^2$: 0
is perfect, 1 is no better than a map of zeros. $\beta$ is never negative, so a map with the wrong sign is not inverted.
"""

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_flag, allow_whole_number
from whyformer.metrics._ordering import to_nearest_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import RemovableUnits, as_step_answers, ask_variants, find_removable_units
from whyformer.metrics._settings import allow_part, check_metric_settings
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(paper="Yeh et al., NeurIPS 2019", better="lower", kind="faithfulness", presets={"paper": {"scaled": False}})
@check_metric_settings(samples=allow_whole_number(2), fraction=allow_part, scaled=allow_flag)
def infidelity(
    explanation: Explanation,
    probe: Probe,
    *,
    samples: int = 64,
    fraction: float = 0.2,
    scaled: bool = True,
    fill: str | None = None,
    seed: int = 0,
) -> Measurement:
    """How far summed scores are from the actual effect on the logit of removing random tokens (or patches).

    samples: the number of random sets.
    fraction: the fraction of units in each set.
    scaled: fit the factor beta and divide the error, see above.

    Lower is better. Control: a random map; a map of zeros gets exactly 1 (scaled). Undefined if no removal changes the
    logit.
    """
    summed, effect = measure_sums_and_changes(explanation, probe, samples, fraction, fill, seed)
    beta = torch.ones(len(summed), 1, dtype=torch.float64)
    if scaled:
        fitted = (summed * effect).sum(1, keepdim=True) / (summed**2).sum(1, keepdim=True)
        beta = fitted.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    error = ((beta * summed - effect) ** 2).mean(1)
    return Measurement(error / (effect**2).mean(1) if scaled else error)


@metric(paper="Bhatt et al., IJCAI 2020", better="higher", kind="faithfulness")
@check_metric_settings(samples=allow_whole_number(2), fraction=allow_part)
def faithfulness_correlation(
    explanation: Explanation,
    probe: Probe,
    *,
    samples: int = 64,
    fraction: float = 0.2,
    fill: str | None = None,
    seed: int = 0,
) -> Measurement:
    """Correlation of the summed scores of random token (or patch) sets with the effect of removing them on the logit.

    samples: the number of random sets.
    fraction: the fraction of units in each set.

    Higher is better, at most 1. Control: a random map gets about 0. Undefined if all scores or all effects are equal.
    """
    summed, effect = measure_sums_and_changes(explanation, probe, samples, fraction, fill, seed)
    a, b = (part - part.mean(1, keepdim=True) for part in (summed, effect))
    norms = a.norm(dim=1) * b.norm(dim=1)
    flat = (value_range(summed) == 0) | (value_range(effect) == 0)
    return Measurement(((a * b).sum(1) / norms).masked_fill(flat, NAN).clamp(-1, 1))


def value_range(values: Tensor) -> Tensor:
    return values.amax(1) - values.amin(1)


def measure_sums_and_changes(
    explanation: Explanation, probe: Probe, samples: int, fraction: float, fill: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch sample] twice: the summed scores of the removed units, and how much the logit falls."""
    units = find_removable_units(explanation, probe)
    removed = draw_random_sets(units, probe, samples, fraction, seed)
    after = ask_variants(probe, ~removed, units.shape, fill=fill, seed=seed).score
    effect = as_step_answers(probe.before, probe.batch).score - after
    effect[~units.real.any(1)] = NAN
    return (removed * units.scores[:, None, :]).sum(-1), effect


def draw_random_sets(units: RemovableUnits, probe: Probe, samples: int, fraction: float, seed: int) -> Tensor:
    """[batch sample unit] bool: random sets of one size, drawn independently for each example."""
    removed = torch.zeros(len(units.scores), samples, units.scores.shape[1], dtype=torch.bool)
    for i, (count, fingerprint) in enumerate(zip(units.counts, probe.fingerprints, strict=True)):
        draws = torch.rand(samples, count, generator=make_generator(seed, int(fingerprint)))
        first = draws.argsort(1)[:, : to_nearest_unit_count(fraction, count)]
        removed[i].scatter_(1, units.real[i].nonzero()[:, 0][first], True)
    return removed
