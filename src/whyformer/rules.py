"""Write your own relevance rules: the rules and recipes that ship, and what a new rule is made of.

A rule is a function `rule(call, arriving) -> Shares | None`: `call` describes the operation (one class for each kind),
`arriving` is the relevance of its result, and the shares are what each operand gets.

    from whyformer import rules

    def share_by_magnitude(call: rules.AdditionCall, arriving):
        u, v = (addend.abs() for addend in call.addends)
        s = call.divide(arriving, u + v)
        return call.fit(s * u, s * v)

    recipe = rules.RECIPES["chefer"].replace("by_magnitude", add=share_by_magnitude)
"""

from whyformer._engine.relevance.calls import *
from whyformer._engine.relevance.recipes import *
from whyformer._engine.relevance.rules import *
from whyformer._engine.relevance.slopes import *

__all__ = """
    RECIPES STABILISERS ActivationCall AdditionCall AttentionCall ConvolutionCall Gate JoinCall LinearCall
    NormCall NormaliseCall OperationCall PoolCall ProductCall Recipe Rule ScaleCall SelectCall Shares SoftmaxCall
    Stabiliser act_on_rows expand_softmax favour_agreeing_products halve_product hold_attention hold_constant
    hold_gates hold_norm_spread hold_statistic make_recipe pass_addition_slope pass_bias_slope pass_gradient
    pass_joined pass_joined_slope pass_linear_slope pass_mask_slope pass_scaled pass_secant pass_selected
    pass_tangent pass_unchanged pass_unmasked share_attention share_doubled_products share_epsilon_products
    share_normalised_addition share_pixel_box share_plain_addition share_pooled share_positive_products
    share_product_halves share_rotation transpose_linear undo_broadcast
""".split()


def __dir__() -> list[str]:
    return sorted(__all__)
