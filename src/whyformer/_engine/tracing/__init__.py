"""Tracing: which operation computed each tensor of a run, and which example and token its entries belong to."""

from whyformer._engine.tracing import operations, provenance, tiles
from whyformer._engine.tracing.attention import (
    AttentionSite,
    compute_attention_weights,
    find_layer_sites,
    find_site,
    read_fused_site,
    reorder_attention_product,
)
from whyformer._engine.tracing.composites import (
    COMPOSITE_OPERATIONS,
    chooses_weights,
    detach_constants,
    multi_head_attention,
    spell_out_einsum,
    starts_constant,
)
from whyformer._engine.tracing.follow import (
    Follower,
    contract_label,
    extends_embedding_sum,
    follow_einsum,
    follow_product,
    get_root,
    is_straight,
)
from whyformer._engine.tracing.frames import Frames
from whyformer._engine.tracing.fused_attention import (
    FLEX_ATTENTION,
    NAMES,
    NO_MASK,
    ScoreMask,
    is_asked_by_flex_attention,
    is_prepared,
    prepare_fused_call,
    read_fused_arguments,
    replace_arguments,
    take_rows,
    write_out_flex_attention,
)
from whyformer._engine.tracing.in_place import InPlaceWrites, compute_written, locate, spread_written
from whyformer._engine.tracing.masks import (
    MASK_THRESHOLD,
    follow_masks,
    keep_before_masking,
    keep_scores,
    lift_mask,
    read_scores,
)
from whyformer._engine.tracing.operations import (
    FUSED_ATTENTION,
    Argument,
    Arguments,
    Operation,
    Options,
    find_tensors,
    map_nested,
    name_of,
)
from whyformer._engine.tracing.placement import Placement, SiteTokens, place_states
from whyformer._engine.tracing.provenance import (
    EMPTY_TRACE,
    SampleGroups,
    Trace,
    attach_trace,
    axis_of,
    broadcast_label,
    compute_pooling_weights,
    is_embedding_sum,
    trace_of,
)
from whyformer._engine.tracing.recording import PausableMode, is_marked_constant, mark_constant, pause_recording
from whyformer._engine.tracing.softmax import divide_before_product, step_of
from whyformer._engine.tracing.stitching import stitch, stitch_sum
from whyformer._engine.tracing.tiles import (
    BY_SIZE,
    TileSetting,
    current_setting,
    find_free_memory,
    iterate_tiles,
    require_memory,
)
from whyformer._engine.tracing.token_numbers import TokenNumbers
