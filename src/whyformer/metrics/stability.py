r"""Stability: does the explanation stay the same when nothing, or nothing important, changes?

$$ \text{max-sensitivity} = \max_{\|\delta\|_\infty \le r} \frac{\|\Phi(x + \delta) - \Phi(x)\|}{\|\Phi(x)\|} $$

Yeh et al., On the (In)fidelity and Sensitivity of Explanations, NeurIPS 2019. arXiv:1901.09392. Robustness of maps
under noise: Alvarez-Melis & Jaakkola, On the Robustness of Interpretability Methods, 2018. arXiv:1806.08049

Noise is added to the pixels of an image, relative to the image's own range (largest minus smallest value). Token ids
cannot be changed slightly, so for a text two neighbouring tokens are swapped, and their scores are swapped back before
the comparison. The target stays that of the first run. Stability does not mean that a map is right: a map that ignores
the input is perfectly stable.
"""

import torch
from torch import Tensor

from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_whole_number
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._rerun import Rerun
from whyformer.metrics._settings import allow_noise, check_metric_settings
from whyformer.metrics._similarity import find_content_units, select_compared_scores, spearman
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(paper="Alvarez-Melis & Jaakkola, 2018", better="higher", kind="stability")
@check_metric_settings(runs=allow_whole_number(1, 1000))
def repeatability(explanation: Explanation, rerun: Rerun, *, runs: int = 2) -> Measurement:
    """How similar the explanation is when it is computed again with other random numbers: rank correlation.

    runs: how often it is computed again.

    Higher is better, 1 means identical. Control: random scores get about 0, a method without random numbers exactly 1.
    Undefined if the map is constant.
    """
    seeds = [int(str(explanation.settings.get("seed") or 0)) + run for run in range(1, runs + 1)]
    others = [rerun(seed=seed) if "seed" in explanation.settings else rerun() for seed in seeds]
    return measure_similarity(
        [select_compared_scores(explanation, i) for i in range(len(explanation))],
        [[select_compared_scores(other, i) for other in others] for i in range(len(explanation))],
    )


@metric(paper="Alvarez-Melis & Jaakkola, 2018", better="higher", kind="stability")
@check_metric_settings(noise=allow_noise, samples=allow_whole_number(1))
def consistency(
    explanation: Explanation, rerun: Rerun, *, noise: float = 0.02, samples: int = 4, seed: int = 0
) -> Measurement:
    """How similar the explanations of slightly changed inputs are to that of the input itself: rank correlation.

    noise: standard deviation, relative to the range of the image; in texts two neighbouring tokens are swapped.
    samples: changed inputs per example.

    Higher is better. Control: random scores, drawn for each input, get about 0. Undefined if the map is constant.
    """
    return measure_similarity(*explain_noisy_variants(explanation, rerun, noise, samples, seed, normal=True))


@metric(paper="Yeh et al., NeurIPS 2019", better="lower", kind="stability")
@check_metric_settings(radius=allow_noise, samples=allow_whole_number(1))
def max_sensitivity(
    explanation: Explanation, rerun: Rerun, *, radius: float = 0.02, samples: int = 8, seed: int = 0
) -> Measurement:
    """The largest change of the map, relative to its own norm, when the input changes slightly.

    radius: of the noise, relative to the range of the image; in texts two neighbouring tokens are swapped.
    samples: changed inputs per example.

    Lower is better. Control: random scores, drawn for each input, get about 0.7 or more. Undefined if the map is all
    zero.
    """
    first, others = explain_noisy_variants(explanation, rerun, radius, samples, seed, normal=False)
    rows = [
        [float((b - a).norm() / a.norm()) if bool(a.any()) else NAN for b in row]
        for a, row in zip(first, others, strict=True)
    ]
    curve = torch.tensor(rows, dtype=torch.float64)
    return Measurement(curve.amax(1), curve)


def measure_similarity(first: list[Tensor], others: list[list[Tensor]]) -> Measurement:
    """The mean rank correlation of each map with its other versions; curve: that with each of them."""
    rows = [[spearman(a, b) for b in row] for a, row in zip(first, others, strict=True)]
    curve = torch.tensor(rows, dtype=torch.float64)
    return Measurement(curve.nanmean(1), curve)


def explain_noisy_variants(
    explanation: Explanation, rerun: Rerun, size: float, samples: int, seed: int, *, normal: bool
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The compared scores of every example, and those of its noisy variants."""
    batch, given = len(explanation), rerun.inputs
    of = torch.arange(batch).repeat_interleave(samples)
    first = [select_compared_scores(explanation, i) for i in range(batch)]
    fingerprints = rerun.encoded.fingerprints()
    if given.is_floating_point():
        along = rerun.encoded.batch_axis
        rows = [
            add_input_noise(values, size, samples, seed, fingerprint, normal)
            for values, fingerprint in zip(given.movedim(along, 0), fingerprints, strict=True)
        ]
        found = rerun(torch.cat(rows).movedim(0, along), of=of)
        return first, [[select_compared_scores(found, i * samples + n) for n in range(samples)] for i in range(batch)]
    orders = [
        swap_neighbours(tokens, samples, seed, fingerprint)
        for tokens, fingerprint in zip(find_content_units(explanation), fingerprints, strict=True)
    ]
    order = torch.cat(orders)  # [batch x sample, token]
    found = rerun(given[of].gather(1, order.to(given.device)), of=of)
    back = found.scores.double().gather(1, order.argsort(1))
    there = find_content_units(explanation)
    return first, [[back[i * samples + n][there[i]] for n in range(samples)] for i in range(batch)]


def add_input_noise(values: Tensor, size: float, samples: int, seed: int, fingerprint: int, normal: bool) -> Tensor:
    """[sample ...]: an input with noise of this size, relative to its range."""
    draw = torch.randn if normal else torch.rand
    noise = draw((samples, *values.shape), generator=make_generator(seed, fingerprint), dtype=torch.float64)
    noise = noise if normal else 2 * noise - 1
    return values + (size * float(values.max() - values.min()) * noise).to(values)


def swap_neighbours(is_content: Tensor, samples: int, seed: int, fingerprint: int) -> Tensor:
    """[sample token]: token orders in which two neighbouring content tokens are swapped."""
    length = len(is_content)
    order = torch.arange(length).repeat(samples, 1)
    pairs = (is_content[:-1] & is_content[1:]).nonzero()[:, 0]
    if len(pairs):
        drawn = pairs[torch.randint(len(pairs), (samples,), generator=make_generator(seed, fingerprint))]
        for row, at in enumerate(drawn.tolist()):
            order[row, [at, at + 1]] = order[row, [at + 1, at]]
    return order
