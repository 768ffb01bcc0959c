"""Reruns: the rest of a model with other attention weights, and the recorded steps that it is made of."""

from whyformer._engine.reruns.attention_replay import AttentionReplay
from whyformer._engine.reruns.steps import (
    DATA_SIZED,
    Slot,
    Step,
    Unrecordable,
    aten,
    drop_unused,
    find_last_uses,
    find_slots,
    map_entries,
    map_slots,
    run_step,
)
