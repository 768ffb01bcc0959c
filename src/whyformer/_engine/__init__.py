"""The engine: runs a shadow of the model under interception and captures what methods need."""

from whyformer._engine.capture import (
    SITES,
    Capture,
    LazyLayers,
    LinearNorm,
    RoundingEstimate,
    is_on_missing_attention,
    is_on_mixed_states,
    iterate_rows,
)
from whyformer._engine.layout import Layout, Order, find_blocks, find_order, lay_out, pick_places, to_canonical_axes
from whyformer._engine.lean import lean
from whyformer._engine.probe import (
    FILLS,
    IMAGE_FILLS,
    Probe,
    as_pixels,
    batching,
    pick_examples,
    read_hidden_states,
    send_to_device,
)
from whyformer._engine.program import (
    Finish,
    Inseparable,
    Remainder,
    Unrecordable,
    choose_rows,
    record_remainder,
    replay,
)
from whyformer._engine.record import record
from whyformer._engine.record_each import record_each
from whyformer._engine.relevance import RECIPES, Recipe, find_recipe, make_recipe
from whyformer._engine.run import (
    Intervention,
    ModelMemo,
    Returned,
    Run,
    SiteChange,
    choose_relevance_dtype,
    compare_towers,
    find_output,
    make_shadow,
    map_tensors,
    refuse_changed_weights,
    refuse_single_side,
    run_forward,
    run_plain,
    run_plain_returned,
)
from whyformer._engine.targets import (
    PLAIN_TASKS,
    SCORE_NAMES,
    Answer,
    Answers,
    AnswerText,
    ExplainedAnswer,
    FunctionReading,
    Scale,
    Target,
    TargetKind,
    TargetLike,
    TargetNames,
    Task,
    TermSum,
    choose_target,
    compute_readout,
    expand_per_example,
    find_task,
    is_causal,
    probabilities_of,
    read_logits,
    refuse_encoder_decoders,
    shorten,
    widen,
)
from whyformer._engine.tracing import MASK_THRESHOLD, attach_trace, attention_tiles, axis_of, trace_of
