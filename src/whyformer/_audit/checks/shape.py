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
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.checks.distance import entropy, jsd, kl
from whyformer._audit.replay import AttentionReplay

KL_FLOOR = 1e-12


def measure_shapes(replay: AttentionReplay) -> list[dict[str, Any]]:
    """For each example, per block and head: entropy, largest weight, share on special tokens; distances."""
    shapes: list[dict[str, Any]] = [{"heads": [], "heads_jsd": [], "heads_kl": []} for _ in range(replay.batch)]
    means: list[Tensor] = []
    for block in range(replay.blocks):
        attention = replay.attention[block].double()
        if not replay.covers_all_tokens(block):
            continue
        rows = find_real_queries(replay, attention)
        for i, shape in enumerate(shapes):
            weights = attention[i][:, rows[i]]
            allowed = replay.allowed[block][i][:, rows[i]]
            shape["heads"].append(measure_heads(weights, allowed, find_special_keys(replay, i, weights)))
            shape["heads_jsd"].append(mean_head_distance(weights, jsd))
            shape["heads_kl"].append(mean_head_distance(weights + KL_FLOOR, kl))
        means.append(attention.mean(1))
    comparable = [mean for mean in means if mean.shape == means[-1].shape]
    for i, shape in enumerate(shapes):
        blocks = [mean[i][find_real_queries(replay, mean[:, None])[i]] for mean in comparable]
        shape["blocks_jsd"] = [[float(jsd(a, b).mean()) for b in blocks] for a in blocks]
    return shapes


def find_real_queries(replay: AttentionReplay, attention: Tensor) -> Tensor:
    """[example query]: True for real tokens, False for padding."""
    if attention.size(-2) == replay.layout.length:
        return replay.layout.mask
    return torch.ones(attention.size(0), attention.size(-2), dtype=torch.bool, device=attention.device)


def find_special_keys(replay: AttentionReplay, example: int, attention: Tensor) -> Tensor:
    if attention.size(-1) == replay.layout.length:
        return replay.layout.special[example] & replay.layout.mask[example]
    return torch.zeros(attention.size(-1), dtype=torch.bool, device=attention.device)


def measure_heads(attention: Tensor, allowed: Tensor, special: Tensor) -> dict[str, list[float]]:
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
