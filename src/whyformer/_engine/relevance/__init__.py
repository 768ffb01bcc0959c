"""Relevance (LRP): a rule for every operation, and the autograd node that applies it.

dispatch.py turns an operation of the forward pass into a call (calls.py), which has what its rule must know. The node
(node.py) keeps the call in the graph; when relevance comes back, it applies the rule that the recipe (recipes.py) has
for this kind of operation. The rules are functions of a call and what arrives: rules.py has those that send relevance
R, slopes.py those that send R / x.
"""

from whyformer._engine.relevance import calls, rules, slopes
from whyformer._engine.relevance.calls import (
    ActivationCall,
    AdditionCall,
    AttentionCall,
    ConvolutionCall,
    Gate,
    JoinCall,
    LinearCall,
    NormaliseCall,
    NormCall,
    OperationCall,
    PoolCall,
    ProductCall,
    Rule,
    ScaleCall,
    SelectCall,
    Shares,
    SoftmaxCall,
    act_on_rows,
    transpose_linear,
    undo_broadcast,
)
from whyformer._engine.relevance.dispatch import CallBuilder, needs_no_rule
from whyformer._engine.relevance.fused import Factors, attach_factors, find_factors
from whyformer._engine.relevance.node import RuleNode, Switch
from whyformer._engine.relevance.recipes import (
    RECIPES,
    STABILISERS,
    Recipe,
    Stabiliser,
    compute_attention_share,
    find_recipe,
    make_recipe,
)
from whyformer._engine.relevance.rounding import RoundingError
from whyformer._engine.relevance.rules import (
    pass_joined,
    pass_scaled,
    pass_selected,
    pass_unchanged,
    pass_unmasked,
    share_attention,
    share_doubled_products,
    share_epsilon_products,
    share_normalised_addition,
    share_pixel_box,
    share_plain_addition,
    share_pooled,
    share_positive_products,
    share_product_halves,
)
from whyformer._engine.relevance.slopes import (
    expand_softmax,
    favour_agreeing_products,
    halve_product,
    hold_attention,
    hold_constant,
    hold_gates,
    hold_norm_spread,
    hold_statistic,
    pass_addition_slope,
    pass_bias_slope,
    pass_gradient,
    pass_joined_slope,
    pass_linear_slope,
    pass_mask_slope,
    pass_secant,
    pass_tangent,
    share_rotation,
)
