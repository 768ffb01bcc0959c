"""CaptureBuilder: takes from a run, and from its backward passes, what a capture keeps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from whyformer._engine.capture import backward
from whyformer._engine.capture.backward import PlacedRelevance
from whyformer._engine.capture.capture import (
    POSITIONAL_SITES,
    AbsorbedRelevance,
    Capture,
    CapturedValues,
    LazyLayers,
    RoundingEstimate,
    RunRequest,
)
from whyformer._engine.capture.decompose import PARTS_FORMS, FirstState, compute_answer_parts, compute_score_parts
from whyformer._engine.capture.joined_layers import JoinedLayers
from whyformer._engine.capture.missing_attention import (
    note_missing_attention,
    note_mixed_states,
    note_whole_attention,
    refuse_missing_attention,
)
from whyformer._engine.capture.query_tiles import QueryTiles
from whyformer._engine.capture.residual import Branch, LayerReading, compute_layer_gradients, find_branch
from whyformer._engine.capture.sites import SITES
from whyformer._engine.layout.attended_states import find_attended_states, find_read_state, put_into_both
from whyformer._engine.layout.blocks import find_attention_blocks, find_blocks, take_input_for_blocks
from whyformer._engine.layout.ids_beside import note_ids_beside
from whyformer._engine.layout.layout import (
    align_to_tokens,
    axis_order_of,
    has_states_of_tokens,
    lay_out,
    leaf_to_sequence,
    order_leaf,
    refuse_changing_tokens,
    refuse_flat_embeddings,
    refuse_unknown_frames,
    refuse_unstackable_sites,
    to_canonical_axes,
    to_token_states,
)
from whyformer._engine.layout.order import ExamplesMoved, find_order
from whyformer._engine.probe.probe import Probe
from whyformer._engine.relevance.recipes import Recipe, compute_attention_share
from whyformer._engine.relevance.rounding import RoundingError
from whyformer._engine.run.forward import Run
from whyformer._engine.run.graph import TrackedTensors, refuse_unknown_nodes
from whyformer._engine.run.image_tokens import note_pictures
from whyformer._engine.run.intervene import compute_attention_scores
from whyformer._engine.run.model_memory import learnt
from whyformer._engine.run.other_inputs import note_other_inputs
from whyformer._engine.run.token_mixing import find_unattended
from whyformer._engine.targets.chosen_answer import ChosenAnswer, choose_answer, compute_readout
from whyformer._engine.targets.function_target import ExplainedScore, FunctionAnswer
from whyformer._engine.targets.target import Reading, Target
from whyformer._engine.tracing.attention import AttentionSite, find_layer_sites
from whyformer._engine.tracing.placement import place_states
from whyformer._engine.tracing.provenance import attach_trace, trace_of
from whyformer._engine.tracing.recording import pause_recording
from whyformer._engine.tracing.tiles import current_setting
from whyformer._model import unwrap
from whyformer.errors import UnknownOperation, UnsupportedModel

Found = TypeVar("Found")
PositionTables = Mapping[int, tuple[str, Tensor]]  # step of a rotation -> module, cosines or sines
LAYER_SCORE_SITES: dict[str, LayerReading] = {  # how the score of a layer is read from its output
    "layer_attention_grad": LayerReading(),
    "mean_attention_grad": LayerReading(pools_mean=True, normalises=True),
}
OTHER_GRADIENTS = {"direct_attention_grad", *LAYER_SCORE_SITES}  # not from the one backward pass of the score
CUT_ELSEWHERE = (
    "The model crops, turns or frames the image before it cuts patches. Maps, and methods that erase patches, such as "
    "leave_one_out, take the patches to cover the image as given, so they are misplaced by that. Do this step "
    "before, and pass a model without it."
)
SECOND_EMBEDDING = (
    "{} uses embeddings of the tokens beside those that are explained (for each layer, say). They are constants here: "
    "gradients and relevance are those of the first embeddings. leave_one_out changes both."
)
READS_CODES = (
    "The model reads some numbers of the input as codes, or rounds them: the answer has no slope there. Methods that "
    "read gradients or relevance at the input leave that part out; leave_one_out sees it, as do methods on states."
)
NO_MODULE = "it is not computed by a module that takes the states. Use another method."
OF_ATTENTION = ("attention", "attention_scores", "attention_input", "attention_output", "value", "query", "key")
STREAM_SITES = {"projected", "residual", "middle", "update", "norms"}
ONE_SEQUENCE_SITES = {  # that an encoder and a decoder do not have, since their states are not those of one sequence
    *STREAM_SITES, *LAYER_SCORE_SITES, *PARTS_FORMS, *POSITIONAL_SITES, "attention_scores", "attention_input", "query",
    "key", "value", "attention_output", "attention_output_grad", "direct_attention_grad",
}  # fmt: skip


class CaptureBuilder:
    """Takes from a run what is to be kept."""

    def __init__(self, request: RunRequest, run: Run) -> None:
        self.request, self.run, self.mode = request, run, run.mode
        self.model, self.encoded, self.keep = request.model, request.encoded, set(request.keep)
        self.sites = find_layer_sites(run.mode.sites)  # one per layer
        refuse_other_rows(request, run)
        if run.mode.maps_examples:
            learnt(self.model.module).maps_examples = True
        if run.mode.maps_examples and self.encoded.batch > 1:
            raise ExamplesMoved(run.output.detach())
        self.order = find_order(self.model, self.encoded, run)
        if self.order.moves_examples and self.encoded.batch > 1:
            raise ExamplesMoved(run.output.detach())
        self.layout = lay_out(run, self.encoded, self.order)
        self.values: CapturedValues = {}
        self.numbers = run.mode.follower.numbers  # if layers do not all have the same tokens
        self.joined: JoinedLayers | None = None
        self.has_streams = bool(self.mode.streams) or self.numbers is not None
        if self.has_streams:
            self.set_aside_sequence_sites()
        self.steps: list[int] = []  # the step of the forward at each block boundary
        self.attending: tuple[int, ...] = ()  # the block that each attention is in, if blocks were looked for
        self.tracked = self.find_tracked_tensors()

    def set_aside_sequence_sites(self) -> None:
        """What an encoder and a decoder do not have raises on access; all else is kept."""
        name, missing = type(unwrap(self.model.module)).__name__, self.keep & ONE_SEQUENCE_SITES
        self.keep -= missing
        what = (
            "has an encoder and a decoder" if self.mode.streams else "is not one stack of layers over the same tokens"
        )
        what = "cuts the text into parts, of which no token sees another" if self.cuts_text else what
        for site in missing:
            needed = f"this method needs {site!r} of one sequence at every layer"
            for recipe in (None, *self.request.recipes):
                self.store(site, UnsupportedModel(f"{name} {what}, and {needed}."), recipe)

    def build(self) -> Capture:
        request, switch, chosen = self.request, self.mode.switch, self.choose_answer()
        answer, targets, reading, _ = chosen
        self.keep_values(answer, targets)
        for name in PARTS_FORMS.keys() & self.keep:
            self.keep_answer_parts(name, answer, targets)
        if "probe" in self.keep:
            probe = Probe(self.model, self.encoded, self.layout, targets, reading, runs_alone=request.runs_alone)
            self.store("probe", probe)
        if any(SITES[name].is_gradient and name not in OTHER_GRADIENTS for name in self.keep):
            self.keep_arrived(backward.run_backward(answer.start_gradient(), self.tracked), None)
        if "direct_attention_grad" in self.keep:
            outputs = backward.run_direct_backward(answer.start_gradient(), self.tracked["attention_output"])
            self.keep_attention_grad("direct_attention_grad", outputs)
        for name in self.keep & LAYER_SCORE_SITES.keys():
            self.keep_layer_gradients(name, reading)
        absorbed: dict[Recipe, tuple[AbsorbedRelevance, ...]] = {}
        rounding: dict[Recipe, RoundingEstimate] = {}
        if switch is not None and any(SITES[name].is_relevance for name in self.keep):
            self.refuse_unknown_nodes(answer)
            for recipe in request.recipes:
                switch.placed = {} if self.keep & POSITIONAL_SITES else None
                arrived, taken, placed, moved = backward.run_relevance_pass(
                    answer, self.tracked, switch, recipe, request.track_absorbed
                )
                rounding[recipe] = self.estimate_rounding(arrived, moved, recipe)
                absorbed.update({recipe: taken} if request.track_absorbed else {})
                self.keep_arrived(arrived, recipe)
                self.keep_positional(arrived, placed, recipe, switch.tables)
        return self.make_capture(chosen, rounding, absorbed)

    def make_capture(
        self,
        chosen: ChosenAnswer,
        rounding: Mapping[Recipe, RoundingEstimate],
        absorbed: Mapping[Recipe, tuple[AbsorbedRelevance, ...]],
    ) -> Capture:
        answer = chosen.answer
        return Capture(
            chosen.targets,
            self.layout.tokens,
            self.layout.patches,
            self.run.output.detach(),
            tuple(self.steps),
            absorbed,
            (*self.encoded.notes, *self.run.notes, *self.note_attention(), *chosen.notes),
            self.values,
            rounding,
            answer.sent if isinstance(answer, FunctionAnswer) else None,
            chosen.function,
            attending=self.attending,
            places=self.layout.positions,
            owners=self.layout.owners,
            slots=self.layout.slots,
            obstacle=self.layout.obstacle,
        )

    def note_attention(self) -> tuple[str, ...]:
        states = self.tracked.get("hidden", ())
        mixed = find_unattended(self.mode, states) if states and self.mode.needs_gradient else ()
        missing = note_missing_attention(self.model, self.encoded, self.run)
        with pause_recording():
            others = note_other_inputs(self.model, self.encoded, self.run)
            others += note_ids_beside(self.model, self.encoded, self.run) + note_pictures(self.encoded.pictures)
        elsewhere = (CUT_ELSEWHERE,) if self.mode.follower.cuts_elsewhere and self.layout.patches is not None else ()
        on_states = note_mixed_states(mixed) if any(mixed) else ()
        codes = (READS_CODES,) if self.mode.codes and self.wants("input") else ()
        second = (SECOND_EMBEDDING.format(self.mode.second_embedding),) if self.mode.second_embedding else ()
        return (*missing, *on_states, *note_whole_attention(self.mode), *others, *elsewhere, *second, *codes)

    def choose_answer(self) -> ChosenAnswer:
        target, versus = self.request.target, self.request.versus
        needs_score = any(SITES[name].is_class_specific or name == "probe" for name in self.keep)
        return choose_answer(self.model, self.encoded, self.run, self.layout, target, versus, needs_score=needs_score)

    def refuse_unknown_nodes(self, answer: ExplainedScore) -> None:
        for output in answer.outputs:
            refuse_unknown_nodes(output, [*self.mode.leaves, *self.mode.codes])

    def wants(self, *subjects: str) -> bool:
        """One of these is to be kept, or its gradient or relevance."""
        return any((SITES[name].of or name) in subjects for name in self.keep)

    @property
    def cuts_text(self) -> bool:
        """Whether the tokens of a text are read in parts: blocks have the states of all of them, in other axes."""
        return self.numbers is not None and self.mode.follower.grid is None

    @property
    def is_image(self) -> bool:
        return self.mode.leaf is not None and trace_of(self.mode.leaf).is_pixels

    def find_tracked_tensors(self) -> dict[str, list[Tensor]]:
        """The tensors of the graph whose gradient or relevance is wanted, by site."""
        tracked: dict[str, list[Tensor]] = {}
        if self.wants(*OF_ATTENTION):
            refuse_missing_attention(self.model, self.sites)
            if self.numbers is None:
                refuse_unstackable_sites(self.sites, *self.layout.mask.shape)
            else:
                self.joined = JoinedLayers.find(self.sites, self.numbers, self.encoded.batch)
        if self.wants("attention", "attention_output"):
            tracked["attention_output"] = [site.output for site in self.sites]
        if self.cuts_text and self.wants("hidden", "unattended"):
            blocks = find_blocks(self.mode)
            tracked["hidden"], self.steps = blocks.states, blocks.steps
        elif self.has_streams and self.wants("hidden", "unattended"):
            tracked["hidden"], self.steps = self.mode.leaves, [0]
            if self.keep & {"hidden", "hidden_grad"}:
                tracked["attended"] = self.find_attended_states()
        elif self.wants("hidden", "unattended") or (self.wants("token", "position") and self.is_image):
            blocks = find_blocks(self.mode)
            if not self.sites and self.is_image and not has_states_of_tokens(blocks.states, self.layout):
                blocks = take_input_for_blocks(self.mode)
            else:
                refuse_changing_tokens(blocks.states, self.layout)
            tracked["hidden"], self.steps, self.attending = blocks.states, blocks.steps, blocks.attending
        # Positions are added below the first block, so relevance must be propagated down to there.
        if self.wants("input", "token", "position"):
            if self.mode.leaf is None:
                raise UnsupportedModel(
                    "The explained input was not found: the model has no floating-point input and does not embed "
                    "token ids."
                )
            refuse_unknown_frames(self.encoded, self.layout)
            refuse_flat_embeddings(self.mode.leaf, self.encoded)
            tracked["input"] = self.mode.leaves
        return tracked

    def find_attended_states(self) -> list[Tensor]:
        """The states that the attention of each layer reads."""
        if self.numbers is None:
            return find_attended_states(self.mode, self.sites)
        joined = self.joined or JoinedLayers.find(self.sites, self.numbers, self.encoded.batch)
        return [find_read_state(self.mode, self.sites[number], self.numbers) for number in joined.first_sites]

    # --- values of the forward ----------------------------------------------------------------------------------------

    def keep_values(self, answer: ExplainedScore, targets: Sequence[Target]) -> None:
        """What the forward itself computed."""
        self.store("mask", self.layout.mask)
        self.store("streams", self.mode.streams if self.numbers is None else (self.layout.length,))
        self.store("special", self.layout.special)
        if "fingerprint" in self.keep:
            self.store("fingerprint", self.encoded.fingerprints())
        if "readout" in self.keep:
            self.store("readout", compute_readout(self.model, self.run, self.layout, answer, targets))
        sites = [detach_site_output(site) for site in self.sites]
        if self.joined is not None:
            attention = self.joined.list_makers([partial(AttentionSite.attention, site) for site in sites], by_key=True)
            self.store("attention", LazyLayers(attention))
        for name in self.keep & ATTENTION_READERS.keys() if self.joined is None else ():
            self.store(name, self.list_layers([partial(ATTENTION_READERS[name], site) for site in sites]))
        if STREAM_SITES & self.keep:
            refuse_missing_attention(self.model, self.sites)
            self.keep_stream()
        if "attention_input" in self.keep:
            self.store("attention_input", LazyLayers([partial(raise_or_return, x) for x in self.find_inputs()]))
        if "hidden" in self.keep:
            states = self.tracked["attended" if "attended" in self.tracked else "hidden"]
            if self.numbers is not None:
                self.store("hidden", [self.place_states(state, state.detach()) for state in states])
            else:
                states = [to_token_states(t.detach(), trace_of(t), self.layout.length) for t in states]
                self.store("hidden", self.join_attended(states) if self.mode.streams else states)
        if "unattended" in self.keep:
            is_read = not self.has_streams or self.cuts_text
            self.store("unattended", find_unattended(self.mode, self.tracked["hidden"]) if is_read else ())
        if "input" in self.keep:
            pairs = zip(self.mode.leaf_words, self.tracked["input"], strict=True)
            parts = [to_canonical_axes(without_missing(words), trace_of(leaf)) for words, leaf in pairs]
            self.store("input", order_leaf(self.join_streams(parts)[0], self.layout))

    def keep_stream(self) -> None:
        """What the two halves of each block add to the state. A block of an unknown build raises on access."""
        branches: list[Branch | UnsupportedModel] = []
        try:
            refuse_unstackable_sites(self.sites, *self.layout.mask.shape)
            states, _ = find_attention_blocks(self.mode)
            refuse_changing_tokens(states, self.layout)
        except UnsupportedModel as error:
            branches = [error.with_traceback(None)] * len(self.sites)
        else:
            for site, entered, left in zip(self.sites, states, states[1:], strict=False):
                try:
                    branches.append(find_branch(site, entered, left, self.mode.tape or []))
                except UnsupportedModel as error:
                    branches.append(error.with_traceback(None))  # the traceback would keep the graph alive
        for name in STREAM_SITES & self.keep:
            self.store(name, LazyLayers([partial(read_branch, found, name) for found in branches]))

    def find_inputs(self) -> list[Tensor | UnsupportedModel]:
        """[batch token channel] for each attention: the input of the innermost module around it."""
        found: list[Tensor | UnsupportedModel] = []
        for site in self.sites:
            given = self.mode.calls[site.enclosing[-1]].input if site.enclosing else None
            if given is None or given.dim() != 3:
                found.append(UnsupportedModel(f"The input of the attention in {site.path} is not known: {NO_MODULE}"))
            else:
                found.append(to_canonical_axes(given.detach(), trace_of(given)))
        return found

    def keep_answer_parts(self, name: str, answer: ExplainedScore, targets: tuple[Target, ...]) -> None:
        try:
            states = find_blocks(self.mode).states
            refuse_changing_tokens(states, self.layout)
            order = axis_order_of(states[0], trace_of(states[0]))
            first = FirstState(self.mode.tape or [], states[0], order, PARTS_FORMS[name])
            if isinstance(answer, FunctionAnswer):
                self.store(name, compute_score_parts(first, answer.read))
            else:
                self.store(name, compute_answer_parts(first, self.run.output, targets))
        except (UnsupportedModel, UnknownOperation) as error:
            self.store(name, UnsupportedModel(str(error)))

    # --- results of backward passes -----------------------------------------------------------------------------------

    def keep_arrived(self, arrived: TrackedTensors, recipe: Recipe | None) -> None:
        """What a backward pass brought: gradients, or relevance under a recipe."""
        quantity = "gradient" if recipe is None else "relevance"
        kept = [name for name in self.keep if SITES[name].quantity == quantity and name not in OTHER_GRADIENTS]
        wanted = {SITES[name].of: name for name in kept}
        sites = self.sites
        outputs = [site.split_heads(t) for site, t in zip(sites, arrived.get("attention_output", ()), strict=False)]
        if "attention" in wanted and self.joined is not None:
            read = read_site_grad if recipe is None else partial(read_site_relevance, recipe)
            readers = [partial(read, detach_site_output(site), t) for site, t in zip(sites, outputs, strict=True)]
            makers = self.joined.list_makers(readers, by_query=True, by_key=recipe is not None)
            self.store(wanted["attention"], LazyLayers(makers), recipe)
        elif "attention" in wanted:
            read = read_attention_grad if recipe is None else partial(read_attention_relevance, recipe)
            makers = [partial(read, detach_site_output(site), t) for site, t in zip(sites, outputs, strict=True)]
            self.store(wanted["attention"], self.list_layers(makers), recipe)
        if "attention_output" in wanted:
            self.store(wanted["attention_output"], outputs, recipe)
        if "hidden" in wanted and recipe is None and self.numbers is not None:
            name = "attended" if "attended" in arrived else "hidden"
            pairs = zip(self.tracked[name], arrived[name], strict=True)
            self.store(wanted["hidden"], [self.place_states(state, t, shares=True) for state, t in pairs])
        elif "hidden" in wanted and recipe is None and self.mode.streams:
            states = [to_canonical_axes(t, trace_of(t)) for t in arrived["attended"]]
            self.store(wanted["hidden"], self.join_attended(states))
        elif "hidden" in wanted:
            states = [self.compute_amount("hidden", layer, t, recipe) for layer, t in enumerate(arrived["hidden"])]
            self.store(wanted["hidden"], self.join_streams(states), recipe)
        if "input" in wanted:
            amounts = [self.compute_amount("input", stream, t, recipe) for stream, t in enumerate(arrived["input"])]
            self.store(wanted["input"], order_leaf(self.join_streams(amounts)[0], self.layout), recipe)

    def list_layers(self, makers: Sequence[Callable[[], Tensor]]) -> LazyLayers:
        """A matrix for each attention; of an encoder and a decoder, over source and prefix together."""
        if not self.mode.streams:
            return LazyLayers(makers)
        pairs = zip(makers, self.sites, strict=True)
        return LazyLayers([partial(join_matrix, make, site, self.layout.length) for make, site in pairs])

    def join_streams(self, states: list[Tensor]) -> list[Tensor]:
        """The states of source and prefix as one; those of other models as they are."""
        return [torch.cat(states, 1)] if self.mode.streams else states

    def place_states(self, state: Tensor, values: Tensor, *, shares: bool = False) -> Tensor:
        """[batch token channel] in the sequence that all layers share. shares: the copies of a token share it."""
        assert self.numbers is not None
        placed = place_states(values, trace_of(state), self.numbers, self.encoded.batch)
        if placed is None:
            raise UnsupportedModel("Which token each of the hidden states belongs to is not known.")
        return placed[0] * placed[1][:, None].to(placed[0]) if shares else placed[0]

    def join_attended(self, states: list[Tensor]) -> list[Tensor]:
        """What each attention reads, over source and prefix."""
        pairs = zip(states, self.sites, strict=True)
        return [put_into_both(state, site, self.layout.length) for state, site in pairs]

    def keep_attention_grad(self, name: str, output_grads: Sequence[Tensor]) -> None:
        """The gradient by attention, from that by the output of each attention."""
        pairs = zip(self.sites, output_grads, strict=True)
        makers = [partial(read_attention_grad, detach_site_output(s), s.split_heads(g)) for s, g in pairs]
        self.store(name, LazyLayers(makers))

    def keep_layer_gradients(self, name: str, read: Reading) -> None:
        """The gradients of each layer's own score. A model in which no blocks are found raises on access."""
        try:
            reading = LAYER_SCORE_SITES[name]
            gradients = compute_layer_gradients(self.run, self.encoded, self.layout, read, reading)
        except UnsupportedModel as error:
            refusal = partial(raise_or_return, UnsupportedModel(str(error)))
            self.store(name, LazyLayers([refusal] * len(self.sites)))
        else:
            self.keep_attention_grad(name, gradients)

    def estimate_rounding(self, arrived: TrackedTensors, moved: RoundingError, recipe: Recipe) -> RoundingEstimate:
        """How much rounding can have moved what arrived, read from the device in one go."""
        sites, outputs = self.sites, arrived.get("attention_output", ())
        start = moved.start(self.run.output.detach().real.flatten()[:1].to(next(iter(arrived.values()))[0].dtype))
        start = start.expand(self.encoded.batch)
        rows = [start if moved.error is None else moved.error]
        passed = [*moved.at_attention, moved.error][: len(sites)]  # a pass that stops at the first attention ends there
        if len(passed) == len(sites) == len(outputs) and not self.has_streams:
            rows += [start if error is None else error for error in reversed(passed)]
            if (readout := self.values.get(("readout", None))) is not None:
                rows += [
                    sum_at_readout(site, output, readout, recipe) for site, output in zip(sites, outputs, strict=True)
                ]
        return RoundingEstimate(torch.stack([row.to(start) for row in rows]).double(), len(sites))

    def compute_amount(self, site: str, layer: int, arrived: Tensor, recipe: Recipe | None) -> Tensor:
        """The gradient or relevance at a tracked tensor. A recipe that sends slopes is multiplied by the tensor."""
        if recipe is not None and recipe.sends == "slope":
            values = self.tracked[site][layer].detach()
            values = without_missing(values) if site == "input" else values
            arrived = attach_trace(arrived * values, trace_of(arrived))
        if site == "hidden" and self.cuts_text:
            return self.place_states(self.tracked[site][layer], arrived)
        if site == "hidden" and not self.has_streams:
            return to_token_states(arrived, trace_of(arrived), self.layout.length)
        return to_canonical_axes(arrived, trace_of(arrived))

    def keep_positional(
        self, arrived: TrackedTensors, placed: PlacedRelevance, recipe: Recipe, tables: PositionTables
    ) -> None:
        """How relevance is divided between tokens and positions, wherever positions are added."""
        if not self.keep & POSITIONAL_SITES or recipe.sends != "slope":
            return
        if self.layout.owners is not None:
            raise UnsupportedModel("Relevance is not divided between the frames of a signal and their positions yet.")
        steps = [step for step, what in sorted(placed) if what == "position"]
        positions = [[placed[step, "position"] for step in uses] for uses in group_uses(steps, tables)]
        tokens = [amount for (_, what), amount in sorted(placed.items()) if what == "token"]
        if not self.is_image:
            leaf, slope = self.tracked["input"][0].detach(), arrived["input"][0]
            words = leaf if self.mode.words is None else self.mode.words
            own, added = (
                leaf_to_sequence(to_canonical_axes(slope * part, trace_of(slope)).sum(-1), self.order)
                for part in (words, leaf - words)
            )
            tokens, positions = [own], [[added], *positions] if bool(added.any()) else positions
        if not tokens:
            tokens = [self.compute_amount("hidden", 0, arrived["hidden"][0], recipe).sum(-1)]
        self.store("token_relevance", align_to_tokens(tokens[0], self.layout), recipe)
        per_place = [torch.stack([align_to_tokens(amount, self.layout) for amount in uses]) for uses in positions]
        self.store("position_relevance", per_place, recipe)

    def store(self, name: str, value: Any, recipe: Recipe | None = None) -> None:
        self.values[name, recipe] = value


