r"""What the attention looks like: how sharp, how alike between heads and layers, how much of it on special tokens.

For every block, the mean over examples and over the queries that are real tokens of

$$ \frac{H(A_q)}{\log n_q}, \qquad \max_k A_{qk}, \qquad \sum_{k\,\text{special}} A_{qk}, \qquad
JSD(A^h_q, A^{h'}_q), \qquad KL(A^h_q, A^{h'}_q) $$

with $n_q$ the number of tokens a query may attend to: a normalised entropy of 1 is uniform. JSD and KL of two heads are
means over all pairs of heads of a block; of two blocks, of the means over their heads. KL is taken after $10^{-12}$ has
been added to both, since it is infinite where one has no weight at all. Special tokens that hold much of the weight are
called sinks: Clark et al., What Does BERT Look At?, BlackboxNLP 2019. arXiv:1906.04341
"""

from typing import Any

import torch
from torch import Tensor

from whyformer._audit.distance import entropy, jsd, kl
from whyformer._audit.replay import AttentionReplay

KL_FLOOR = 1e-12


def measure_shapes(replay: AttentionReplay) -> list[dict[str, Any]]:
    """For each example, per block and head: entropy, largest weight, share on special tokens; their distances."""
    found: list[dict[str, Any]] = [{"heads": [], "heads_jsd": [], "heads_kl": []} for _ in range(replay.batch)]
    means: list[Tensor] = []
    for block in range(replay.blocks):
        attention = replay.attention[block].double()
        if not replay.is_plain(block):  # windows
            continue
        rows = find_real_queries(replay, attention)
        for i, example in enumerate(found):
            one = attention[i][:, rows[i]]
            seen = replay.allowed[block][i][:, rows[i]]
            example["heads"].append(measure_heads(one, seen, find_special_keys(replay, i, one)))
            example["heads_jsd"].append(mean_head_distance(one, jsd))
            example["heads_kl"].append(mean_head_distance(one + KL_FLOOR, kl))
        means.append(attention.mean(1))
    for i, example in enumerate(found):
        fits = [mean for mean in means if mean.shape == means[-1].shape]
        stacked = torch.stack([mean[i][find_real_queries(replay, mean[:, None])[i]] for mean in fits]) if fits else None
        example["blocks_jsd"] = (
            [[float(jsd(a, b).mean()) for b in stacked] for a in stacked] if stacked is not None else []
        )
    return found


def find_real_queries(replay: AttentionReplay, attention: Tensor) -> Tensor:
    """[example query]: real tokens."""
    if attention.size(-2) == replay.layout.length:
        return replay.layout.mask
    return torch.ones(attention.size(0), attention.size(-2), dtype=torch.bool, device=attention.device)


def find_special_keys(replay: AttentionReplay, example: int, attention: Tensor) -> Tensor:
    if attention.size(-1) == replay.layout.length:
        return replay.layout.special[example] & replay.layout.mask[example]
    return torch.zeros(attention.size(-1), dtype=torch.bool, device=attention.device)


def measure_heads(attention: Tensor, seen: Tensor, special: Tensor) -> dict[str, list[float]]:
    """attention [head query key] of one example; means over its queries."""
    choices = seen.sum(-1).double()
    several = choices > 1
    sharp = torch.where(several, entropy(attention) / choices.clamp(min=2).log(), 0)
    count = several.sum(-1).clamp(min=1)
    return {
        "entropy": [float(value) for value in sharp.sum(-1) / count],
        "largest": [float(value) for value in attention.amax(-1).mean(-1)],
        "special": [float(value) for value in attention[..., special].sum(-1).mean(-1)],
    }


def mean_head_distance(attention: Tensor, distance: Any) -> float | None:
    """The mean over all pairs of heads; None where there is one head."""
    heads = attention.size(0)
    if heads < 2:
        return None
    apart = distance(attention[:, None], attention[None])
    return float(apart.mean(-1).sum() / (heads * (heads - 1)))
