"""The full engine: a shadow of the model under interception, with everything that can be captured."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

from whyformer._engine.capture.builder import LAYER_SCORE_SITES, STREAM_SITES, CaptureBuilder
from whyformer._engine.capture.capture import Capture, RunRequest
from whyformer._engine.capture.decompose import PARTS_FORMS
from whyformer._engine.capture.sites import SITES
from whyformer._engine.layout.layout import can_be_numbered, find_first_grid
from whyformer._engine.relevance.node import Switch
from whyformer._engine.run.forward import run_forward
from whyformer._engine.run.model_memory import recall
from whyformer._engine.targets.target_like import TargetLike
from whyformer._plain.torch_state import neutral_torch

GRAPH_SITES = {"input", *PARTS_FORMS}  # values that are found only if the forward builds a graph
TAPE_SITES = STREAM_SITES | LAYER_SCORE_SITES.keys() | PARTS_FORMS.keys()  # computed from the list of all operations


class Passes(TypedDict):
    """What a forward must prepare for."""

    switch: Switch | None  # if relevance is wanted
    asks_gradient: bool
    keeps_tape: bool
    keeps_scores: bool


def choose_passes(request: RunRequest) -> Passes:
    sites = [SITES[name] for name in request.keep]
    return {
        "switch": Switch() if request.recipes and any(site.is_relevance for site in sites) else None,
        "asks_gradient": bool(request.keep & GRAPH_SITES) or any(site.is_gradient for site in sites),
        "keeps_tape": bool(request.keep & TAPE_SITES),
        "keeps_scores": "attention_scores" in request.keep,
    }


class FullRunner:
    """Runs every request."""

    name = "full"

    def accepts(self, request: RunRequest) -> str | None:
        return None

    def run(self, request: RunRequest) -> Capture:
        (capture,) = self.run_each(request, [request.target])
        return capture

    def run_each(self, request: RunRequest, targets: Sequence[TargetLike]) -> Iterator[Capture]:
        """A capture for each target, of one forward; of a second one where layers do not all have the same tokens."""
        passes, encoded = choose_passes(request), request.encoded
        start = partial(run_forward, request.model, encoded, intervention=request.intervention, **passes)
        may_be_numbered = can_be_numbered(encoded)
        known = recall(request.model.module, "first grid") if may_be_numbered else {}
        kind = (*(given.shape[1:] for given in encoded.inputs.values()), request.intervention is not None)
        with neutral_torch():
            if known.get(kind) is None:
                with start() as run:
                    may_join = may_be_numbered and kind not in known and request.intervention is None
                    known[kind] = find_first_grid(run, encoded) if may_join else None
                    if known[kind] is None:
                        for target in targets:
                            yield CaptureBuilder(replace(request, target=target), run).build()
                        return
            with start(first_grid=known[kind]) as run:
                for target in targets:
                    yield CaptureBuilder(replace(request, target=target), run).build()
