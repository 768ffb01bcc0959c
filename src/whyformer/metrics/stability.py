r"""Stability: does the explanation stay when nothing, or nothing that matters, has changed?

$$ \text{max-sensitivity} = \max_{\|\delta\|_\infty \le r} \frac{\|\Phi(x + \delta) - \Phi(x)\|}{\|\Phi(x)\|} $$

Yeh et al., On the (In)fidelity and Sensitivity of Explanations, NeurIPS 2019. arXiv:1901.09392. Robustness of maps
under noise: Alvarez-Melis & Jaakkola, On the Robustness of Interpretability Methods, 2018. arXiv:1806.08049

Noise for a picture is added to its pixels, in parts of the picture's own range (largest minus smallest value). Token
ids cannot be shaken a little, so for a text two neighbouring tokens change places and their scores are put back before
they are compared. The target stays that of the first run. None of this says that a map is right: one that never looks
at the input is perfectly stable.
"""

import torch
from torch import Tensor

from whyformer._plain.random_generator import make_generator
from whyformer.errors import MetricError
from whyformer.metrics._ordering import find_content_units
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._rerun import Rerun
from whyformer.metrics.similarity import mean_defined, select_compared_scores, spearman
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(paper="Alvarez-Melis & Jaakkola, 2018", better="higher", kind="stability")
def repeatability(explanation: Explanation, rerun: Rerun, *, runs: int = 2) -> Measurement:
    """How alike the explanation is when it is made again with other random numbers: rank correlation.

    Higher is better, 1 is the same. Control: random scores lie around 0, a method without random numbers gets
    exactly 1. Undefined where the map is the same everywhere.
    """
    if runs < 1:
        raise MetricError(f"runs={runs}: the explanation must be made again at least once.")
    seeds = [int(explanation.settings.get("seed") or 0) + run for run in range(1, runs + 1)]
    others = [rerun(seed=seed) if "seed" in explanation.settings else rerun() for seed in seeds]
    rows = [
        [spearman(select_compared_scores(explanation, i), select_compared_scores(one, i)) for one in others]
        for i in range(len(explanation))
    ]
    curve = torch.tensor(rows, dtype=torch.float64)
    return Measurement(mean_defined(curve), curve)


@metric(paper="Alvarez-Melis & Jaakkola, 2018", better="higher", kind="stability")
def consistency(
    explanation: Explanation, rerun: Rerun, *, noise: float = 0.02, samples: int = 4, seed: int = 0
) -> Measurement:
    """How alike the explanations of slightly changed inputs are: rank correlation with that of the input itself.

    noise: standard deviation, in parts of the picture's range; texts have two neighbouring tokens swapped.

    Higher is better. Control: random scores, drawn for each input, lie around 0. Undefined where the map is the
    same everywhere.
    """
    first, others = explain_noisy_variants(explanation, rerun, noise, samples, seed, normal=True)
    rows = [[spearman(a, b) for b in row] for a, row in zip(first, others, strict=True)]
    curve = torch.tensor(rows, dtype=torch.float64)
    return Measurement(mean_defined(curve), curve)


@metric(paper="Yeh et al., NeurIPS 2019", better="lower", kind="stability")
def max_sensitivity(
    explanation: Explanation, rerun: Rerun, *, radius: float = 0.02, samples: int = 8, seed: int = 0
) -> Measurement:
    """How far the map moves at most, in parts of its own length, when the input moves a little.

    radius: of the noise, in parts of the picture's range; texts have two neighbouring tokens swapped.

    Lower is better. Control: random scores, drawn for each input, get about 0.7 or more. Undefined where the map is
    all zero.
    """
    first, others = explain_noisy_variants(explanation, rerun, radius, samples, seed, normal=False)
    rows = [
        [float((b - a).norm() / a.norm()) if bool(a.any()) else NAN for b in row]
        for a, row in zip(first, others, strict=True)
    ]
    curve = torch.tensor(rows, dtype=torch.float64)
    return Measurement(curve.amax(1), curve)


def explain_noisy_variants(
    explanation: Explanation, rerun: Rerun, size: float, samples: int, seed: int, *, normal: bool
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The compared scores of every example, and those of its shaken variants."""
    if samples < 1 or size < 0:
        raise MetricError(f"samples={samples}, noise {size}: give one sample or more, and noise of 0 or more.")
    batch, given = len(explanation), rerun.inputs
    of = torch.arange(batch).repeat_interleave(samples)
    first = [select_compared_scores(explanation, i) for i in range(batch)]
    marks = rerun.encoded.fingerprints()
    if given.is_floating_point():
        along = rerun.encoded.batch_axis
        rows = [
            add_input_noise(one, size, samples, seed, mark, normal)
            for one, mark in zip(given.movedim(along, 0), marks, strict=True)
        ]
        found = rerun(torch.cat(rows).movedim(0, along), of=of)
        return first, [[select_compared_scores(found, i * samples + n) for n in range(samples)] for i in range(batch)]
    orders = [
        swap_neighbours(tokens, samples, seed, mark)
        for tokens, mark in zip(find_content_units(explanation), marks, strict=True)
    ]
    order = torch.cat(orders)  # [batch x sample, token]
    found = rerun(given[of].gather(1, order.to(given.device)), of=of)
    back = found.scores.double().gather(1, order.argsort(1))
    there = find_content_units(explanation)
    return first, [[back[i * samples + n][there[i]] for n in range(samples)] for i in range(batch)]


def add_input_noise(one: Tensor, size: float, samples: int, seed: int, mark: int, normal: bool) -> Tensor:
    """[sample ...]: an input with noise of this size, in parts of its range."""
    draw = torch.randn if normal else torch.rand
    noise = draw((samples, *one.shape), generator=make_generator(seed, mark), dtype=torch.float64)
    noise = noise if normal else 2 * noise - 1
    return one + (size * float(one.max() - one.min()) * noise).to(one)


def swap_neighbours(there: Tensor, samples: int, seed: int, mark: int) -> Tensor:
    """[sample token]: orders of the tokens in which two neighbours that count have changed places."""
    length = len(there)
    order = torch.arange(length).repeat(samples, 1)
    pairs = (there[:-1] & there[1:]).nonzero()[:, 0]
    if len(pairs):
        drawn = pairs[torch.randint(len(pairs), (samples,), generator=make_generator(seed, mark))]
        for row, at in enumerate(drawn.tolist()):
            order[row, [at, at + 1]] = order[row, [at + 1, at]]
    return order
