r"""PA-LRP: positional-aware relevance, in which a token's position counts beside its content.

$$ s_j = \sum_c R(E_{jc}) + \sum_l \Big|\sum_c R(P_{l,jc})\Big|, \qquad
   R(P_{jc}) = P_{jc}\,\frac{R(z_{jc})}{z_{jc}} \;\text{at}\; z = E + P $$

with E the content of a token and $P_l$ its position, wherever positions come in.
Bakish, Zimerman, Chefer & Wolf, Revisiting LRP: Positional Attribution as the Missing Ingredient for Transformer
Explainability, 2025. arXiv:2506.02138

The other rules are those of AttnLRP, and the logit itself is sent back. Where positions are added (learned or
sinusoidal), they take their share of the sum. Rotary positions multiply queries and keys in every layer by a cosine and
a sine; of such a product the position takes half, so that each layer has four such places (cosine and sine, of queries
and of keys). Each place counts by its magnitude, as the authors' code for Llama does; it adds up cosines of queries and
keys before that, which we keep apart. Their code for pictures takes the norm over channels at the position embedding;
we take the magnitude of the sum here too, so that one formula holds, and scores belong to tokens, not pixels. What a
model adds to every word beside positions (token types) counts as position. Relative positions that are added to
attention scores (BEiT, T5, ALiBi) belong to pairs of tokens and to no token, and are left out.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._registry import method
from whyformer.methods._settings import check_choice


@method(paper="Bakish et al., 2025", class_specific=True, signed=True, recipe="pa_lrp")
def pa_lrp(
    token_relevance: Tensor, position_relevance: Sequence[Tensor], mask: Tensor, *, part: str = "both"
) -> Tensor:
    """Which part of the explained logit each token accounts for, with what its position does to it.

    part: "both", "token" (content alone) or "position".
    """
    check_choice("part", part, ("both", "token", "position"))
    scores = token_relevance if part != "position" else token_relevance.new_zeros(token_relevance.shape)
    for place in position_relevance if part != "token" else ():
        scores = scores + place.abs()
    return scores.masked_fill(~mask, 0)
