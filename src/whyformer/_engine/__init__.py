"""The engine: runs a shadow of the model under interception and captures what methods need."""

from whyformer._engine.capture import (
    SITES,
    Capture,
    EngineChoice,
    Epilogue,
    EpilogueResults,
    LazyLayers,
    LinearNorm,
    RoundingEstimate,
    RunRequest,
    describe_run,
    iterate_rows,
)
from whyformer._engine.layout import lay_out
from whyformer._engine.probe import (
    FILLS,
    IMAGE_FILLS,
    Probe,
    as_pixels,
    pick_examples,
    read_hidden_states,
    send_to_device,
)
from whyformer._engine.record import pick_target, record, record_each, run_request
from whyformer._engine.relevance import RECIPES, Recipe, find_recipe, make_recipe
from whyformer._engine.reruns import AttentionReplay
from whyformer._engine.run import (
    Intervention,
    ModelMemo,
    choose_relevance_dtype,
    compare_towers,
    find_output,
    get_field,
    locate_image_tokens,
    make_shadow,
    refuse_single_side,
    run_forward,
    run_plain,
    run_plain_returned,
)
from whyformer._engine.settings import engine
from whyformer._engine.targets import (
    LONGEST_ANSWER,
    SCORE_NAMES,
    Answer,
    Answers,
    FunctionReading,
    Scale,
    Target,
    TargetKind,
    TargetLike,
    TargetNames,
    TermSum,
    add_considered,
    expand_per_example,
    find_task,
    is_causal,
    probabilities_of,
    read_logits,
    refuse_encoder_decoders,
    restore_target_like,
)
from whyformer._engine.tracing import MASK_THRESHOLD
