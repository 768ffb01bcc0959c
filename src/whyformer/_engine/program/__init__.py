"""Programs: runs that were recorded, and are repeated without the model's Python code."""

from whyformer._engine.program.recorder import (
    DATA_SIZED,
    Slot,
    Unrecordable,
    find_slots,
    map_entries,
    map_slots,
    map_tensors,
)
from whyformer._engine.program.replay import ProgramRunner
