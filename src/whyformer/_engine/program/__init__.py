"""Programs: runs that were recorded, and are repeated without the model's Python code."""

from whyformer._engine.program.attention_replay import AttentionReplay
from whyformer._engine.program.recorder import Recorder, Unrecordable
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
