"""Programs: runs that were recorded, and are repeated without the model's Python code."""

from whyformer._engine.program.recorder import Recorder, Unrecordable
from whyformer._engine.program.remainder import Remainder, record_remainder
from whyformer._engine.program.remainder_rows import Inseparable, choose_rows
from whyformer._engine.program.replay import (
    Finish,
    RecordedRun,
    RecordingBuilder,
    Replayer,
    alias_inputs,
    find_constants,
    find_program_inputs,
    make_recorded_run,
    replay,
)
