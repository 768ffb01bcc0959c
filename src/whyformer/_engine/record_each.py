"""Several targets of one input: the model runs forward once, and backward once for each target.

Relevance rules that send slopes are linear in what they start from, so what is captured for each target is what a run
of its own would give. Only one capture is alive at a time; it is valid until the next one is made.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from whyformer._engine.answer_target import aim_at_answers
from whyformer._engine.builder import CaptureBuilder
from whyformer._engine.capture import Capture
from whyformer._engine.forward import run_forward
from whyformer._engine.record import check_sites, choose_passes
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.task import refuse_encoder_decoders
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._plain.torch_state import neutral_torch


def record_each(
    model: Model, encoded: EncodedBatch, targets: Sequence[Any], keep: Collection[str], recipes: Sequence[Recipe]
) -> Iterator[Capture]:
    """As `record`, for one target after the other."""
    wanted = check_sites(keep)
    refuse_encoder_decoders(model.module)
    switch, asks = choose_passes(wanted, recipes)
    with neutral_torch(), run_forward(model, encoded, switch=switch, **asks) as run:
        for one in targets:
            target, versus = aim_at_answers(encoded, one, None)
            yield CaptureBuilder(model, encoded, run, wanted).build(target, versus, switch, recipes, False)