# --- where positions enter --------------------------------------------------------------------------------------------


def group_uses(steps: Sequence[int], tables: PositionTables) -> list[list[int]]:
    """The steps where positions enter; those that multiply by the same numbers in the same module stay together."""
    groups: list[list[int]] = []
    for step in steps:
        same = [group for group in groups if is_same_table(tables.get(step), tables.get(group[0]))]
        if same:
            same[0].append(step)
        else:
            groups.append([step])
    return groups


def is_same_table(one: tuple[str, Tensor] | None, other: tuple[str, Tensor] | None) -> bool:
    if one is None or other is None or one[0] != other[0]:
        return False
    return one[1] is other[1] or torch.equal(one[1], other[1])


def refuse_other_rows(request: RunRequest, run: Run) -> None:
    """Refuse an answer to other rows than were given: what is explained may have its tokens on the first axis."""
    encoded, output = request.encoded, run.output
    if callable(request.target) or encoded.pictures is not None or output.dim() != 2 or encoded.batch == len(output):
        return
    main = encoded.inputs[encoded.main]
    raise UnsupportedModel(
        f"The model answers {len(output)} rows for {encoded.batch}: {encoded.main!r} has the shape {list(main.shape)}, "
        "and its first axis is read as that of the examples. If that is the axis of the tokens, pass a module that "
        "takes examples first; if the model answers one example at a time, pass one."
    )


