"""record(): the one place that runs a model. One forward, the gradient backward and the relevance backward only if
needed.

What comes out is a `Capture`: frozen, detached from the graph, and lazy where it would be large: per-layer sites are
sequences that rebuild one layer's matrices when that layer is asked for,

    attention            softmax(q k^T), or what the model computed
    attention_grad       dO V^T
    attention_relevance  A * ((R_O / O) V^T) / 2

from q, k, v, O, dO and R_O, which are linear in the number of tokens.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.blocks import find_blocks
from whyformer._engine.decompose import compute_answer_parts
from whyformer._engine.forward import Run, run_forward
from whyformer._engine.graph import refuse_unknown_nodes
from whyformer._engine.intervene import Intervention
from whyformer._engine.layout import axis_order_of, compute_readout, find_representation, lay_out, to_canonical_axes
from whyformer._engine.probe import Probe
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import Recipe, compute_attention_share
from whyformer._engine.residual import Branch, OperationTape, find_branch
from whyformer._engine.sites import SITES
from whyformer._engine.target import (
    ExplainedAnswer,
    Target,
    choose_representation,
    choose_target,
    has_head,
    refuse_unsupported_heads,
)
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import Trace, attach_trace, trace_of
from whyformer._model.model import EncodedBatch, Model
from whyformer._model.unwrap import unwrap
from whyformer._plain.deprecation import rename_keywords
from whyformer._plain.tokens import Tokens
from whyformer.errors import MethodError, NotCaptured, UnknownOperation, UnsupportedModel

HeldSites = dict[tuple[str, Recipe | None], Any]
PlacedRelevance = dict[tuple[int, str], Tensor]
POSITIONAL_SITES = frozenset(("token_relevance", "position_relevance"))


class LazyLayers(Sequence[Tensor]):
    """One tensor a layer, made when it is asked for."""

    def __init__(self, makers: Sequence[Callable[[], Tensor]]) -> None:
        self._makers = tuple(makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __getitem__(self, layer: Any) -> Any:
        return LazyLayers(self._makers[layer]) if isinstance(layer, slice) else self._makers[layer]()

    def __iter__(self) -> Iterator[Tensor]:
        return (make() for make in self._makers)

    def stack(self) -> Tensor:
        return torch.stack(list(self))


@dataclass(frozen=True)
class AbsorbedRelevance:
    """Relevance that reached no input: what took it, and where on the way."""

    what: str
    step: int  # of the forward; steps above a block boundary lie between it and the answer
    amount: Tensor  # [batch]


@dataclass(frozen=True)
class Capture:
    """What one run of the model left behind."""

    targets: tuple[Target, ...]
    tokens: tuple[Tokens, ...]
    patches: tuple[int, ...] | None  # images: where the patches are in the token sequence, row by row
    logits: Tensor
    boundaries: tuple[int, ...] = ()  # the step of the forward at which each of `hidden` was there
    absorbed: Mapping[Recipe, tuple[AbsorbedRelevance, ...]] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    held: HeldSites = field(default_factory=dict, repr=False)

    def get(self, site: str, recipe: Recipe | None = None) -> Any:
        """A site, by its name in SITES; those that end in `_relevance` belong to a recipe.

        What this model could not give says so when it is asked for.
        """
        key = (site, recipe if site.endswith("_relevance") else None)
        if key not in self.held and site in POSITIONAL_SITES and recipe is not None and recipe.sends != "slope":
            raise MethodError(f"The recipe {recipe.name} does not tell tokens from positions. Use pa_lrp or attnlrp.")
        if key not in self.held:
            there = ", ".join(sorted({name for name, _ in self.held}))
            asked = f"{site} under the recipe {key[1].name}" if key[1] is not None else site
            raise NotCaptured(f"This capture holds {there} but not {asked}; record it with keep={{..., {site!r}}}.")
        if isinstance(self.held[key], UnsupportedModel):
            raise UnsupportedModel(str(self.held[key]))
        return self.held[key]

    def __getitem__(self, site: str) -> Any:
        return self.get(site)


@rename_keywords(books="track_absorbed")
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
    """Run the model once and keep what is asked for.

    track_absorbed: also keep, per recipe, where relevance went that reached no input (`Capture.absorbed`).
    intervention: attention to be put in place of the model's own.
    """
    if strange := sorted(set(keep) - set(SITES)):
        raise NotCaptured(f"There is no site {', '.join(strange)}. There are: {', '.join(SITES)}.")
    asks_relevance = bool(recipes) and any(name.endswith("_relevance") for name in keep)
    switch = Switch() if asks_relevance else None
    asks_gradient = any(name.endswith("_grad") or name in ("input", "answer_parts") for name in keep)
    refuse_unsupported_heads(model.module)
    with run_forward(
        model,
        encoded,
        switch=switch,
        asks_gradient=asks_gradient,
        intervention=intervention,
        keeps_tape=bool((STREAM_SITES | {"answer_parts"}) & set(keep)),
    ) as run:
        return CaptureBuilder(model, encoded, run, set(keep)).capture(target, versus, switch, recipes, track_absorbed)


class CaptureBuilder:
    """Takes from a run what is to be kept."""

    def __init__(self, model: Model, encoded: EncodedBatch, run: Run, keep: set[str]) -> None:
        self.model, self.encoded, self.run, self.keep = model, encoded, run, keep
        self.mode = run.mode
        self.layout = lay_out(run, encoded)
        self.tracked = self.track()
        self.held: HeldSites = {}

    def capture(
        self, target: Any, versus: Any, switch: Switch | None, recipes: Sequence[Recipe], track_absorbed: bool
    ) -> Capture:
        answer, targets, notes = self.answered(target, versus)
        self.keep_values(answer)
        if "answer_parts" in self.keep:
            self.hold("answer_parts", self.find_answer_parts(targets))
        if "probe" in self.keep:
            self.hold("probe", Probe(self.model, self.encoded, self.layout, targets))
        if any(name.endswith("_grad") for name in self.keep):
            self.keep_backward(run_backward(answer.score, self.tracked), None)
        absorbed: dict[Recipe, tuple[AbsorbedRelevance, ...]] = {}
        for recipe in recipes if switch is not None else ():
            assert switch is not None
            refuse_unknown_nodes(answer.score, self.mode.leaf)
            switch.placed = {} if self.keep & POSITIONAL_SITES else None
            found, taken, placed = run_relevance_pass(answer, self.tracked, switch, recipe, track_absorbed)
            absorbed.update({recipe: taken} if track_absorbed else {})
            self.keep_backward(found, recipe)
            self.keep_places(found, placed, recipe)
        return Capture(
            targets,
            self.layout.tokens,
            self.layout.patches,
            self.run.output.detach(),
            tuple(self.steps),
            absorbed,
            (*self.encoded.notes, *self.run.notes, *notes),
            self.held,
        )

    def answered(self, target: Any, versus: Any) -> tuple[ExplainedAnswer, tuple[Target, ...], tuple[str, ...]]:
        """What is explained, and a note if it is no class."""
        output = self.run.output
        is_image = self.encoded.token_mask is None
        if has_head(self.model.module, output, is_image=is_image):
            return *choose_target(self.model, self.encoded, output, target, versus), ()
        if any(name.endswith(("_grad", "_relevance")) or name == "answer_parts" for name in self.keep):
            raise UnsupportedModel(
                f"{type(unwrap(self.model.module)).__name__} has no head, so there is no class to follow. Use a method "
                "that knows no class (redistribution, rollout, ...), or open the model with its head."
            )
        if output.dim() != 3:
            return *choose_representation(self.model, output, trace_of(output), target, versus), ()
        weights, note = find_representation(self.model, self.run, self.layout)
        states = to_canonical_axes(output, trace_of(output))
        if states.shape[:2] != weights.shape:
            raise UnsupportedModel(
                f"The model answers with a tensor of shape {list(output.shape)}, which is not the state of its "
                f"{weights.size(1)} tokens in a batch of {weights.size(0)}. Open the model with its head."
            )
        pooled = torch.einsum("bt,btc->bc", weights.to(states), states)
        return *choose_representation(self.model, pooled, Trace(read=weights), target, versus), (note,)

    def wants(self, *sites: str) -> bool:
        """One of these is asked for, or its gradient or relevance."""
        return any(f"{site}{suffix}" in self.keep for site in sites for suffix in ("", "_grad", "_relevance"))

    @property
    def is_image(self) -> bool:
        return self.mode.leaf is not None and trace_of(self.mode.leaf).is_pixels

    def track(self) -> dict[str, list[Tensor]]:
        """The tensors of the graph whose gradient or relevance is wanted, by site."""
        tracked: dict[str, list[Tensor]] = {}
        self.steps: list[int] = []
        if self.wants("attention", "attention_output", "value", "query", "key"):
            refuse_odd_sites(self.mode.sites, self.encoded.batch, self.layout.length)
        if self.wants("attention", "attention_output"):
            tracked["attention_output"] = [site.output for site in self.mode.sites]
        if self.wants("hidden") or (self.wants("token", "position") and self.is_image):
            tracked["hidden"], self.steps = find_blocks(self.mode)
            refuse_odd_states(tracked["hidden"], self.encoded.batch, self.layout.length)
        # Positions come in below the first block, and relevance must get there.
        if self.wants("input", "token", "position"):
            if self.mode.leaf is None:
                raise UnsupportedModel(
                    "The explained input was not found: there is no floating-point input and no embedding of token ids."
                )
            tracked["input"] = [self.mode.leaf]
        return tracked

    def keep_values(self, answer: ExplainedAnswer) -> None:
        """What the forward itself computed."""
        self.hold("mask", self.layout.mask)
        self.hold("special", self.layout.special)
        if "fingerprint" in self.keep:
            self.hold("fingerprint", self.encoded.fingerprints())
        if "readout" in self.keep:
            self.hold("readout", compute_readout(self.model, self.run, self.layout, answer))
        sites = [detach_site_output(site) for site in self.mode.sites]
        for name in self.keep & SITE_READERS.keys():
            self.hold(name, LazyLayers([partial(SITE_READERS[name], site) for site in sites]))
        if STREAM_SITES & self.keep:
            self.keep_stream()
        if "hidden" in self.keep:
            self.hold("hidden", [to_canonical_axes(t.detach(), trace_of(t)) for t in self.tracked["hidden"]])
        if "input" in self.keep:
            leaf = self.tracked["input"][0]
            words = leaf.detach() if self.mode.words is None else self.mode.words
            self.hold("input", to_canonical_axes(words, trace_of(leaf)))

    def keep_stream(self) -> None:
        """What the halves of each block add to the state. A block of another build is refused when it is asked for."""
        found: list[Branch | UnsupportedModel] = []
        try:
            refuse_odd_sites(self.mode.sites, self.encoded.batch, self.layout.length)
            states, _ = find_blocks(self.mode)
            refuse_odd_states(states, self.encoded.batch, self.layout.length)
        except UnsupportedModel as error:
            found = [error.with_traceback(None)] * len(self.mode.sites)
        else:
            turned = [axis_order_of(state, trace_of(state)) == "turned" for state in states]
            tape = self.mode.tape or []
            for layer, site in enumerate(self.mode.sites):
                found.append(try_find_branch(site, states[layer], states[layer + 1], tape, turned[layer]))
        for name in STREAM_SITES & self.keep:
            self.hold(name, LazyLayers([partial(read_branch, branch, name) for branch in found]))

    def find_answer_parts(self, targets: tuple[Target, ...]) -> Tensor | UnsupportedModel:
        try:
            states, _ = find_blocks(self.mode)
            refuse_odd_states(states, self.encoded.batch, self.layout.length)
            turned = axis_order_of(states[0], trace_of(states[0])) == "turned"
            return compute_answer_parts(self.mode.tape or [], states[0], turned, self.run.output, targets)
        except (UnsupportedModel, UnknownOperation) as error:
            return UnsupportedModel(str(error))

    def keep_backward(self, found: Mapping[str, list[Tensor]], recipe: Recipe | None) -> None:
        """What a backward pass brought: gradients, or relevance under a recipe."""
        suffix = "_grad" if recipe is None else "_relevance"
        sites = self.mode.sites
        outputs = [site.split_heads(t) for site, t in zip(sites, found.get("attention_output", ()), strict=False)]
        if f"attention{suffix}" in self.keep:
            make = compute_attention_grad if recipe is None else partial(compute_attention_relevance, recipe)
            made = [partial(make, detach_site_output(site), t) for site, t in zip(sites, outputs, strict=True)]
            self.hold(f"attention{suffix}", LazyLayers(made), recipe)
        if f"attention_output{suffix}" in self.keep:
            self.hold(f"attention_output{suffix}", outputs, recipe)
        for name in ("hidden", "input"):
            if f"{name}{suffix}" in self.keep:
                arrived = [self.amount(name, layer, t, recipe) for layer, t in enumerate(found[name])]
                self.hold(f"{name}{suffix}", arrived if name == "hidden" else arrived[0], recipe)

    def amount(self, site: str, layer: int, arrived: Tensor, recipe: Recipe | None) -> Tensor:
        """The gradient or relevance at a tracked tensor; a recipe that sends slopes has to be multiplied by it."""
        if recipe is not None and recipe.sends == "slope":
            arrived = attach_trace(arrived * self.tracked[site][layer].detach(), trace_of(arrived))
        return to_canonical_axes(arrived, trace_of(arrived))

    def keep_places(self, found: Mapping[str, list[Tensor]], placed: PlacedRelevance, recipe: Recipe) -> None:
        """How relevance is divided between tokens and their positions, wherever positions come in."""
        if not self.keep & POSITIONAL_SITES or recipe.sends != "slope":
            return
        positions = [amount for (_, what), amount in sorted(placed.items()) if what == "position"]
        tokens = [amount for (_, what), amount in sorted(placed.items()) if what == "token"]
        if not self.is_image:
            leaf, slope = self.tracked["input"][0].detach(), found["input"][0]
            words = leaf if self.mode.words is None else self.mode.words
            own, added = (to_canonical_axes(slope * part, trace_of(slope)).sum(-1) for part in (words, leaf - words))
            tokens, positions = [own], [added, *positions] if bool(added.any()) else positions
        if not tokens:
            tokens = [self.amount("hidden", 0, found["hidden"][0], recipe).sum(-1)]
        self.hold("token_relevance", self.align_to_tokens(tokens[0]), recipe)
        self.hold("position_relevance", [self.align_to_tokens(amount) for amount in positions], recipe)

    def align_to_tokens(self, amount: Tensor) -> Tensor:
        """[batch token], also where some tokens that are no patch (CLS, registers) join after positions were added."""
        patches, length = self.layout.patches or (), self.layout.length
        if amount.size(1) == length:
            return amount
        others = [place for place in range(length) if place not in patches]
        early = others[: max(amount.size(1) - len(patches), 0)]
        if not patches or len(early) + len(patches) != amount.size(1):
            raise UnsupportedModel(
                f"Positions come in at {amount.size(1)} places, but attention is over {length} tokens, and which place "
                "belongs to which token is not known. Use attnlrp."
            )
        whole = amount.new_zeros(amount.size(0), length)
        whole[:, [*early, *patches] if patches[0] > 0 else [*patches, *early]] = amount
        return whole

    def hold(self, name: str, value: Any, recipe: Recipe | None = None) -> None:
        self.held[name, recipe] = value


# --- backward passes -------------------------------------------------------------------------------------------------


def run_backward(score: Tensor, tracked: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    """What arrives at each tracked tensor; zero where nothing does."""
    flat = [tensor for group in tracked.values() for tensor in group]
    for name, group in tracked.items():
        for layer, tensor in enumerate(group):
            if not tensor.requires_grad:
                raise UnsupportedModel(
                    f"{name} {layer} does not depend on the explained input, or was computed without its gradient (a "
                    "decoder with an input of its own, gradient checkpointing). Methods that need it cannot be used."
                )
    try:
        found = torch.autograd.grad(score.sum(), flat, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "checkpoint" not in str(error):
            raise
        raise UnsupportedModel(
            "The model computes parts of itself again in the backward pass (gradient checkpointing), where they cannot "
            "be seen. Switch that off; it changes no number."
        ) from None
    filled = iter(
        [attach_trace(torch.zeros_like(t) if g is None else g, trace_of(t)) for t, g in zip(flat, found, strict=True)]
    )
    return {name: [next(filled) for _ in group] for name, group in tracked.items()}


def run_relevance_pass(
    answer: ExplainedAnswer, tracked: Mapping[str, list[Tensor]], switch: Switch, recipe: Recipe, track_absorbed: bool
) -> tuple[dict[str, list[Tensor]], tuple[AbsorbedRelevance, ...], PlacedRelevance]:
    """A backward pass under a recipe, what was absorbed on the way, and what tokens and positions got where they meet.

    Of a contrast the two sides are sent back one after the other and subtracted: rules share out in proportion to a
    total, and that of a difference would be zero.
    """
    switch.recipe, switch.absorbed = recipe, {} if track_absorbed else None
    try:
        found = run_checked_backward(answer.target, tracked, switch)
        noted, placed = switch.absorbed or {}, switch.placed or {}
        if answer.versus is not None:
            switch.absorbed, switch.placed = {} if track_absorbed else None, None if switch.placed is None else {}
            against = run_checked_backward(answer.versus, tracked, switch)
            # Not in place: where relevance passes unchanged, two tracked tensors are given the same one.
            found = {
                name: [attach_trace(a - b, trace_of(a)) for a, b in zip(found[name], against[name], strict=True)]
                for name in found
            }
            for mine, theirs in ((noted, switch.absorbed or {}), (placed, switch.placed or {})):
                for key, amount in theirs.items():
                    mine[key] = mine.get(key, 0) - amount
        taken = tuple(AbsorbedRelevance(what, step, amount) for (step, what), amount in sorted(noted.items()))
        return found, taken, placed
    finally:
        switch.recipe, switch.absorbed, switch.placed, switch.is_strict = None, None, None, False


def run_checked_backward(score: Tensor, tracked: Mapping[str, list[Tensor]], switch: Switch) -> dict[str, list[Tensor]]:
    found = run_backward(score, tracked)
    if not all(bool(t.isfinite().all()) for group in found.values() for t in group):
        switch.is_strict = True  # once more, and the first operation that spoils it says so
        run_backward(score, tracked)
    return found


# --- sites -----------------------------------------------------------------------------------------------------------


def detach_site_output(site: AttentionSite) -> AttentionSite:
    """The site with its output off the graph and its heads apart."""
    return replace(site, output=site.split_heads(site.output.detach()))


def compute_attention_grad(site: AttentionSite, output_grad: Tensor) -> Tensor:
    return output_grad @ site.value.mT


def compute_attention_relevance(recipe: Recipe, site: AttentionSite, output_relevance: Tensor) -> Tensor:
    return compute_attention_share(site.attention(), site.value, site.output, output_relevance, recipe)


def require_operand(site: AttentionSite, which: str) -> Tensor:
    found = getattr(site, which)
    if found is None:
        raise UnsupportedModel(f"{site.place} computes its attention in pieces, so that its {which} was not seen.")
    return found


SITE_READERS: dict[str, Callable[[AttentionSite], Tensor]] = {
    "attention": AttentionSite.attention,
    "value": lambda site: site.value,
    "attention_output": lambda site: site.output,
    "query": partial(require_operand, which="query"),
    "key": partial(require_operand, which="key"),
}


STREAM_SITES = {"projected", "residual", "middle", "update", "norms"}


def try_find_branch(
    site: AttentionSite, entered: Tensor, left: Tensor, tape: OperationTape, turned: bool
) -> Branch | UnsupportedModel:
    try:
        return find_branch(site, entered, left, tape, turned)
    except UnsupportedModel as error:
        return error.with_traceback(None)  # which would keep the graph alive


def read_branch(found: Branch | UnsupportedModel, which: str) -> Any:
    if isinstance(found, UnsupportedModel):
        raise UnsupportedModel(str(found))
    return getattr(found, which)


def refuse_odd_sites(sites: list[AttentionSite], batch: int, length: int) -> None:
    """Methods on attention need the same tokens at every layer."""
    for site in sites:
        if site.odd:
            raise UnsupportedModel(
                f"Attention in {site.place} is not self-attention over one sequence: {site.odd}. That is not supported "
                "yet by methods that need attention."
            )
        shape = (site.value.size(0), site.output.size(-2), site.value.size(-2))
        if shape != (batch, length, length):
            raise UnsupportedModel(
                f"Attention in {site.place} covers {shape[1]} x {shape[2]} tokens in a batch of {shape[0]}, the last "
                f"one {length} x {length} in a batch of {batch}: windows, cross-attention and changing lengths are not "
                "supported yet by methods that need attention. Others, such as gradient_x_input and lrp, work."
            )


def refuse_odd_states(states: list[Tensor], batch: int, length: int) -> None:
    """Methods on hidden states need the same tokens at every boundary."""
    for layer, state in enumerate(states):
        shape = tuple(to_canonical_axes(state.detach(), trace_of(state)).shape)
        if len(shape) != 3 or shape[:2] != (batch, length):
            raise UnsupportedModel(
                f"The hidden states at boundary {layer} have the shape {list(shape)}; the attention has {length} "
                f"tokens in a batch of {batch}. Models whose tokens change on the way are not supported yet by methods "
                "that need hidden states."
            )
