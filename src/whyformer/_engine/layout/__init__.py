"""Layout: how the tokens and blocks inside a model relate to its input."""

from whyformer._engine.layout.attended_states import find_attended_states, find_read_state, put_into_both
from whyformer._engine.layout.blocks import find_attention_blocks, find_block_calls, find_blocks, take_input_for_blocks
from whyformer._engine.layout.ids_beside import note_ids_beside
from whyformer._engine.layout.layout import (
    Layout,
    Order,
    align_to_tokens,
    axis_order_of,
    count_scored_tokens,
    find_first_grid,
    find_representation,
    from_canonical_axes,
    has_states_of_tokens,
    lay_out,
    leaf_to_sequence,
    order_leaf,
    pick_positions,
    refuse_changing_tokens,
    refuse_flat_embeddings,
    refuse_unknown_frames,
    refuse_unstackable_sites,
    split_entries,
    to_canonical_axes,
    to_token_states,
    unorder_leaf,
)
from whyformer._engine.layout.order import ExamplesMoved, find_order, is_known_to_move, keeps_order
from whyformer._engine.layout.order_probe import make_other_input
