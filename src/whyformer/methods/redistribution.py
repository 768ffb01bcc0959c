r"""Redistribution of token-wise relevance by attention and by the values it mixes.

$$ R^{(l-1)}_j = \sum_i P_{ij} R^{(l)}_i, \qquad P_{ij} = \frac{a_j W_{ij}}{\sum_k a_k W_{ik}}, \qquad
   \begin{array}{l|ll}
   & a_j & W_{ij} \\ \hline
   \text{i} & 1 & A_{ij} + \delta_{ij} \\
   \text{ii} & \lVert v_j - \bar v \rVert & A_{ij} + \delta_{ij} \\
   \text{iii} & 1 & \lVert v_j - v_i \rVert A_{ij} + \delta_{ij} \\
   \text{iv} & \lVert v_j - \bar v \rVert & \lVert v_j - v_i \rVert A_{ij} + \delta_{ij}
   \end{array} $$

from $R^{(L)}$ = the readout, separately for every head; $v_j$ is the head's value of token $j$ and $\bar v$ their mean
over all tokens. Each row of $P$ sums to 1, so relevance is conserved in every step.
Sawaki & Murata, Redistribution of Token-wise Relevance in Transformer Models, 4I1-GS-11-03, JSAI 2025.
Layer-wise relevance propagation, which it applies to tokens: Bach et al., 2015, doi:10.1371/journal.pone.0130140

The text of the paper is not public and there is no code; this is our reading of its abstract and of a summary.
* $a$ belongs to the token that is attended to. As a property of the attending token it would cancel, and ii would be i.
* Heads: the paper shows one map per head. "per_head" follows head $h$ through all layers, although heads of different
  layers are unrelated, and the score is the mean over heads. "mean_each_layer" uses the mean of $P$ over heads in every
  layer; under rule i that is attention rollout. "top_head" gives one map for each head of the last layer, with means
  below it. $P$ acts linearly, so the mean of those maps equals "mean_each_layer": the two differ only in
  `details["per_head"]`.
* $\delta$ is taken literally, with weight 1. In iii and iv it is added to a distance, so these two rules depend on the
  scale of a model's values: small values give $P \to I$. `distance_scale="mean"` divides distances by their mean over
  pairs of different tokens, a number divides them by that number; None is the paper.
* Rule ii is our default: it uses the values, it does not depend on their scale (the size of $a$ cancels), and the
  authors themselves question $\lVert v_j - v_i \rVert$, since values of similar patches converge towards the output.
* Where all tokens that a row attends to have $a = 0$ (all values equal: 0 / 0), that row uses $a = 1$.

Relevance that remains at the readout token belongs to no patch or word; it is in `details["retained"]`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice, allow_either, allow_number
from whyformer.errors import MethodError
from whyformer.methods._readout_row import find_readout_token, mask_padding
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_method_settings

RULES = ("i", "ii", "iii", "iv")
HEAD_MODES = ("per_head", "mean_each_layer", "top_head")
allow_distance_scale = allow_either(("mean",), allow_number("", 1e-6, 1e6), "None, 'mean' or a number from 1e-6 to 1e6")


@method(paper="Sawaki & Murata, JSAI 2025", class_specific=False, signed=False)
@check_method_settings(
    rule=allow_choice(RULES), head_mode=allow_choice(HEAD_MODES), distance_scale=allow_distance_scale
)
def redistribution(
    attention: Sequence[Tensor],
    value: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    special: Tensor,
    *,
    rule: str = "ii",
    head_mode: str = "per_head",
    distance_scale: str | float | None = None,
) -> Scores:
    """The share of relevance (1 in total) that reaches each token when layers pass it on by attention and values.

    rule: "i" (attention alone), "ii" (tokens count by their distance from the mean value), "iii" (attention counts by
    the distance between the two values) or "iv" (both).
    head_mode: "per_head", "mean_each_layer" or "top_head", how heads are combined across layers.
    distance_scale: for iii and iv, what distances are divided by: None, "mean" or a number.
    """
    if distance_scale is not None and rule in ("i", "ii"):
        raise MethodError(
            f"distance_scale={distance_scale!r} needs rule='iii' or 'iv'; rule={rule!r} has no distances.",
            code="E_OPTION",
        )
    maps: Tensor | None = None  # batch head token, or batch 1 token if heads are mixed
    for layer in reversed(range(len(attention))):
        paths = compute_token_shares(attention[layer], value[layer], mask, rule, distance_scale)
        if head_mode == "mean_each_layer" or (head_mode == "top_head" and maps is not None):
            paths = paths.mean(dim=1, keepdim=True)
        if maps is None:
            maps = readout.to(paths.dtype)[:, None].expand(-1, paths.size(1), -1)
        elif paths.size(1) not in (1, maps.size(1)):
            raise MethodError(
                f"Layer {layer} has {paths.size(1)} heads, the layers above have {maps.size(1)}, so heads cannot be "
                'followed through all layers. Use head_mode="mean_each_layer" or "top_head".'
            )
        maps = torch.einsum("bhq,bhqk->bhk", maps, paths)
    assert maps is not None
    maps = maps.masked_fill(~mask[:, None], 0)
    scores = mask_padding(maps.mean(dim=1), readout, mask)
    retained = scores.masked_fill(~(find_readout_token(readout) | (special & (readout > 0))), 0).sum(-1)
    return Scores(scores, {"retained": retained} | ({} if head_mode == "mean_each_layer" else {"per_head": maps}))


def compute_token_shares(
    attention: Tensor, value: Tensor, mask: Tensor, rule: str, scale: str | float | None = None
) -> Tensor:
    """P, [batch head query key]: the share of its relevance that each token passes on to each other token."""
    weight = attention
    if rule in ("iii", "iv"):
        distance = torch.cdist(value, value, compute_mode="donot_use_mm_for_euclid_dist")
        weight = attention * (distance / find_distance_unit(distance, mask, scale))
    weight = weight + torch.eye(weight.size(-1), dtype=weight.dtype, device=weight.device)
    weight = weight.masked_fill(~mask[:, None, None], 0)
    weighed = weight * value_deviation(value, mask)[:, :, None] if rule in ("ii", "iv") else weight
    total = weighed.sum(-1, keepdim=True)
    weighed = torch.where(total > 0, weighed, weight)
    total = weighed.sum(-1, keepdim=True)
    return weighed / total.masked_fill(total == 0, 1)  # 0 for padding, which has no relevance to pass on


def value_deviation(value: Tensor, mask: Tensor) -> Tensor:
    """The distance of each token's value from the mean of all: [batch head key]; exactly 0 if only rounding error."""
    real = mask[:, None, :, None]
    kept = value.masked_fill(~real, 0)
    mean = kept.sum(-2, keepdim=True) / real.sum(-2, keepdim=True)
    distance = (kept - mean).masked_fill(~real, 0).norm(dim=-1)
    rounding = 8 * torch.finfo(value.dtype).eps * kept.norm(dim=-1).amax(-1, keepdim=True)
    return distance.masked_fill(distance <= rounding, 0)


def find_distance_unit(distance: Tensor, mask: Tensor, scale: str | float | None) -> Tensor | float:
    """What distances are divided by: 1, a number, or their mean over pairs of different tokens."""
    if scale != "mean":
        return 1.0 if scale is None else float(scale)
    pairs = (mask[:, :, None] & mask[:, None, :])[:, None]
    count = mask.sum(-1)[:, None, None, None]
    mean = distance.masked_fill(~pairs, 0).sum((-1, -2), keepdim=True) / (count * (count - 1)).clamp(min=1)
    return mean.masked_fill(mean == 0, 1)
