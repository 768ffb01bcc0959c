"""record(): runs a model once and keeps what is asked for.

One forward pass, a gradient backward pass if a gradient is asked for, and one relevance pass per recipe.
"""

from collections.abc import Collection, Sequence
from typing import Any

from whyformer._engine.builder import LAYER_SCORE_SITES, STREAM_SITES, CaptureBuilder
from whyformer._engine.capture import Capture
from whyformer._engine.choice import has_choices, pick_choices
from whyformer._engine.decompose import PARTS_FORMS
from whyformer._engine.forward import run_forward
from whyformer._engine.intervene import Intervention
from whyformer._engine.relevance.node import Recipe, Switch
from whyformer._engine.sites import SITES
from whyformer._engine.task import refuse_encoder_decoders
from whyformer._engine.two_towers import hold_other_tower
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._plain.deprecation import rename_keywords
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import NotCaptured

GRAPH_SITES = {"input", *PARTS_FORMS}  # values that are found only if the forward builds a graph
TAPE_SITES = STREAM_SITES | LAYER_SCORE_SITES.keys() | PARTS_FORMS.keys()  # computed from the list of all operations


def check_sites(keep: Collection[str]) -> set[str]:
    """Return the site names; raise if one does not exist."""
    if isinstance(keep, str | bytes) or not isinstance(keep, Collection):
        raise NotCaptured(f"keep must be a set or list of sites, got {keep!r}. Available: {', '.join(SITES)}.")
    if unknown := [str(name) for name in keep if not isinstance(name, str) or name not in SITES]:
        raise NotCaptured(f"There is no site {', '.join(sorted(unknown))}. Available: {', '.join(SITES)}.")
    return set(keep)


@rename_keywords(books="track_absorbed")
@neutral_torch()
def record(
    model: Model,
    encoded: EncodedBatch,
    *,
    target: Any = None,
    versus: Any = None,
    keep: Collection[str],
    recipes: Sequence[Recipe] = (),
    track_absorbed: bool = False,
    intervention: Intervention | None = None,
) -> Capture:
    """Run the model once and keep the sites named in `keep`.

    track_absorbed: also keep, per recipe, the relevance that did not reach the input (`Capture.absorbed`).
    intervention: attention to use instead of the model's own.
    """
    wanted = check_sites(keep)
    sites = [SITES[name] for name in wanted]
    switch = Switch() if recipes and any(site.is_relevance for site in sites) else None
    refuse_encoder_decoders(model.module)
    model, encoded = hold_other_tower(model, encoded, target)
    if has_choices(encoded):
        model, encoded, target = pick_choices(model, encoded, target, versus)
        versus = None
    with run_forward(
        model,
        encoded,
        switch=switch,
        asks_gradient=bool(wanted & GRAPH_SITES) or any(site.is_gradient for site in sites),
        intervention=intervention,
        keeps_tape=bool(wanted & TAPE_SITES),
        keeps_scores="attention_scores" in wanted,
    ) as run:
        return CaptureBuilder(model, encoded, run, wanted).build(target, versus, switch, recipes, track_absorbed)
