"""The engine: runs a shadow of the model under interception and captures what methods need."""

from whyformer._engine.capture.capture import (
    Capture,
    EngineChoice,
    Epilogue,
    EpilogueResults,
    LazyLayers,
    RoundingEstimate,
    RunRequest,
)
from whyformer._engine.capture.query_tiles import iterate_rows
from whyformer._engine.capture.residual import LinearNorm
from whyformer._engine.capture.sites import SITES
from whyformer._engine.layout.blocks import find_blocks
from whyformer._engine.layout.layout import Order, find_first_grid, lay_out
from whyformer._engine.layout.order import find_order
from whyformer._engine.probe.probe import Probe, read_hidden_states
from whyformer._engine.record import pick_target, record, record_each, run_request
from whyformer._engine.relevance.recipes import RECIPES, Recipe, find_recipe, make_recipe
from whyformer._engine.run.forward import Run, choose_relevance_dtype, run_forward, run_plain, run_plain_returned
from whyformer._engine.run.image_tokens import locate_image_tokens
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.run.model_memory import recall
from whyformer._engine.run.returned import find_output, get_field
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.run.two_towers import compare_towers, refuse_single_side
from whyformer._engine.settings import engine
from whyformer._engine.targets.answer_target import SCORE_NAMES, Answer
from whyformer._engine.targets.chosen_answer import is_causal
from whyformer._engine.targets.function_target import FunctionReading
from whyformer._engine.targets.target import (
    Answers,
    Target,
    TargetNames,
    add_considered,
    expand_per_example,
    probabilities_of,
    read_logits,
)
from whyformer._engine.targets.target_kinds import LONGEST_ANSWER
from whyformer._engine.targets.target_like import TargetKind, TargetLike
from whyformer._engine.targets.target_text import restore_target_like
from whyformer._engine.targets.task import find_task, refuse_encoder_decoders
from whyformer._engine.targets.terms import Scale, TermSum
from whyformer._engine.tracing.masks import MASK_THRESHOLD
