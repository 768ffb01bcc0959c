"""Programs: runs that were recorded, and are repeated without the model's Python code."""

from whyformer._engine.program.attention_replay import AttentionReplay
from whyformer._engine.program.cuda_graph import Kernels, is_torch_used_elsewhere
from whyformer._engine.program.recorder import Arguments, Options
from whyformer._engine.program.replay import ProgramRunner
