"""Programs: runs that were recorded, and are repeated without the model's Python code."""

from whyformer._engine.program.replay import ProgramRunner
