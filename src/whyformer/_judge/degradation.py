r"""Degraded explanations: the ranks of a map mixed with noise, so that more noise is a worse map by construction.

$$ s_\lambda = (1 - \lambda)\,\frac{\text{rank}(s)}{n - 1} + \lambda\,u, \qquad u \sim \mathcal{U}[0, 1)^n $$

with ranks from 0 to n - 1 (equal scores share their mean rank) and one draw of $u$ per example, the same at all levels.
At $\lambda = 0$ the map keeps its order, at $\lambda = 1$ nothing of it is left. A metric that cannot tell more noise
from less cannot tell a good explanation from a bad one. Degrading an explainer to judge a metric: Zheng et al.,
F-Fidelity: A Robust Framework for Faithfulness Evaluation of Explainable AI, ICLR 2025, arXiv:2410.02970; there single
entries are replaced by noise, here all are mixed with it, so that there are levels in between.
"""

from dataclasses import replace
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from whyformer._engine import make_recipe
from whyformer._explain.method_call import MethodCall, MethodLike, choose_method, label_methods
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods._registry import Method, Scores

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


def degrade_method(wanted: MethodLike, level: float, seed: int = 0) -> Method:
    """The method with this share of noise in its maps. Settings of the method are kept, its details are not."""
    call = choose_method(wanted, {})
    check_degradable(call)
    (label,) = label_methods([wanted])
    needs = tuple(dict.fromkeys((*call.needs, "mask", "fingerprint")))

    def compute(*captured: Any) -> Tensor:
        given = dict(zip(needs, captured, strict=True))
        computed = call.method.compute(*(given[need] for need in call.needs), **call.settings)
        values = computed.values if isinstance(computed, Scores) else computed
        return mix_with_noise(values, given["mask"], given["fingerprint"], level, seed)

    compute.__doc__ = f"{label}, with {level:.0%} noise."
    return replace(
        call.method,
        name=name_level(label, level),
        compute=compute,
        needs=needs,
        settings={},
        extra_needs={},
        note=None,
        signed=False,
        recipe=None if call.recipe is None else call.recipe.name,
    )


def name_level(label: str, level: float) -> str:
    return f"{label}, {level:.0%} noise".replace("%", " %")


def check_degradable(call: MethodCall) -> None:
    """Refuse what a wrapped method could not take along: parameters of its recipe, a selection, another precision."""
    changed = call.recipe is not None and call.recipe.parameters != make_recipe(call.recipe.name).parameters
    if changed or call.selected or call.precision is not None or call.wants_health:
        raise MethodError(
            f"{call.method.name} cannot be degraded with layers, heads, precision, health or parameters of its recipe. "
            "Name it without them.",
            code="E_OPTION",
        )


def mix_with_noise(values: Tensor, mask: Tensor, fingerprint: Any, level: float, seed: int) -> Tensor:
    """[batch unit] or [batch height width]: ranks from 0 to 1 mixed with noise; 0 for padding."""
    mixed = torch.zeros(values.shape, dtype=torch.float64)
    for example, mark in enumerate(fingerprint):
        scores = values[example].detach().cpu().double()
        real = mask[example].cpu() if scores.shape == mask[example].shape else torch.ones_like(scores, dtype=torch.bool)
        count = int(real.sum())
        ranks = torch.from_numpy(rankdata(scores[real].numpy()) - 1) / max(count - 1, 1)
        noise = torch.rand(count, dtype=torch.float64, generator=make_generator(seed, int(mark)))
        mixed[example, real] = (1 - level) * ranks + level * noise
    return mixed.to(values.device)