# --- reading one attention site ---------------------------------------------------------------------------------------


def detach_site_output(site: AttentionSite) -> AttentionSite:
    """The site with its output detached and its heads separate."""
    return replace(site, output=site.split_heads(site.output.detach()))


def read_in_tiles(site: AttentionSite, read: Callable[[slice], Tensor]) -> Tensor:
    """[batch head query key] from a function of some queries: a tensor, or tiles of it if that would be large."""
    shape = (*site.value.shape[:-2], site.queries, site.value.size(-2))
    rows = current_setting.get().choose_rows(shape, site.value.element_size())
    if not rows:
        return read(slice(0, site.queries))
    return QueryTiles(read, shape, site.value, rows)  # type: ignore[return-value]


def join_matrix(make: Callable[[], Tensor], site: AttentionSite, length: int) -> Tensor:
    """[batch head query key] over source and prefix: the matrix where it belongs, 0 for tokens that take no part."""
    if site.first_positions is None:
        raise UnsupportedModel(f"Attention in {site.path} is neither over the source nor over the prefix.")
    made: Tensor | QueryTiles = make()
    matrix = made.whole() if isinstance(made, QueryTiles) else made
    (row, column), (queries, keys) = site.first_positions, matrix.shape[-2:]
    joined = matrix.new_zeros(*matrix.shape[:-2], length, length)
    joined[..., row : row + queries, column : column + keys] = matrix
    return joined


