r"""How faithful are the scores of the sources? The linear datamodelling score, and what the top sources take with them.

Over random ablations that keep each source with probability 1/2, the rank correlation of the summed scores of the kept
sources with the log-odds of the answer (metrics/datamodelling.py). Beside it, the same for random scores: the middle
95 % of 1,000 draws from a normal distribution, on the same ablations. The drop of the log-odds without the k highest
sources (Cohen-Wang et al., NeurIPS 2024, arXiv:2409.00729) is beside the mean drop without k random ones, with the
bootstrap interval of that mean.
"""

import numpy as np
import torch
from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer._plain.random_generator import make_generator
from whyformer._plain.statistics import bootstrap
from whyformer.methods.context_cite import draw_ablations
from whyformer.metrics.datamodelling import correlate_defined_ranks, correlate_many_ranks
from whyformer.results.citations import Faithfulness, TopDrop

RANDOM_SCORES = 1_000
RANDOM_SETS = 8
TOP_SIZES = (1, 3)


def measure_faithfulness(
    ablations: Ablations, scores: Tensor, samples: int, seed: int, fingerprint: int
) -> Faithfulness:
    """LDS and drops of scores [source], each beside chance."""
    keep, sets = draw_questions(len(scores), samples, seed, fingerprint)
    ablations.ask(torch.cat([keep, *map(ablations.leave_out, sets.values())]))  # all in one call
    actual = ablations.ask(keep)
    drawn = make_generator(seed + 2, fingerprint)
    random = torch.randn(RANDOM_SCORES, len(scores), generator=drawn, dtype=torch.float64)
    by_chance = correlate_many_ranks(random @ keep.double().T, actual)
    low, high = np.nanquantile(by_chance, [0.025, 0.975]) if not np.isnan(by_chance).all() else (np.nan, np.nan)
    return Faithfulness(
        lds=correlate_defined_ranks(keep.double() @ scores.double(), actual),
        chance=(float(low), float(high)),
        samples=samples,
        seed=seed,
        drops=tuple(measure_top_drop(ablations, scores, size, some, seed) for size, some in sets.items()),
    )


def draw_questions(
    sources: int, samples: int, seed: int, fingerprint: int
) -> tuple[Tensor, dict[int, list[list[int]]]]:
    """The random ablations [sample source], and the random sets of sources for each size."""
    keep = draw_ablations(sources, samples, make_generator(seed, fingerprint))
    generator = make_generator(seed + 1, fingerprint)
    sets = {
        size: [torch.randperm(sources, generator=generator)[:size].tolist() for _ in range(RANDOM_SETS)]
        for size in TOP_SIZES
        if size < sources
    }
    return keep, sets


def measure_top_drop(ablations: Ablations, scores: Tensor, size: int, random: list[list[int]], seed: int) -> TopDrop:
    drop = float(ablations.ask_without([choose_top(scores, size)])[0])
    mean, low, high = bootstrap(ablations.ask_without(random), seed)
    return TopDrop(size, drop, mean, (low, high), len(random))


def choose_top(scores: Tensor, count: int) -> tuple[int, ...]:
    """The sources with the highest scores; of equals, the one that comes first."""
    return tuple(scores.argsort(descending=True, stable=True)[:count].tolist())
