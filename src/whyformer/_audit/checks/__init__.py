"""The tests of an audit: agreement, replacement, search, seeds, baseline, diagnostic model, shape.

The door of this room: code outside of it imports from here.
"""

from whyformer._audit.checks.adversarial import (
    PRESETS,
    BlockWeights,
    Candidates,
    SearchSettings,
    choose_search,
    divide_examples,
)
from whyformer._audit.checks.agreement import (
    AGREEMENT_MEASURES,
    DELETED,
    GRADIENT,
    GRADIENT_THROUGH,
    MASKED,
    REMOVED,
    SIGNIFICANCE_LEVEL,
    TOP_K_DISTANCE,
    as_finite_float,
    correlate_attention,
)
from whyformer._audit.checks.counter_tests import compare_seeds, predict_baseline
from whyformer._audit.checks.diagnostic import GUIDES, DiagnosticSample, count_trainings, run_diagnostic
from whyformer._audit.checks.distance import LARGEST_JSD
from whyformer._audit.checks.found_attention import (
    FOUND_SCHEMA,
    MOST_CLASSES,
    MOST_EXAMPLES,
    MOST_TOKENS,
    FoundAttention,
    check_saved_found,
    describe_tokens,
    keep_found,
    read_found,
    read_tokens,
    round_values,
)
from whyformer._audit.checks.importance import (
    find_attended_units,
    measure_own_importance,
    measure_shared_importance,
    probe_replay,
    take_units,
)
from whyformer._audit.checks.replacement import (
    LARGEST_WEIGHT_BINS,
    REPLACEMENT_KINDS,
    ReplacementNoise,
    make_uniform,
    pair_attention,
    permute_weights,
    replace_attention,
)
from whyformer._audit.checks.samples import make_diagnostic_samples
from whyformer._audit.checks.shape import measure_shapes

__all__ = [
    "AGREEMENT_MEASURES",
    "DELETED",
    "FOUND_SCHEMA",
    "GRADIENT",
    "GRADIENT_THROUGH",
    "GUIDES",
    "LARGEST_JSD",
    "LARGEST_WEIGHT_BINS",
    "MASKED",
    "MOST_CLASSES",
    "MOST_EXAMPLES",
    "MOST_TOKENS",
    "PRESETS",
    "REMOVED",
    "REPLACEMENT_KINDS",
    "SIGNIFICANCE_LEVEL",
    "TOP_K_DISTANCE",
    "BlockWeights",
    "Candidates",
    "DiagnosticSample",
    "FoundAttention",
    "ReplacementNoise",
    "SearchSettings",
    "as_finite_float",
    "check_saved_found",
    "choose_search",
    "compare_seeds",
    "correlate_attention",
    "count_trainings",
    "describe_tokens",
    "divide_examples",
    "find_attended_units",
    "keep_found",
    "make_diagnostic_samples",
    "make_uniform",
    "measure_own_importance",
    "measure_shapes",
    "measure_shared_importance",
    "pair_attention",
    "permute_weights",
    "predict_baseline",
    "probe_replay",
    "read_found",
    "read_tokens",
    "replace_attention",
    "round_values",
    "run_diagnostic",
    "take_units",
]
