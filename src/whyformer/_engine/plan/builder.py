"""From a planned run to a capture: what the full engine's builder takes from a run, with what the plan knows instead of
labels."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from whyformer._engine.capture.builder import CaptureBuilder
from whyformer._engine.capture.capture import Capture, Declined, LazyLayers, RunRequest
from whyformer._engine.capture.missing_attention import note_whole_attention
from whyformer._engine.layout.layout import Order
from whyformer._engine.plan.backward_plan import BackwardPlan
from whyformer._engine.plan.run import PlanRun
from whyformer._engine.probe.probe import Probe
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.relevance.rounding import RoundingError
from whyformer._engine.run.forward import Run, note_chosen_output
from whyformer._engine.run.intercept import Intercept
from whyformer._engine.targets.chosen_answer import ChosenAnswer, choose_answer
from whyformer._engine.tracing.provenance import Trace, attach_trace, trace_of

Slopes = Mapping[Recipe | None, dict[str, list[Tensor]]]  # by recipe, None for gradients, and by site
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class PlannedBuilder(CaptureBuilder):
    """Takes from a planned run what is to be kept."""

    def __init__(self, request: RunRequest, run: PlanRun, plan: BackwardPlan) -> None:
        self.request, self.plan, self.planned = request, plan, run
        self.model, self.encoded, self.keep = request.model, request.encoded, set(request.keep)
        self.mode = mode = Intercept(batch=self.encoded.batch, originals={}, switch=None, needs_gradient=True)
        mode.leaf, mode.words = run.leaf, run.words
        is_named = hasattr(run.returned, "logits")
        notes = (*(() if is_named else note_chosen_output(run.returned, run.output)), *plan.facts.notes)
        is_causal = plan.facts.is_causal or self.encoded.inputs[self.encoded.main].size(-1) == 1
        self.run = Run(mode, run.output, run.returned, notes, lambda: not is_causal)
        self.layout, self.order = plan.facts.lay_out(self.encoded, run.leaf.device), Order()
        self.sites, self.numbers, self.joined, self.has_streams = list(run.sites), None, None, False
        self.values = {}
        knows_blocks = self.wants("hidden", "unattended")
        self.steps = list(plan.facts.steps) if knows_blocks else []
        self.attending = plan.facts.attending if knows_blocks else ()
        outputs = [site.output for site in run.sites]
        self.tracked = {"input": [run.leaf], "hidden": list(run.states), "attention_output": outputs}
        if not plan.entrance:
            attach_trace(run.leaf, Trace(is_pixels=run.leaf.dim() == 4))
        if run.output.dim() < 3 and plan.facts.readouts:
            attach_trace(run.output, Trace(read=plan.facts.find_readout(self.layout)))

    @property
    def follows_readout(self) -> bool:
        """Whether the plan says where the answer is read, and not the target or the user."""
        is_class = self.plan.facts.task == "class"
        return "readout" in self.request.keep and is_class and self.model.readout is None and bool(self.sites)

    def refuse_other_readout(self, slope: Tensor) -> None:
        """A model may look for the token that it reads. Behind the last attention, only that one has a slope.

        slope: of the score at the output of the last attention, [batch head query channel].
        """
        read = self.plan.facts.find_readout(self.layout)
        is_read = slope.abs().sum((1, 3)) > 0
        if read is None or is_read.shape != read.shape or not torch.equal(is_read, read > 0):
            raise Declined("the answer is read at other tokens than when the plan was learnt")

    def choose_answer(self) -> ChosenAnswer:
        target, versus = self.request.target, self.request.versus
        return choose_answer(self.model, self.encoded, self.run, self.layout, target, versus, needs_score=True)

    def finish(self, chosen: ChosenAnswer, found: Slopes, notes: Sequence[str]) -> Capture:
        """The capture. found: slopes of the score."""
        answer, targets, reading, of_target = chosen
        given = frozenset(("unattended", "probe"))
        wanted, self.keep = self.keep, self.keep - given
        self.keep_values(answer, targets)
        if "unattended" in wanted:
            self.store("unattended", self.plan.unattended)
        if "probe" in wanted:
            self.store("probe", Probe(self.model, self.encoded, self.layout, targets, reading))
        rounding = {}
        for recipe, slopes in found.items():
            self.keep_arrived(slopes, recipe)
            if recipe is not None and self.run.output.element_size() >= 4:
                moved = RoundingError(at_attention=[None] * len(self.sites))
                rounding[recipe] = self.estimate_rounding(slopes, moved, recipe)
        self.mode.sites = self.sites
        return self.make_capture(chosen._replace(notes=(*notes, *of_target)), rounding, {})

    def note_attention(self) -> tuple[str, ...]:
        """What else the full engine notes does not depend on the input: it is among the facts."""
        return note_whole_attention(self.mode) if self.sites else ()

    def keep_arrived(self, arrived: dict[str, list[Tensor]], recipe: Recipe | None) -> None:  # type: ignore[override]
        """As the full engine keeps it; states between blocks are multiplied by their slopes when they are read."""
        if recipe is not None and "hidden_relevance" in self.keep:
            self.keep.remove("hidden_relevance")
            makers = [partial(self.compute_amount, "hidden", i, t, recipe) for i, t in enumerate(arrived["hidden"])]
            self.store("hidden_relevance", LazyLayers(makers), recipe)
        super().keep_arrived(arrived, recipe)

    def compute_amount(self, site: str, layer: int, arrived: Tensor, recipe: Recipe | None) -> Tensor:
        if recipe is None or arrived.dtype not in WIDE:
            return super().compute_amount(site, layer, arrived, recipe)
        wide = WIDE[arrived.dtype]
        amount: Tensor = arrived.to(wide) * self.tracked[site][layer].detach().to(wide)
        return attach_trace(amount, trace_of(arrived))
