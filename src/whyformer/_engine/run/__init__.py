"""Running a model: a shadow of it under interception, interventions, and what the model's code does besides."""

from whyformer._engine.run.fill_token import find_fill_token
from whyformer._engine.run.foreign_errors import FOREIGN_ERRORS, refuse_unsuitable_inputs
from whyformer._engine.run.forward import (
    Run,
    choose_relevance_dtype,
    note_chosen_output,
    run_forward,
    run_plain,
    run_plain_returned,
)
from whyformer._engine.run.graph import TrackedTensors, compute_gradients, refuse_unknown_nodes, refuse_untracked
from whyformer._engine.run.image_tokens import locate_image_tokens, note_pictures
from whyformer._engine.run.intercept import Intercept, ModuleCall, StreamStep
from whyformer._engine.run.intervene import Intervention, SiteChange, compute_attention_scores
from whyformer._engine.run.known_code import are_modules_known
from whyformer._engine.run.model_state import ModelMemo, ModelState, is_torch_watched
from whyformer._engine.run.model_writes import WRITERS, WriteGuard, refuse_changed_weights
from whyformer._engine.run.other_inputs import note_other_inputs, settle_mask
from whyformer._engine.run.output_scale import SCALES, note_scale
from whyformer._engine.run.quantised import has_rounding_layers, reload_weights
from whyformer._engine.run.returned import Returned, find_output, get_field, iterate_tensors, map_tensors
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.run.token_mixing import find_unattended, mixes_tokens
from whyformer._engine.run.two_towers import compare_towers, hold_other_tower, refuse_single_side
