"""The tests of an audit: agreement, replacement, search, seeds, baseline, diagnostic model, shape; and their rows.

The door of this room: code outside of it imports from here.
"""

from whyformer._audit.checks.adversarial import PRESETS, Candidates, SearchSettings, choose_search, divide_examples
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
)  # fmt: skip
from whyformer._audit.checks.counter_tests import compare_seeds, predict_baseline
from whyformer._audit.checks.diagnostic import (
    GUIDES,
    DiagnosticSample,
    count_trainings,
    make_diagnostic_samples,
    run_diagnostic,
)  # fmt: skip
from whyformer._audit.checks.distance import LARGEST_JSD
from whyformer._audit.checks.found_attention import (
    MOST_EXAMPLES,
    MOST_TOKENS,
    FoundAttention,
    keep_found,
    read_found,
    restore_tokens,
)  # fmt: skip
from whyformer._audit.checks.head_swapper import SEARCH, HeadSwapper
from whyformer._audit.checks.importance import measure_agreement, measure_shared_importance
from whyformer._audit.checks.replacement import LARGEST_WEIGHT_BINS, REPLACEMENT_KINDS, replace_attention
from whyformer._audit.checks.row_schemas import AuditRow, check_saved_audit
from whyformer._audit.checks.shape import measure_shapes

__all__ = [
    "AGREEMENT_MEASURES", "DELETED", "GRADIENT", "GRADIENT_THROUGH", "GUIDES", "LARGEST_JSD", "LARGEST_WEIGHT_BINS",
    "MASKED", "MOST_EXAMPLES", "MOST_TOKENS", "PRESETS", "REMOVED", "REPLACEMENT_KINDS", "SEARCH",
    "SIGNIFICANCE_LEVEL", "TOP_K_DISTANCE", "AuditRow", "Candidates", "DiagnosticSample", "FoundAttention",
    "HeadSwapper", "SearchSettings", "as_finite_float", "check_saved_audit", "choose_search", "compare_seeds",
    "count_trainings", "divide_examples", "keep_found", "make_diagnostic_samples", "measure_agreement",
    "measure_shapes", "measure_shared_importance", "predict_baseline", "read_found", "replace_attention",
    "restore_tokens", "run_diagnostic",
]  # fmt: skip
