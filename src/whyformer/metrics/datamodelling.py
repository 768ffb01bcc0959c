r"""Linear datamodelling score: do summed scores rank random ablations as the model itself does?

$$ \text{LDS} = \rho_{\text{Spearman}} \Bigl( \bigl\{ \textstyle\sum_j z_{ij} \phi_j \bigr\}_i , \;
   \bigl\{ \operatorname{logit} p(z_i) \bigr\}_i \Bigr) , \qquad z_{ij} \sim \text{Bernoulli}(1/2) $$

over random ablations $z_i$ that keep each unit $j$ with probability 1/2; $p(z)$ is the probability of the explained
answer when only the kept units are there. Park, Georgiev, Ilyas, Leclerc & Madry, TRAK: Attributing Model Behavior at
Scale, ICML 2023, definition 2.4 (arXiv:2303.14186), for training examples; Cohen-Wang, Shah, Georgiev & Madry,
ContextCite, NeurIPS 2024, section 2 (arXiv:2409.00729), for parts of a prompt.

It differs from `faithfulness_correlation` in that half of the input is removed rather than a fifth, in ranks rather
than values, and in the log-odds of the answer rather than its logit. Targets without a probability (a regression, a sum
of logits) are read as they are.
"""

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_whole_number
from whyformer.methods._answers import read_log_odds
from whyformer.methods.context_cite import draw_ablations
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import RemovableUnits, find_empty_variants, find_removable_units
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(paper="Park et al., ICML 2023", better="higher", kind="faithfulness")
@check_metric_settings(samples=allow_whole_number(2))
def lds(
    explanation: Explanation, probe: Probe, *, samples: int = 64, fill: str | None = None, seed: int = 0
) -> Measurement:
    """Rank correlation of the summed scores of the kept tokens (or patches) with the log-odds, over random ablations.

    samples: the number of random ablations.

    Higher is better, at most 1. Control: a random map gets about 0. Undefined if all scores or all answers are equal.
    """
    units = find_removable_units(explanation, probe)
    keep = draw_unit_ablations(units, probe, samples, seed)
    answers = ask_log_odds(probe, keep, fill, seed)
    predicted = (keep * units.scores[:, None, :]).sum(-1)
    correlations = [correlate_defined_ranks(*pair) for pair in zip(predicted, answers, strict=True)]
    return Measurement(torch.tensor(correlations, dtype=torch.float64))


def draw_unit_ablations(units: RemovableUnits, probe: Probe, samples: int, seed: int) -> Tensor:
    """[batch sample unit] bool, True where a unit is kept; drawn independently for each example."""
    keep = torch.zeros(len(units.scores), samples, units.scores.shape[1], dtype=torch.bool)
    for i, (count, fingerprint) in enumerate(zip(units.counts, probe.fingerprints, strict=True)):
        drawn = draw_ablations(count, samples, make_generator(seed, int(fingerprint)))
        keep[i][:, units.real[i]] = drawn
    return keep


def ask_log_odds(probe: Probe, keep: Tensor, fill: str | None, seed: int) -> Tensor:
    """[batch sample]: the log-odds of the answer to variants, keep [batch sample unit]; NaN if no token is left.

    The same variant is asked for once: rounding, which depends on the batch, must not order equal answers.
    """
    batch, samples = keep.shape[:2]
    empty = torch.zeros(batch, samples, dtype=torch.bool)
    if (fill or probe.fill) == "delete":
        empty = find_empty_variants(probe, keep)
    unique = [torch.unique(rows, dim=0, return_inverse=True) for rows in keep | empty[..., None]]
    of = torch.arange(batch).repeat_interleave(torch.tensor([len(rows) for rows, _ in unique]))
    answers = probe.keep_only(torch.cat([rows for rows, _ in unique]), of, fill, seed=seed)
    found = read_log_odds(probe, answers, of).split([len(rows) for rows, _ in unique])
    return torch.stack([one[inverse] for one, (_, inverse) in zip(found, unique, strict=True)]).masked_fill(empty, NAN)


def correlate_defined_ranks(predicted: Tensor, actual: Tensor) -> float:
    """Spearman's correlation, ties sharing their mean rank; NaN if either is constant. Skips undefined answers."""
    known = ~actual.isnan()
    return float(correlate_many_ranks(predicted[known][None], actual[known])[0])


def correlate_many_ranks(predicted: Tensor, actual: Tensor) -> np.ndarray:
    """[row]: Spearman's correlation of each row of predicted [row sample] with actual [sample]."""
    if actual.numel() < 2:
        return np.full(len(predicted), NAN)
    first, second = rankdata(predicted.numpy(), axis=1), rankdata(actual.numpy())
    first, second = first - first.mean(1, keepdims=True), second - second.mean()
    norms = np.sqrt((first**2).sum(1) * (second**2).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        found = first @ second / norms
    return np.where(norms > 0, np.clip(found, -1, 1), NAN)
