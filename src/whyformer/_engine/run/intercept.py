"""The function mode: sees every operation of a forward, finds attention sites, attaches rules.

It is active during the forward of a shadow and is thread-local. For every torch function it computes the labels of the
result (follow.py), detects attention sites (attention.py) and, if relevance is asked for, attaches a rule to the
operation (dispatch.py). A tensor depends on the explained input exactly if it requires a gradient, since the shadow's
weights do not.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer._engine.relevance.calls import OperationCall
from whyformer._engine.relevance.dispatch import CallBuilder, needs_no_rule
from whyformer._engine.relevance.node import RuleNode, Switch, attach_factors
from whyformer._engine.run.cut_graph import CUTTING_OPERATIONS, Ignored, is_in_checkpoint
from whyformer._engine.run.graph import mark_without_rule, refuse_missing_gradient
from whyformer._engine.run.intervene import Intervention, apply_intervention, refuse_other_batch
from whyformer._engine.run.model_memory import RunAgain, learnt
from whyformer._engine.run.model_writes import WriteGuard
from whyformer._engine.run.token_mixing import note_mixing
from whyformer._engine.run.unseen_functions import find_known_function, is_result_of_own_function
from whyformer._engine.tracing import operations, provenance
from whyformer._engine.tracing.attention import AttentionSite, find_site, reorder_attention_product
from whyformer._engine.tracing.composites import (
    COMPOSITE_OPERATIONS,
    chooses_weights,
    multi_head_attention,
    spell_out_einsum,
    starts_constant,
)
from whyformer._engine.tracing.follow import Follower, extends_embedding_sum
from whyformer._engine.tracing.frames import Frames
from whyformer._engine.tracing.fused_attention import (
    FLEX_ATTENTION,
    is_asked_by_flex_attention,
    prepare_fused_call,
    write_out_flex_attention,
)
from whyformer._engine.tracing.in_place import InPlaceWrites, compute_written, locate, spread_written
from whyformer._engine.tracing.masks import follow_masks, keep_before_masking, keep_scores, read_scores
from whyformer._engine.tracing.operations import Argument, Operation, find_tensors
from whyformer._engine.tracing.placement import SiteTokens
from whyformer._engine.tracing.provenance import Trace, attach_trace, is_embedding_sum, trace_of
from whyformer._engine.tracing.softmax import divide_before_product
from whyformer._engine.tracing.stitching import stitch, stitch_sum
from whyformer._engine.tracing.tiles import current_setting
from whyformer._engine.tracing.token_numbers import TokenNumbers
from whyformer._plain.private_torch import top_saving_hooks, without_interception
from whyformer.errors import UnknownOperation, UnsupportedModel


@dataclass
class ModuleCall:
    """One call of one module: its input, its output and the attention sites in it."""

    path: str
    number: int
    input: Tensor | None = None
    input_step: int = 0
    output: Tensor | None = None
    output_step: int = 0
    sites: list[int] = field(default_factory=list)  # their numbers


STREAM_KINDS = {
    **dict.fromkeys(operations.ADDITIONS, "add"),
    **dict.fromkeys(operations.NORMS, "norm"),
    **dict.fromkeys(operations.MULTIPLICATIONS, "scale"),
}
SITES = operations.PRODUCTS | {operations.FUSED_ATTENTION}


@dataclass(frozen=True)
class StreamStep:
    """An addition of two states, or a norm or a multiple of one: a step of the residual stream (blocks.py)."""

    step: int
    kind: str  # "add", "norm" or "scale"
    operands: tuple[Tensor, ...]
    result: Tensor


@dataclass(kw_only=True, eq=False, repr=False)
class Intercept(TorchFunctionMode):
    """One run. `leaf` is the tensor where the explained input enters the graph, once it is known."""

    batch: int
    originals: dict[int, str]  # id and name of each weight of the model itself
    switch: Switch | None
    needs_gradient: bool
    differentiates: bool = True  # not if only the values of a run are looked at
    guard: WriteGuard | None = None
    frames: Frames | None = None
    intervention: Intervention | None = None
    starting_at: Tensor | None = None  # replaces the sum of embeddings as the leaf
    keeps_tape: bool = False  # of all operations and their results
    keeps_scores: bool = False
    first_grid: tuple[int, int] | None = (
        None  # the patches, if layers do not all have the same tokens (token_numbers.py)
    )
    joins_images: bool = False  # what does not depend on the words, a vision tower, computes a part of the input
    ignored: Ignored = Ignored.NOTHING  # of what cuts the graph
    streams: tuple[int, ...] = ()  # source and prefix: their lengths, if an encoder and a decoder embed one each

    embedded: Tensor | None = None  # the label of the embedded ids: a model may pad them first
    embedded_ids: Tensor | None = None  # the ids themselves, and how many there may be
    vocabulary: int = 0
    sites: list[AttentionSite] = field(default_factory=list)
    site_count: int = 0
    stream: list[StreamStep] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    open_calls: list[ModuleCall] = field(default_factory=list)
    is_switched_off: bool = False  # gradients, at an attention
    leaf: Tensor | None = None
    last_state: Tensor | None = None  # the newest result with a vector for each token
    answer: Tensor | None = None  # what the model returned, once it has
    entered: Tensor | None = None  # the copy of the leaf that the model computes with
    moves_tokens: bool = False  # whole, before the first block (order.py): what looks like mixing there is a move
    words: Tensor | None = None  # the part of the leaf that comes from token ids
    reads_marks: bool = False  # comparisons of the input are codes
    settles_early: bool = False  # the embedding itself is the explained input, before anything is added to it
    embeddings: int = 0  # of the ids, so far
    embedded_width: int = 0  # of the first table that embeds ids
    second_embedding: str = ""  # the module that uses embeddings of the same tokens beside the explained ones
    codes: list[Tensor] = field(default_factory=list)  # states that depend on the input without a slope
    later: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)  # leaf and words of the streams after it
    step: int = 0
    heads: int = 0  # of the current nn.MultiheadAttention call; 0 outside one
    made_uncut: dict[int, tuple[Tensor, Any, Tensor]] = field(default_factory=dict)  # a result, its node, a view of it
    written: InPlaceWrites = field(default_factory=InPlaceWrites)  # what the model would have written into its tensors
    has_joined: bool = False  # something was computed of states of several examples
    reads_joined: bool = False  # ... and read as a number of Python, which may decide what the model does
    maps_examples: bool = False  # `torch.vmap` over the batch: each example has attention of its own
    mixers: int = 0  # a hash of the operations that may mix tokens without attention; 0 if there were none
    products: int = 0  # of states
    denominators: list[Tensor] = field(default_factory=list)  # of attention, where a sink scales its output by them
    known_mixing: dict[Hashable, bool] | None = None  # what token_mixing.py has found

    def __post_init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Operation, Any]] | None = [] if self.keeps_tape else None
        self.follower = Follower(self.batch, None if self.first_grid is None else TokenNumbers(self.first_grid))
        self.needs_gradient = self.needs_gradient or self.switch is not None
        change = self.intervention
        self.follows_masks = change is not None and change.unmasked is not None
        self.keeps_scores |= self.follows_masks or (change is not None and change.scores is not None)

    # --- module calls ------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Of the module that is running."""
        return (self.open_calls[-1].path if self.open_calls else "") or "the model"

    def enter(self, path: str, given: Tensor | None) -> None:
        """Called when the forward of a module starts."""
        given = self.find_current(given) if self.written or self.made_uncut else given
        call = ModuleCall(path, len(self.calls), given, self.step)
        self.calls.append(call)
        self.open_calls.append(call)

    def leave(self, result: Tensor | None) -> None:
        """Called when the forward of a module ends."""
        call = self.open_calls.pop()
        result = self.find_current(result) if self.written or self.made_uncut else result
        call.output, call.output_step = result, self.step

    def find_current(self, value: Any) -> Any:
        """A tensor as the model goes on with it: with its graph, and with what was written into it."""
        value = self.undo_cut(value) if self.made_uncut else value
        return self.resolve(value) if self.written else value

    def release(self) -> None:
        """Free the graph."""
        self.sites, self.calls, self.open_calls, self.stream = [], [], [], []
        self.tape, self.denominators, self.made_uncut = None, [], {}
        self.written = InPlaceWrites()
        self.leaf = self.entered = self.words = self.answer = self.last_state = None
        self.later, self.codes = [], []

    @property
    def leaves(self) -> list[Tensor]:
        """The explained input: one tensor, or that of each stream."""
        return [] if self.leaf is None else [self.leaf, *(leaf for leaf, _ in self.later)]

    @property
    def leaf_words(self) -> list[Tensor]:
        """For each of these, the part that comes from token ids."""
        pairs = [(self.leaf, self.words), *self.later]
        return [leaf.detach() if words is None else words for leaf, words in pairs if leaf is not None]

    # --- the mode ----------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Argument], types: Sequence[type], args: tuple[Argument, ...] = (), kwargs: Any = None
    ) -> Argument:
        name = operations.name_of(func)
        if name in operations.QUERIES and id(args[0]) not in self.originals:
            return func(*args, **(kwargs or {}))
        if name == "requires_grad" and is_asked_by_flex_attention():
            return False  # on a CPU it refuses tensors with a gradient, but here its kernel does not run
        operation = Operation(name, func, args, kwargs or {})
        if top_saving_hooks(False) is not None and self.needs_gradient and is_in_checkpoint():
            with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
                return self.run_uncut(operation)
        return self.run_uncut(operation) if self.ignored else self.intercept(operation)

    def run_uncut(self, operation: Operation) -> Argument:
        """Run an operation with a graph wherever one is to be kept, even if the model switches that off."""
        if not self.ignored:
            return self.intercept(operation)
        if self.made_uncut:
            operation = operation.map_arguments(self.undo_cut)
        if operation.name in CUTTING_OPERATIONS and self.ignored is Ignored.DETACHED:
            operation = Operation("alias", torch.ops.aten.alias, operation.args[:1], {})
        if torch.is_grad_enabled():
            return self.intercept(operation)
        with torch.inference_mode(False), torch.enable_grad():
            result = self.intercept(operation)
            for tensor in find_tensors([result]):  # an autograd function around it gives its results another graph
                if tensor.requires_grad and not tensor.is_leaf:
                    uncut = tensor.view_as(tensor)
                    uncut.__dict__.update(tensor.__dict__)
                    self.made_uncut[id(tensor)] = (tensor, tensor.grad_fn, uncut)
            return result

    def undo_cut(self, value: Any) -> Any:
        """A tensor that an autograd function around the operation that made it has given another graph."""
        made = self.made_uncut.get(id(value)) if isinstance(value, Tensor) else None
        return value if made is None or value.grad_fn is made[1] else made[2]

    def undo_cuts(self) -> None:
        """At the end of the forward: what was noted before an autograd function around it returned."""
        for call in self.calls:
            call.input, call.output = self.undo_cut(call.input), self.undo_cut(call.output)
        for site in self.sites:
            site.output = self.undo_cut(site.output)
        self.stream = [
            replace(step, operands=tuple(map(self.undo_cut, step.operands)), result=self.undo_cut(step.result))
            for step in self.stream
        ]

    def intercept(self, operation: Operation) -> Argument:
        """Run an operation, attach its rule, and take from it what is asked for."""
        if self.switch is not None and any(is_result_of_own_function(t) for t in operation.given):
            operation = operation.map_arguments(self.recognise)
        if operation.is_in_place and self.must_run_out_of_place(operation):
            self.step += 1
            return self.run_out_of_place(operation)
        if self.written and not self.written.is_reading:
            operation = self.resolve_arguments(operation)
        if not operation.given:
            return operation.run()
        if operation.name == "einsum":
            operation = spell_out_einsum(operation)
        self.step += 1
        if operation.name == FLEX_ATTENTION:
            with self:
                return write_out_flex_attention(operation)
        uses_original = any(id(tensor) in self.originals for tensor in operation.given)
        if uses_original or operations.hides_attention(operation.name):
            self.refuse_unseen(operation)
        if operation.name == "multi_head_attention_forward":
            return self.run_multi_head(operation)
        if self.switch is not None and operation.name in COMPOSITE_OPERATIONS and operation.dependent:
            with self:
                composed = COMPOSITE_OPERATIONS[operation.name](operation)
            if composed is not None:
                return composed
        if self.needs_gradient and any(is_embedding_sum(t) for t in operation.given):
            operation = self.settle_input(operation)
            operation = operation.map_arguments(self.resolve) if self.written else operation
            if operation.is_in_place and self.must_run_out_of_place(operation):
                return self.run_out_of_place(operation)
        reordered = reorder_attention_product(operation) or divide_before_product(operation)
        if reordered is not None:
            with self:
                return reordered()
        if self.guard is not None and operation.is_in_place:
            self.guard.check(operation)
        if self.codes and operation.name in operations.MULTIPLICATIONS:
            operation = self.hold_sign(operation)
        if self.follows_masks:
            keep_before_masking(operation)
        result = self.run_fused(operation) if operation.name == operations.FUSED_ATTENTION else operation.run()
        if self.needs_gradient and self.differentiates:
            refuse_missing_gradient(operation, result, self.path)
        moves_ids = any(trace_of(tensor).is_ids for tensor in operation.given[1:])
        if operation.is_in_place and trace_of(operation.args[0]).is_ids and not moves_ids:
            attach_trace(operation.args[0], provenance.change_trace(trace_of(operation.args[0]), is_recoded=True))
        if any(result is tensor for tensor in operation.given):
            return result  # a cast to the same type, dropout outside training
        if self.intervention is not None:
            return self.finish_with_intervention(operation, result, self.intervention)
        return self.finish(operation, result)

    def recognise(self, value: Any) -> Any:
        """The result of an autograd function of the model's own, computed by the operation that it is."""
        if not isinstance(value, Tensor) or not is_result_of_own_function(value):
            return value
        if not hasattr(value, "_whyformer_recognised"):
            with without_interception():
                found = find_known_function(value)
            made = value
            if found is not None:
                with torch.enable_grad(), self:
                    made = found()
            value._whyformer_recognised = made  # type: ignore[attr-defined]
        return value._whyformer_recognised  # type: ignore[attr-defined]

    def finish_with_intervention(self, operation: Operation, result: Argument, intervention: Intervention) -> Argument:
        """As `finish`; if the operation is an attention site, the intervention is applied first."""
        site = find_site(operation, result, self.path) if isinstance(result, Tensor) else None
        if site is None or self.is_before_input(operation):
            return self.finish(operation, result)
        self.unfold(site)
        refuse_other_batch(site, self.batch)
        site.scores, unmasked = read_scores(operation.given[0])
        new = apply_intervention(intervention, self.find_epoch(site) - 1, site, unmasked)
        made = self.finish(operation, result if new is None else new.output)
        if new is not None:
            kept = self.sites[-1]
            first, count = kept.first_key, kept.value.size(-2)  # keys that belong to no token are left out
            kept.weights = new.attention.detach().narrow(-1, first, count)
            kept.value = new.value.detach().narrow(-2, first, count)
        return made

    def finish(self, operation: Operation, result: Argument) -> Argument:
        """Label the result, attach a rule, and record it if it is an attention site."""
        traces = self.follower.follow(operation, result)
        self.mark_joined(operation, result)
        if any(trace_of(t).depends for t in operation.given) or any(t.words is not None for t in traces):
            traces = [provenance.change_trace(trace, depends=True) for trace in traces]
        self.embeddings += bool(traces) and traces[0].words is not None and operation.name in operations.EMBEDDINGS
        if not self.sites and traces:
            self.note_input(operation, result, traces)
        if self.switch is not None:
            result = self.attach_rule(operation, result, traces)
        if isinstance(result, Tensor) and self.reads_codes(operation, result):
            self.codes.append(result := result.detach().requires_grad_())
            result._whyformer_is_sign = operation.name in ("sign", "sgn")  # type: ignore[attr-defined]
        results = find_tensors([result]) if traces else ()
        for tensor, trace in zip(results, traces, strict=True):
            attach_trace(tensor, trace)
        if self.tape is not None and any(True for _ in find_tensors([result])):
            self.tape.append((operation, result))
        note_mixing(self, operation, result)
        if not isinstance(result, Tensor):
            return result
        self.note_stream(operation, result)
        if self.follows_masks:
            follow_masks(operation, result)
        if self.keeps_scores:
            keep_scores(operation, result)
        is_numbered = self.follower.numbers is not None  # then attentions of one layer are joined in the end
        if operation.name in operations.CONCATENATIONS and len(self.sites) > 1 and not is_numbered:
            self.stitch_sites(stitch(operation, result, self.sites), result)
        elif operation.name in operations.ADDITIONS and all(trace_of(t).output_of for t in operation.given):
            self.stitch_sites(stitch_sum(operation, result, self.sites), result)
        if self.is_before_input(operation):
            return result
        if operation.name in SITES and (site := find_site(operation, result, self.path)) is not None:
            if site.weights is not None:
                site.scores, _ = read_scores(operation.given[0])
            self.add_site(site.detach())
        return result

    def mark_joined(self, operation: Operation, result: Argument) -> None:
        """Mark what is computed of states of several examples, and all that is computed of it."""
        is_new, self.follower.joins_rows = self.follower.joins_rows, False
        self.has_joined |= is_new
        if is_new or (self.has_joined and any(is_joined(tensor) for tensor in operation.given)):
            self.reads_joined |= isinstance(result, bool | int | float)
            for tensor in find_tensors([result]):
                tensor._whyformer_is_joined = True  # type: ignore[attr-defined]

    def reads_codes(self, operation: Operation, result: Tensor) -> bool:
        """Whether numbers of the input become states without a slope: codes that are embedded, steps of a rounding.

        What is computed from such states depends on the input, so it has gradients and relevance as all else.
        """
        if self.sites or not self.needs_gradient or not self.differentiates:
            return False
        is_mark = self.reads_marks and all(t.dtype == torch.bool for t in operation.given)
        if is_mark and result.is_floating_point():
            return any(trace_of(t).depends for t in operation.given)
        if operation.name not in operations.STEPS or not result.is_floating_point():
            return False
        if result.requires_grad and result.grad_fn is None:
            return False
        slopeless = [t for t in operation.given if not t.is_floating_point() or operation.name in operations.ROUNDINGS]
        if operation.name not in operations.ROUNDINGS and chooses_weights(result, slopeless):
            return False
        return any(trace_of(t).depends and t.dtype != torch.bool for t in slopeless)

    def hold_sign(self, operation: Operation) -> Operation:
        """The operation with a sign held constant where it multiplies what has a slope: |x| that gets its sign back."""
        signs = [t for t in operation.dependent if getattr(t, "_whyformer_is_sign", False)]
        if not signs or len(operation.dependent) == len(signs):
            return operation
        self.codes = [code for code in self.codes if all(code is not sign for sign in signs)]
        held = {id(sign): attach_trace(sign.detach(), trace_of(sign)) for sign in signs}
        return operation.map_arguments(lambda value: held.get(id(value), value))

    def is_before_input(self, operation: Operation) -> bool:
        """Whether an operation belongs to the vision tower whose features become a part of the explained input."""
        return self.joins_images and not any(trace_of(tensor).depends for tensor in operation.given)

    def note_stream(self, operation: Operation, result: Tensor) -> None:
        """Keep additions of two states, norms, and products with a constant: the residual stream consists of them."""
        result._whyformer_step = self.step  # type: ignore[attr-defined]
        kind = STREAM_KINDS.get(operation.name)
        is_alone = result.dim() == 2 and provenance.axis_of(trace_of(result).tokens) == 0  # of one example
        if result.dim() != 3 and not is_alone:
            return
        self.last_state = result if trace_of(result).tokens is not None else self.last_state
        if kind is None:
            return
        states = tuple(tensor for tensor in operation.given if trace_of(tensor).depends)
        if len(states) == (2 if kind == "add" else 1) and all(state.shape == result.shape for state in states):
            self.stream.append(StreamStep(self.step, kind, states, result))

    @property
    def may_mix(self) -> bool:
        """Whether tokens may have been mixed without attention; attention that is not fused has two products."""
        return bool(self.mixers) or self.products > 2 * sum(site.query is None for site in self.sites)

    def note_input(self, operation: Operation, result: Argument, traces: list[Trace]) -> None:
        """Before the first attention: how a signal is cut into tokens, and where the ids are embedded."""
        if self.frames is not None:
            traces[0] = self.frames.note(operation, result, traces[0])
        elif traces[0].words is not None and self.embedded is None:
            self.embedded = traces[0].tokens
            self.embedded_width = result.size(-1) if isinstance(result, Tensor) else 0
            self.embedded_ids = next((t for t in operation.given if not t.is_floating_point()), None)
            self.vocabulary = next((t.size(0) for t in operation.given if t.is_floating_point()), 0)
            if trace_of(operation.given[0]).is_one_hot:
                self.vocabulary = operation.given[0].size(-1)

    def refuse_unseen(self, operation: Operation) -> None:
        """Refuse weights of the model itself, and kernels that hide their attention."""
        for tensor in operation.given:
            if id(tensor) in self.originals:
                raise UnsupportedModel(
                    f"{self.path} used the weight {self.originals[id(tensor)]!r} of the model itself, not of its "
                    "shadow: a function that a module keeps holds the weight or another module. Make the function a "
                    "method, and what it uses an attribute of the module."
                )
        raise UnsupportedModel(
            f"{self.path} calls {operation.name}, a kernel that does not expose its attention. "
            'Load the model with attn_implementation="sdpa" or "eager".'
        )

    def run_multi_head(self, operation: Operation) -> Argument:
        """nn.MultiheadAttention, run operation by operation."""
        before, self.heads = self.heads, operation.argument(4, "num_heads", default=0)
        try:
            with self:
                return multi_head_attention(*operation.args, **operation.kwargs)
        finally:
            self.heads = before

    def run_fused(self, operation: Operation) -> Tensor:
        """Fused attention in memory linear in the number of tokens, prepared for relevance by its own gradient."""
        running = prepare_fused_call(operation, current_setting.get())
        if self.switch is None or not operation.dependent:
            return running.run()
        running, factors = attach_factors(running, self.switch)
        result = running.run()
        result._whyformer_factors = factors
        return result

    # --- where the input enters --------------------------------------------------------------------------------------

    def settle_input(self, operation: Operation) -> Operation:
        """Adding constants extends a sum of embeddings; any other use makes it the explained input."""
        if not operation.is_in_place:
            result, given = operation.run(), operation.given
            returns_tensor = any(True for _ in find_tensors([result]))  # size() and the like do not
            extends = (
                not self.settles_early
                and extends_embedding_sum(operation)
                and not any(hasattr(t, "_whyformer_leaf") for t in given)
            )
            if not returns_tensor or any(result is t for t in given) or extends or self.counts_placeholders(operation):
                return operation
        return operation.map_arguments(lambda value: self.make_leaf(value) if is_embedding_sum(value) else value)

    def counts_placeholders(self, operation: Operation) -> bool:
        """Whether only the shape of a sum is used, before features take the place of placeholders in it."""
        if operation.name == "expand_as":
            return not is_embedding_sum(operation.given[0])
        is_mask = operation.name == "getitem" and getattr(operation.args[1], "dtype", None) == torch.bool
        return self.joins_images and is_mask

    def make_leaf(self, tensor: Tensor) -> Tensor:
        """The explained input, created on first use. The model gets a copy, which it may change in place."""
        entered = getattr(tensor, "_whyformer_leaf", None)
        if entered is None:
            is_later_table = self.leaf is None and tensor.size(-1) != self.embedded_width > 0
            if len(self.leaves) >= max(len(self.streams), 1) or (is_later_table and not self.streams):
                return self.hold_second_embedding(tensor)
            trace = replace(trace_of(tensor), words=None)
            words = trace_of(tensor).words
            start = tensor if self.starting_at is None else self.choose_start(self.starting_at).to(tensor)
            leaf = attach_trace(start.detach().clone().requires_grad_(), trace)
            with torch.enable_grad():  # the model may first use it under no_grad, and later outside
                entered = attach_trace(leaf.clone(), trace)
            tensor._whyformer_leaf = entered  # type: ignore[attr-defined]
            if self.leaf is None:
                self.leaf, self.words, self.entered = leaf, words, entered
            else:
                self.later.append((leaf, words))
        return entered

    def hold_second_embedding(self, tensor: Tensor) -> Tensor:
        """Embeddings of the same tokens beside the explained ones, for each layer, say: constant, and noted."""
        ids = self.embedded_ids
        if self.embeddings == 1 and not self.streams and not self.settles_early and self.guard is not None:
            learnt(self.guard.module).settles_early = True
            raise RunAgain
        if self.streams or ids is None or tensor.shape[: ids.dim()] != ids.shape:
            raise UnsupportedModel(
                f"{self.path} takes a second sequence of embeddings, of other tokens. Only one can be explained; "
                "models with a decoder that has its own input are supported if it is named as in transformers."
            )
        self.second_embedding = self.path
        constant: Tensor = attach_trace(tensor.detach(), replace(trace_of(tensor), words=None, depends=False))
        tensor._whyformer_leaf = constant  # type: ignore[attr-defined]
        return constant

    def choose_start(self, whole: Tensor) -> Tensor:
        """What replaces the next sum of embeddings: all that was given, or the part of the stream."""
        return whole.split(self.streams, 1)[len(self.leaves)] if self.streams else whole

    # --- operations that write into their operand ---------------------------------------------------------------------

    def must_run_out_of_place(self, operation: Operation) -> bool:
        """Whether a write must not happen: rules do not follow it, or the tensor is not the one that holds the values.

        Elsewhere autograd follows writes itself. A residual (`h += x`) never happens in place, as the captured hidden
        states would change with it.
        """
        target = operation.args[0] if operation.args else None
        if not isinstance(target, Tensor):
            return False
        is_residual = operation.name in operations.IN_PLACE and trace_of(target).samples is not None
        follows_rules = self.switch is not None and bool(operation.dependent)
        return is_residual or follows_rules or self.written.covers(target)

    def run_out_of_place(self, operation: Operation) -> Tensor | None:
        """`h += x`, `h[i] = x` and the like out of place. From here on, whoever uses h gets the new values."""
        is_item = operation.name == "setitem"
        operation = self.resolve_rest(operation)
        target, *rest = operation.args
        with without_interception():
            offsets = locate(target)[rest[0]] if is_item else locate(target)
        with self:
            self.written.merge_writes(target)
            new: Tensor | None
            if is_item:
                new = spread_written(rest[1], target, offsets)
            else:
                new = compute_written(operation, self.written.read(target, self.path))
        if new is target:  # dropout outside training
            return target
        if new is None:
            raise UnknownOperation(
                f"{self.path} changes a tensor in place with {operation.name}; relevance cannot be propagated through "
                "that. Write it as an assignment, or use a method without relevance."
            )
        with without_interception():
            self.written.note(target, offsets, new, is_private=is_item)
        return None if is_item else new

    def resolve_rest(self, operation: Operation) -> Operation:
        """The operation on the memory of its first argument, and on what was written into the others."""
        with without_interception():
            first = self.written.follow_moves(operation.args[0], self.path)
        rest = replace(operation, args=operation.args[1:]).map_arguments(self.resolve)
        return replace(rest, args=(first, *rest.args))

    def resolve_arguments(self, operation: Operation) -> Operation:
        """The operation on what was written into its arguments. A view shows the memory itself, so that later writes
        reach it."""
        if operation.name in operations.VIEWS and operation.args and self.written.covers(operation.args[0]):
            view = self.resolve_rest(operation)
            address = view.args[0].untyped_storage().data_ptr()
            if all(made.untyped_storage().data_ptr() == address for made in find_tensors([view.run()])):
                return view
        return operation.map_arguments(self.resolve)

    def resolve(self, value: Any) -> Any:
        """A tensor with what was written into it; other values unchanged."""
        if not isinstance(value, Tensor) or not self.written.covers(value):
            return value
        with self:
            return self.written.read(value, self.path)

    # --- rules -------------------------------------------------------------------------------------------------------

    def attach_rule(self, operation: Operation, result: Argument, traces: list[Trace]) -> Argument:
        """The result with its rule beside it, if it depends on the explained input."""
        results = list(find_tensors([result]))
        if not any(r.requires_grad for r in results):
            return result
        is_exponent = operation.name in ("exp", "logsumexp")
        is_constant = is_exponent and bool(traces) and starts_constant(operation, traces[0])
        if is_constant or all(trace_of(t).is_detached for t in operation.dependent):
            traces[:] = [replace(trace, is_detached=True) for trace in traces]
            self.note_constant(operation)
            return result
        kind = "add" if operation.name in operations.ADDITIONS else operation.name
        for tensor in operation.given:  # a residual branches off where one of several uses is an addition
            if (consumers := getattr(tensor, "_whyformer_consumers", None)) is not None:
                consumers.append(kind)
        if needs_no_rule(operation) and isinstance(result, Tensor | list | tuple):
            return result
        described = None
        if isinstance(result, Tensor):
            attach_trace(result, traces[0])
            described = CallBuilder(operation, result, batch=self.batch, step=self.step, place=self.path).build()
        if described is None:
            mark_without_rule(operation, results, self.path)
            return result
        call, operands = described
        self.note_rule(operation, call, operands)
        made = RuleNode.apply(self.switch, call, result, *operands)
        made._whyformer_consumers = call.consumers
        return made

    def note_rule(self, operation: Operation, call: OperationCall, operands: list[Tensor]) -> None:
        """Called for each operation that gets a rule; plan/backward_plan.py learns from it."""

    def note_constant(self, operation: Operation) -> None:
        """Called for each operation whose result is constant in a relevance pass."""

    # --- sites -------------------------------------------------------------------------------------------------------

    def add_site(self, site: AttentionSite) -> None:
        """Record an attention site and renumber the tokens of its output."""
        output = site.output
        before = trace_of(output)
        if self.needs_gradient and before.depends and not torch.is_grad_enabled():
            self.is_switched_off = True
        self.site_count += 1
        site.rows, site.number, site.epoch, site.step = before, self.site_count, self.find_epoch(site), self.step
        if self.follower.numbers is not None:
            self.place_site(site, self.follower.numbers)
            return
        label = site.keys.tokens if before.tokens is None else before.tokens
        if not self.sites and label is not None and self.follower.grids:
            self.follower.settle_grid(len(label[label >= 0].unique()))
        self.unfold(site)
        if (first := site.find_token_keys()) is not None:
            site.leave_out_keys(first, site.queries)
        if self.streams:
            site.first_positions = self.find_streams(before, site.keys)
        site.obstacle = "" if site.first_positions is not None else site.find_obstacle()
        site.enclosing = tuple(call.number for call in self.open_calls)
        for call in self.open_calls:
            call.sites.append(site.number)
        self.sites.append(site)
        trace = Trace(samples=before.samples, epoch=site.epoch, depends=before.depends, output_of=site.number)
        has_tokens = before.tokens is not None and bool((before.tokens >= 0).any())  # and no learned queries
        if site.is_pooling and not has_tokens:
            read = site.read_tokens(self.follower.length) if self.reads_tokens(site) else None
            attach_trace(output, replace(trace, read=read, output_of=None))
            return
        self.follower.length = sum(self.streams) or site.queries
        tokens = self.follower.labels.label_axis(output.dim() - 2, output.size(-2), output.dim(), output.device)
        if site.first_positions is not None and site.first_positions[0]:
            tokens = tokens + site.first_positions[0]
        attach_trace(output, replace(trace, tokens=tokens))

    def place_site(self, site: AttentionSite, numbers: TokenNumbers) -> None:
        """Record a site with the numbers of its tokens, which its output keeps."""
        output, rows, label = site.output, site.rows, site.keys.tokens
        if label is not None and (label.size(-1) > 1 or label.size(-2) == 1 < site.value.size(-2)):
            return  # its keys are channels
        if site.is_asked and rows.tokens is None:
            new = numbers.add(output.size(-2), output.device)
            site.rows = rows = replace(rows, tokens=new.view(*[1] * (output.dim() - 2), -1, 1))
        tokens = SiteTokens.read(output, site.value, rows, site.keys)
        if tokens is not None and site.value.dim() == 3 and not self.heads:
            heads, site.folds_heads = tokens.count_folded_heads()
            site.batch_axis = 1 if site.folds_heads == "heads first" else 0
            site.unfold(heads)
        else:
            self.unfold(site)
        if tokens is not None:
            site.tokens = tokens.unfold(site.folds_heads, site.value.size(1), site.batch_axis)
        site.enclosing = tuple(call.number for call in self.open_calls)
        for call in self.open_calls:
            call.sites.append(site.number)
        self.sites.append(site)
        self.follower.length = numbers.length
        trace = Trace(rows.samples, rows.tokens, site.epoch, depends=rows.depends, output_of=site.number)
        attach_trace(output, trace)

    def find_streams(self, queries: Trace, keys: Trace) -> tuple[int, int] | None:
        """Where the streams of the queries and of the keys begin in the joined sequence; None if that is not known."""
        starts = list(accumulate(self.streams, initial=0))
        found = []
        for label in (queries.tokens, keys.tokens):
            if label is None or int(label.max()) >= starts[-1] or int(label.min()) < 0:
                return None
            found.append(max(start for start in starts[:-1] if start <= int(label.min())))
        return found[0], found[1]

    def find_epoch(self, site: AttentionSite) -> int:
        """The number of the layer. A site that reads the same states as the one before belongs to the same layer."""
        if not self.sites:
            return 1
        last, keys = self.sites[-1], site.keys
        is_beside = keys.tokens is not None and keys.epoch < last.epoch and keys.epoch == last.keys.epoch
        return last.epoch if is_beside else last.epoch + 1

    def stitch_sites(self, made: AttentionSite | None, result: Tensor) -> None:
        """If the outputs of several sites are joined here, they become one site."""
        if made is None:
            return
        self.site_count += 1
        made.number, made.step = self.site_count, self.step
        made.enclosing = tuple(call.number for call in self.open_calls)
        gone = {part.number for part in made.parts}
        first = next(i for i, site in enumerate(self.sites) if site.number in gone)
        self.sites = [site for site in self.sites if site.number not in gone]
        self.sites.insert(first, made)
        for call in self.open_calls:
            call.sites = [number for number in call.sites if number not in gone] + [made.number]
        if made.joins == "sum":
            attach_trace(result, replace(trace_of(result), output_of=made.number))
            return
        self.follower.length = made.queries
        axis = next(a for a in range(result.dim()) if made.has_tokens_at(a))
        tokens = self.follower.labels.label_axis(axis, made.queries, result.dim(), result.device)
        old = trace_of(result)
        attach_trace(result, Trace(old.samples, tokens, made.epoch, depends=old.depends, output_of=made.number))

    def unfold(self, site: AttentionSite) -> None:
        """Separate the heads of a site from its examples; a model may put its heads first."""
        if site.value.dim() == 3:
            heads, site.folds_heads = self.count_folded_heads(site.keys, site.output)
            site.batch_axis = 1 if site.folds_heads == "heads first" else 0
            site.unfold(self.heads or heads)
            return
        sizes, axis = site.output.shape[:-2], provenance.axis_of(site.keys.samples)
        if axis is None or axis >= len(sizes):
            axis = 1 if self.batch == 1 and len(sizes) == 2 and sizes[0] > 1 == sizes[1] else 0
        site.batch_axis = axis
        site.unfold(0)

    def count_folded_heads(self, trace: Trace, output: Tensor) -> tuple[int, str]:
        """How many heads of each example are folded into the batch axis, and in which order; 0 if not known."""
        rows = output.size(0)
        if output.dim() != 3 or trace.tokens is None or trace.tokens.size(0) > 1 or rows % self.batch:
            return 0, "batch first"
        of = trace.samples.flatten().long() if trace.samples is not None else None
        examples, heads = torch.arange(self.batch, device=output.device), rows // self.batch
        if self.batch == 1 or (of is not None and torch.equal(of, examples.repeat_interleave(heads))):
            return heads, "batch first"
        if of is not None and torch.equal(of, examples.repeat(heads)):
            return heads, "heads first"
        return 0, "batch first"

    def reads_tokens(self, site: AttentionSite) -> bool:
        """The keys of a pooling site are tokens of the attention before it, all or some, each once; perhaps others."""
        label, length = site.keys.tokens, self.follower.length
        if label is None or label.numel() != site.value.size(-2) or site.keys.epoch == 0:
            return False
        if site.value.size(0) != self.batch:
            return False
        known = label[label >= 0]
        return bool((known < length).all()) and len(known.unique()) == len(known) > 0


def is_joined(tensor: Tensor) -> bool:
    """Whether states of several examples were joined on the way to this tensor."""
    return getattr(tensor, "_whyformer_is_joined", False)
