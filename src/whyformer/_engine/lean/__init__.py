"""Lean runs: relevance of language models in memory that is linear in the tokens."""

from whyformer._engine.lean.backward_plan import Lesson
from whyformer._engine.lean.lean import (
    LESSONS,
    choose_recomputing,
    is_possible,
    key_of,
    lean,
    make_lean_capture,
    record_lean,
)
from whyformer._engine.lean.run import run_lean
from whyformer._engine.lean.shadow import borrow_shadow
from whyformer._engine.lean.target import Places, choose_lean_answer, find_read_places
