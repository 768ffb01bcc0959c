r"""PA-LRP: positional-aware LRP, in which relevance of a token's position counts as well as that of its content.

$$ s_j = \sum_c R(E_{jc}) + \sum_l \Big|\sum_c R(P_{l,jc})\Big|, \qquad
   R(P_{jc}) = P_{jc}\,\frac{R(z_{jc})}{z_{jc}} \;\text{at}\; z = E + P $$

with E the content of a token and $P_l$ its position, at each place $l$ where positions enter.
Bakish, Zimerman, Chefer & Wolf, Revisiting LRP: Positional Attribution as the Missing Ingredient for Transformer
Explainability, 2025. arXiv:2506.02138

The other rules are those of AttnLRP, and propagation starts from the logit itself. Where position embeddings are added
(learned or sinusoidal), they get their share of the sum. Rotary positions multiply queries and keys in every layer by a
cosine and a sine; the position gets half of such a product. Cosines and sines are two places per layer, each used by
queries and keys.

The default is the form of the authors' code for Llama, `preset="released"`: the relevance of a cosine or sine is the
sum over its uses, as for any tensor in LRP, and its magnitude is taken after that. `preset="separate"` takes the
magnitude of each use, so that opposite effects on queries and keys do not cancel. On Llama our scores agree with that
code to 1e-5, positions alone to 1e-4; what differs is a stabiliser of 1e-6 where it divides by attention times values,
with which they agree to 1e-6 (tests/golden/authors). Its demo then divides the scores by their largest magnitude.

Their code for images takes the norm over channels at the position embedding; we take the magnitude of the sum here
too, so that one formula holds, and scores belong to tokens, not pixels. What a model adds to every word besides
positions (token types) counts as position. Relative positions that are added to attention scores (BEiT, T5, ALiBi)
belong to pairs of tokens, not to one token, and are left out.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(paper="Bakish et al., 2025", class_specific=True, signed=True, recipe="pa_lrp")
@check_method_settings(part=allow_choice(("both", "token", "position")), preset=allow_choice(("released", "separate")))
def pa_lrp(
    token_relevance: Tensor,
    position_relevance: Sequence[Tensor],
    mask: Tensor,
    *,
    part: str = "both",
    preset: str = "released",
) -> Tensor:
    """The part of the explained logit that each token accounts for, including the effect of its position.

    preset: "released" (a rotary position counts by the magnitude of its sum over queries and keys) or "separate" (by
    the magnitude of each).
    part: "both", "token" (content alone) or "position".
    """
    scores = token_relevance if part != "position" else token_relevance.new_zeros(token_relevance.shape)
    for place in position_relevance if part != "token" else ():
        uses = place.sum(dim=0, keepdim=True) if preset == "released" else place
        scores = scores + uses.abs().sum(dim=0)
    return scores.masked_fill(~mask, 0)
