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
)
from whyformer._audit.checks.attention_choice import AttentionChoice, AttentionLike, choose_attention
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.counter_tests import compare_checkpoints, predict_baseline
from whyformer._audit.checks.diagnostic import (
    GUIDES,
    DiagnosticSample,
    count_trainings,
    make_diagnostic_samples,
    run_diagnostic,
)
from whyformer._audit.checks.distance import LARGEST_JSD
from whyformer._audit.checks.found_attention import MOST_EXAMPLES, MOST_TOKENS, keep_found, rebuild_tokens
from whyformer._audit.checks.importance import measure_agreement, measure_shared_importance
from whyformer._audit.checks.replacement import LARGEST_WEIGHT_BINS, REPLACEMENT_KINDS, replace_attention
from whyformer._audit.checks.row_schemas import AuditRow, check_saved_audit
from whyformer._audit.checks.shape import measure_shapes
from whyformer._audit.checks.span_model import as_audited, find_span_class, marks_spans, split_span
from whyformer._audit.checks.trained_adversary import measure_adversary, train_adversary
