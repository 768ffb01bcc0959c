r"""Infidelity and faithfulness correlation: do scores add up to what removing random units does?

$$ \text{infidelity} = \mathbb{E}_S \Big( \beta \sum_{i \in S} \phi_i - (f(x) - f(x_{\setminus S})) \Big)^2 \qquad
   \rho = \operatorname{corr}_S \Big( \sum_{i \in S} \phi_i, \; f(x) - f(x_{\setminus S}) \Big) $$

with $f$ the explained logit and $S$ random units that are removed. Infidelity: Yeh et al., On the (In)fidelity and
Sensitivity of Explanations, NeurIPS 2019, arXiv:1901.09392. Correlation: Bhatt, Weller & Moura, Evaluating and
Aggregating Feature-based Model Explanations, IJCAI 2020, arXiv:2005.00631.

In the paper $\beta = 1$ (`preset="paper"`), which only a method in units of the logit can meet. By default $\beta \ge
0$ is the factor that fits best, and the error is divided by the mean of $(f(x) - f(x_{\setminus S}))^2$: 0 is
perfect, 1 is no better than a map of zeros. A map that points the wrong way is not turned round ($\beta$ stays at 0
or above).
"""

import torch
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MetricError
from whyformer.metrics._ordering import to_nearest_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import RemovableUnits, as_step_answers, ask_variants, find_units
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(
    paper="Yeh et al., NeurIPS 2019",
    better="lower",
    kind="faithfulness",
    presets={"paper": {"scaled": False}},
)
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
    """How far the sums of scores are from what removing random tokens (or patches) really does to the logit.

    samples: how many random sets, each the `fraction` of units.

    Lower is better. Control: a random map; a map of zeros gets exactly 1 (scaled). Undefined where no removal
    changes anything.
    """
    expected, happened = measure_sums_and_changes(explanation, probe, samples, fraction, fill, seed)
    beta = torch.ones(len(expected), 1, dtype=torch.float64)
    if scaled:
        fitted = (expected * happened).sum(1, keepdim=True) / (expected**2).sum(1, keepdim=True)
        beta = fitted.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    error = ((beta * expected - happened) ** 2).mean(1)
    return Measurement(error / (happened**2).mean(1) if scaled else error)


@metric(paper="Bhatt et al., IJCAI 2020", better="higher", kind="faithfulness")
def faithfulness_correlation(
    explanation: Explanation,
    probe: Probe,
    *,
    samples: int = 64,
    fraction: float = 0.2,
    fill: str | None = None,
    seed: int = 0,
) -> Measurement:
    """Whether random tokens (or patches) that score more together change the logit more together when removed.

    Higher is better, 1 at most. Control: a random map lies around 0. Undefined where scores or changes are all equal.
    """
    expected, happened = measure_sums_and_changes(explanation, probe, samples, fraction, fill, seed)
    a, b = (part - part.mean(1, keepdim=True) for part in (expected, happened))
    norms = a.norm(dim=1) * b.norm(dim=1)
    flat = (value_range(expected) == 0) | (value_range(happened) == 0)
    return Measurement(((a * b).sum(1) / norms).masked_fill(flat, NAN).clamp(-1, 1))


def value_range(values: Tensor) -> Tensor:
    return values.amax(1) - values.amin(1)


def measure_sums_and_changes(
    explanation: Explanation, probe: Probe, samples: int, fraction: float, fill: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """[batch sample] twice: the summed scores of the units that are removed, and how much the logit falls."""
    if samples < 2 or not 0 < fraction <= 1:
        raise MetricError(f"samples={samples} and fraction={fraction}: give 2 samples or more, and a fraction up to 1.")
    found = find_units(explanation, probe)
    gone = draw_random_sets(found, probe, samples, fraction, seed)
    after = ask_variants(probe, ~gone, found.shape, fill=fill, seed=seed).score
    happened = as_step_answers(probe.before, probe.batch).score - after
    happened[~found.real.any(1)] = NAN
    return (gone * found.scores[:, None, :]).sum(-1), happened


def draw_random_sets(found: RemovableUnits, probe: Probe, samples: int, fraction: float, seed: int) -> Tensor:
    """[batch sample unit] bool: random sets of one size, drawn for each example alone."""
    gone = torch.zeros(len(found.scores), samples, found.scores.shape[1], dtype=torch.bool)
    for i, (count, mark) in enumerate(zip(found.counts, probe.fingerprints, strict=True)):
        draws = torch.rand(samples, count, generator=make_generator(seed, int(mark)))
        first = draws.argsort(1)[:, : to_nearest_unit_count(fraction, count)]
        gone[i].scatter_(1, found.real[i].nonzero()[:, 0][first], True)
    return gone
