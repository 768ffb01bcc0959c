r"""The shape of attention: how sharp it is, how similar between heads and blocks, how much goes to special tokens.

For every block, the mean over examples and over the queries that are real tokens of

$$ \frac{H(A_q)}{\log n_q}, \qquad \max_k A_{qk}, \qquad \sum_{k\,\text{special}} A_{qk}, \qquad
JSD(A^h_q, A^{h'}_q), \qquad KL(A^h_q, A^{h'}_q) $$

with $n_q$ the number of tokens a query may attend to: a normalised entropy of 1 is uniform. JSD and KL between heads
are means over all pairs of heads of a block; between blocks, JSD compares the means over heads. KL is computed after
adding $10^{-12}$ to both, since it is infinite where one of them is 0. Special tokens that receive much of the weight
are called sinks: Clark et al., What Does BERT Look At?, BlackboxNLP 2019. arXiv:1906.04341
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor

from whyformer._audit.checks.distance import entropy, jsd, kl
from whyformer._audit.reruns import AttentionReplay

KL_FLOOR = 1e-12


class ShapeRow(TypedDict):
    """The shape of attention in one example, by block."""

    heads: list[dict[str, list[float]]]  # entropy, largest weight and share on special tokens of each head
    heads_jsd: list[float | None]  # between heads; None with a single one
    heads_kl: list[float | None]
    blocks_jsd: list[list[float]]  # between each block and every other


def measure_shapes(replay: AttentionReplay) -> list[ShapeRow]:
    """For each example, per block and head: entropy, largest weight, share on special tokens; distances."""
    shapes = [ShapeRow(heads=[], heads_jsd=[], heads_kl=[], blocks_jsd=[]) for _ in range(replay.batch)]
    blocks = [block for block in range(replay.blocks) if replay.covers_all_tokens(block)]
    sizes = [replay.attention[block].size(2) for block in blocks]
    for i, shape in enumerate(shapes):
        real, special = replay.layout.mask[i], replay.layout.special[i] & replay.layout.mask[i]
        means = []
        for block, size in zip(blocks, sizes, strict=True):
            rows = real if size == len(real) else torch.ones_like(real[:1])
            weights = replay.attention[block][i].double()[:, rows]
            shape["heads"].append(measure_head_shapes(weights, replay.allowed[block][i][:, rows], special))
            shape["heads_jsd"].append(mean_head_distance(weights, jsd))
            shape["heads_kl"].append(mean_head_distance(weights + KL_FLOOR, kl))
            if size == sizes[-1]:
                means.append(weights.mean(0))
        shape["blocks_jsd"] = [[float(jsd(a, b).mean()) for b in means] for a in means]
    return shapes


def measure_head_shapes(attention: Tensor, allowed: Tensor, special: Tensor) -> dict[str, list[float]]:
    """Means over the queries of one example; attention [head query key], allowed likewise, special [key]."""
    choices = allowed.sum(-1).double()
    has_several = choices > 1
    normalised = torch.where(has_several, entropy(attention) / choices.clamp(min=2).log(), 0)
    count = has_several.sum(-1).clamp(min=1)
    return {
        "entropy": [float(value) for value in normalised.sum(-1) / count],
        "largest": [float(value) for value in attention.amax(-1).mean(-1)],
        "special": [float(value) for value in attention[..., special].sum(-1).mean(-1)],
    }


def mean_head_distance(attention: Tensor, distance: Callable[[Tensor, Tensor], Tensor]) -> float | None:
    """The mean over all pairs of heads; None with a single head."""
    heads = attention.size(0)
    if heads < 2:
        return None
    distances = distance(attention[:, None], attention[None])
    return float(distances.mean(-1).sum() / (heads * (heads - 1)))