def read_attention_grad(site: AttentionSite, output_grad: Tensor) -> Tensor:
    return read_in_tiles(site, lambda rows: output_grad[..., rows, :] @ site.value.mT)


def read_site_grad(site: AttentionSite, output_grad: Tensor) -> Tensor:
    return output_grad @ site.value.mT


def read_site_relevance(recipe: Recipe, site: AttentionSite, arrived: Tensor) -> Tensor:
    return compute_attention_share(site.attention(), site.value, site.output, arrived, recipe)


def read_attention_relevance(recipe: Recipe, site: AttentionSite, arrived: Tensor) -> Tensor:
    def read(rows: slice) -> Tensor:
        output, arriving = site.output[..., rows, :], arrived[..., rows, :]
        return compute_attention_share(site.attention(rows), site.value, output, arriving, recipe)

    return read_in_tiles(site, read)


def raise_or_return(found: Found | UnsupportedModel) -> Found:
    if isinstance(found, UnsupportedModel):
        raise UnsupportedModel(str(found))
    return found


def read_branch(found: Branch | UnsupportedModel, which: str) -> Any:
    return getattr(raise_or_return(found), which)


def without_missing(values: Tensor) -> Tensor:
    """A missing number (NaN) of an input has no size that a slope could be multiplied with: it counts as 0."""
    return values.where(~values.isnan(), 0.0)


def sum_at_readout(site: AttentionSite, arrived: Tensor, readout: Tensor, recipe: Recipe) -> Tensor:
    """[batch]: the sum of |relevance| of the attention output at the tokens where the answer is read."""
    relevance = site.split_heads(arrived.detach())
    if recipe.sends == "slope":
        relevance = relevance * site.split_heads(site.output.detach())
    return torch.einsum("bq,bq->b", torch.linalg.vector_norm(relevance, 1, (1, 3)), readout.to(relevance))


def require_operand(site: AttentionSite, which: str) -> Tensor:
    operand = getattr(site, which)
    if operand is None:
        raise UnsupportedModel(
            f"{site.path} computes its attention in separate operations, so its {which} is not known. Load the model "
            'with attn_implementation="sdpa".'
        )
    return operand


ATTENTION_READERS: dict[str, Callable[[AttentionSite], Tensor]] = {
    "attention": lambda site: read_in_tiles(site, site.attention),
    "attention_scores": lambda site: read_in_tiles(site, partial(compute_attention_scores, site)),
    "value": lambda site: site.value,
    "attention_output": lambda site: site.output,
    "query": partial(require_operand, which="query"),
    "key": partial(require_operand, which="key"),
}
