r"""AOPC and log-odds: how far the target's probability falls when more and more of the top tokens are removed.

$$ \text{AOPC} = \frac{1}{K} \sum_{k=1}^{K} p(x) - p(\tilde{x}_k) \qquad
   \text{LOdds} = \frac{1}{K} \sum_{k=1}^{K} \ln \frac{p(\tilde{x}_k)}{p(x)} $$

with $\tilde{x}_k$ the input without the fraction $k$ of units with the highest scores. AOPC: Samek et al., Evaluating
the visualization of what a deep neural network has learned, TNNLS 2017, arXiv:1509.06321. Log-odds: Shrikumar,
Greenside & Kundaje, ICML 2017, arXiv:1704.02685; both on text as in Qiang et al., AttCAT, NeurIPS 2022.

`preset="released"` is AttCAT's code: the absolute difference, sizes in ninths of all tokens ($\text{round}(k N / 9)$,
$k = 1..9$, $N$ including special tokens), special tokens skipped but the last-ranked token never removed, tokens of
equal score in reading order (`ties="first"`), texts under 10 tokens left out. It runs each of the two metrics with both
fills, words deleted and words replaced by a padding token that the model attends to like a word (`fill="pad_token"`).
Which of them the paper's tables have is not visible in the code; by default `released` deletes for AOPC and replaces
for log-odds. (That code explains the labelled class; use target=label for that. For pairs of texts it also removes
[CLS] and [SEP] and passes no segment ids, which we do not repeat.)
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_choice, allow_flag
from whyformer._plain.tokens import Pieces
from whyformer.metrics._ordering import TieOrder, to_nearest_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    TENTHS,
    as_step_answers,
    ask_variants,
    ask_without_units,
    choose_fill,
    find_removable_units,
    keep_all_but_first,
    rank_for_removal,
    set_undefined,
)
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

RemovalSizes = Literal["fractions", "ninths"]
allow_sizes = allow_choice(get_args(RemovalSizes))
SMALLEST_PROBABILITY = torch.finfo(torch.float32).tiny  # stands for a probability that underflows to 0


@metric(
    paper="Samek et al., TNNLS 2017",
    better="higher",
    kind="faithfulness",
    presets={"released": {"absolute": True, "sizes": "ninths", "ties": "first"}},
)
@check_metric_settings(absolute=allow_flag, sizes=allow_sizes)
def aopc(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = TENTHS,
    fill: str | None = None,
    absolute: bool = False,
    sizes: RemovalSizes = "fractions",
    ties: TieOrder = "random",
    seed: int = 0,
) -> Measurement:
    """How far the target's probability falls, on average, while the highest-scored tokens or patches are removed.

    fill: by default tokens are deleted and patches set to 0; or any fill of the probe.
    absolute: use the magnitude of each change.
    sizes: "fractions", or "ninths" as in AttCAT's code.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Higher is better. Control: a random map.
    """
    before, after, at = measure_removal_probabilities(
        explanation, probe, fractions, choose_fill(probe, fill, text="delete"), sizes, ties, seed
    )
    fall = before - after
    curve = fall.abs() if absolute else fall
    return Measurement(curve.mean(1), curve, at)


@metric(
    paper="Shrikumar et al., ICML 2017",
    better="lower",
    kind="faithfulness",
    presets={"released": {"sizes": "ninths", "fill": "pad_token", "ties": "first"}},
)
@check_metric_settings(sizes=allow_sizes)
def log_odds(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = TENTHS,
    fill: str | None = None,
    sizes: RemovalSizes = "fractions",
    ties: TieOrder = "random",
    seed: int = 0,
) -> Measurement:
    """The mean log ratio of the target's probability after and before the highest-scored tokens are masked.

    fill: by default the mask token for texts, 0 for patches; or any fill of the probe.
    sizes: "fractions", or "ninths" as in AttCAT's code.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Lower is better. Control: a random map. Undefined if the answer is not a probability, as in a regression.
    """
    before, after, at = measure_removal_probabilities(explanation, probe, fractions, fill, sizes, ties, seed)
    no_probability = ((before < 0) | (before > 1)).any(1) | ((after < 0) | (after > 1)).any(1)
    curve = after.clamp(min=SMALLEST_PROBABILITY).log() - before.clamp(min=SMALLEST_PROBABILITY).log()
    curve[no_probability] = float("nan")
    return Measurement(curve.mean(1), curve, at)


def measure_removal_probabilities(
    explanation: Explanation,
    probe: Probe,
    fractions: Sequence[float],
    fill: str | None,
    sizes: RemovalSizes,
    ties: TieOrder,
    seed: int,
) -> tuple[Tensor, Tensor, tuple[float, ...]]:
    """The target's probability before [batch 1] and after [batch step], NaN if undefined, and the fractions removed."""
    before = as_step_answers(probe.before, probe.batch).probability
    if sizes == "fractions":
        after = ask_without_units(explanation, probe, fractions, to_nearest_unit_count, fill=fill, seed=seed, ties=ties)
        return before, after.probability, tuple(fractions)
    units = find_removable_units(explanation, probe)
    ranks = rank_for_removal(units, probe, seed=seed, ties=ties)
    rank, counts, is_short = plan_attcat_steps(explanation, units.real, ranks, ties)
    after = ask_variants(probe, keep_all_but_first(rank, counts), units.shape, fill=fill, seed=seed)
    set_undefined(after, is_short)
    return before, after.probability, tuple(k / 9 for k in range(1, 10))


def plan_attcat_steps(
    explanation: Explanation, real: Tensor, rank: Tensor, ties: TieOrder
) -> tuple[Tensor, Tensor, Tensor]:
    """Ranks, sizes [batch 9] and which examples are too short, as in the released code."""
    rank = rank.clone()
    counts = torch.zeros(len(real), 9, dtype=torch.long)
    lengths = []
    for i, tokens in enumerate(explanation.tokens):
        there = ~torch.tensor(tokens.padding if isinstance(tokens, Pieces) else (False,) * len(tokens))
        lengths.append(int(there.sum()))
        counts[i] = torch.from_numpy(np.round(np.linspace(0, 1, 10) * lengths[-1]).astype(int)[1:])
        scores = explanation.scores[i].double().masked_fill(~there, float("inf"))
        lowest = (scores == scores.min()).nonzero()[:, 0]  # over all tokens, including special ones
        last = int(lowest[-1] if ties == "first" else lowest[0])
        if bool(real[i, last]):
            lowest = lowest[real[i, lowest]]
            rank[i, lowest[rank[i, lowest].argmax()]] = rank.shape[1]  # among ties, the last in our order
    return rank, counts, torch.tensor(lengths) < 10
