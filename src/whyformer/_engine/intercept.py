"""The function mode: sees every operation of a forward, finds attention sites, applies rules.

It is entered around the forward of a shadow and is thread-local. For every torch function it follows the labels
(follow.py), notices sites (attention.py), and, if relevance is asked for, puts a rule beside the operation
(dispatch.py). A tensor *carries* if it depends on the explained input, which is to say: if it requires a gradient,
since the shadow's weights do not.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer._engine.intervene import Intervention, apply_intervention
from whyformer._engine.relevance.dispatch import CallBuilder, needs_no_rule
from whyformer._engine.relevance.node import RuleNode, Switch
from whyformer._engine.tracing import operations, provenance
from whyformer._engine.tracing.attention import (
    AttentionSite,
    find_live_plain_site,
    find_oddity,
    find_plain_site,
    read_fused_site,
    read_live_fused_site,
    reorder_attention_product,
)
from whyformer._engine.tracing.follow import Follower, extends_embedding_sum
from whyformer._engine.tracing.operations import Operation, find_tensors
from whyformer._engine.tracing.provenance import Trace, attach_trace, is_embedding_sum, trace_of
from whyformer.errors import UnknownOperation, UnsupportedModel


@dataclass
class ModuleCall:
    """One call of one module: what went in, what came out, which sites it held."""

    path: str
    number: int
    entered: Tensor | None = None
    entered_at: int = 0
    left: Tensor | None = None
    left_at: int = 0
    sites: list[int] = field(default_factory=list)


def is_in_place_write(operation: Operation) -> bool:
    name = operation.name
    is_marked = name.endswith("_") and name not in operations.HARMLESS
    return name == "setitem" or bool(operation.kwargs.get("inplace")) or is_marked


def is_in_place_activation(operation: Operation) -> bool:
    is_asked = operation.name in operations.ACTIVATIONS and bool(operation.kwargs.get("inplace"))
    return is_asked and bool(operation.carrying) and trace_of(operation.args[0]).samples is not None


def copy_without_overrides(function: Callable[..., Any]) -> Callable[..., Any]:
    """`F.multi_head_attention_forward` with globals in which nothing is overridden, so that the mode sees what it does.

    Under a mode that function hands itself over as one opaque call; changing the module's globals would reach other
    threads.
    """
    plain = {**function.__globals__, "has_torch_function": lambda tensors: False}
    copy = types.FunctionType(function.__code__, plain, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


multi_head_attention = copy_without_overrides(F.multi_head_attention_forward)


class InPlaceWrites:
    """Which entries of which memory the model has written into, in its own eyes: we did it out of place."""

    def __init__(self) -> None:
        self.entries: dict[int, Tensor] = {}  # address -> [entry] bool; the tensors in `sent_on` keep the memory alive

    def note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        marks = self.entries.setdefault(storage.data_ptr(), torch.zeros(size, dtype=torch.bool, device=tensor.device))
        view_marks_as(tensor, marks).fill_(True)

    def __contains__(self, tensor: Tensor) -> bool:
        if not self.entries:
            return False
        with torch._C.DisableTorchFunction():  # also asked from hooks, where the mode is on
            marks = self.entries.get(tensor.untyped_storage().data_ptr())
            return marks is not None and bool(view_marks_as(tensor, marks).any())


def view_marks_as(tensor: Tensor, marks: Tensor) -> Tensor:
    return marks.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class Intercept(TorchFunctionMode):
    """One run. `leaf` is the tensor where the explained input enters, once it is known."""

    def __init__(
        self,
        *,
        batch: int,
        originals: dict[int, str],
        switch: Switch | None,
        needs_gradient: bool,
        intervention: Intervention | None = None,
        starting_at: Tensor | None = None,
        keeps_tape: bool = False,
    ) -> None:
        super().__init__()
        self.tape: list[tuple[Operation, Any]] | None = [] if keeps_tape else None  # every operation and its result
        self.intervention = intervention
        self.starting_at = starting_at  # what the leaf is to be instead of the sum of embeddings
        self.batch = batch
        self.originals = originals
        self.switch = switch
        self.needs_gradient = needs_gradient or switch is not None
        self.follower = Follower(batch)
        self.sites: list[AttentionSite] = []
        self.calls: list[ModuleCall] = []
        self.open_calls: list[ModuleCall] = []
        self.leaf: Tensor | None = None
        self.words: Tensor | None = None  # of the leaf, the part that comes from token ids
        self.step = 0
        self.heads = 0  # of the nn.MultiheadAttention call under way
        self.written = InPlaceWrites()
        self.replaced_tensors: list[
            Tensor
        ] = []  # tensors that were changed in place, each pointing at what stands for it now

    # --- where we are ------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return (self.open_calls[-1].path if self.open_calls else "") or "the model"

    def enter(self, path: str, entered: Tensor | None) -> None:
        call = ModuleCall(path, len(self.calls), self.current(entered), self.step)
        self.calls.append(call)
        self.open_calls.append(call)

    def leave(self, left: Tensor | None) -> None:
        call = self.open_calls.pop()
        call.left, call.left_at = self.current(left), self.step

    def forget(self) -> None:
        """Let go of the graph. A tensor that points at its successor would keep itself alive through the graph."""
        for old in self.replaced_tensors:
            del old._whyformer_moved  # type: ignore[attr-defined]
        self.sites, self.calls, self.open_calls, self.replaced_tensors = [], [], [], []
        self.tape = None
        self.written = InPlaceWrites()
        self.leaf = self.words = None

    # --- the mode ----------------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = Operation(operations.name_of(func), func, args, kwargs or {})
        if self.replaced_tensors:
            operation = operation.map_arguments(self.current)
        if not operation.given:
            return operation.run()
        self.step += 1
        self.refuse_unseen(operation)
        if operation.name == "multi_head_attention_forward":
            return self.run_multi_head(operation)
        if operation.name in operations.IN_PLACE and trace_of(operation.args[0]).samples is not None:
            return self.run_out_of_place(operation)
        if self.switch is not None and is_in_place_activation(operation):
            return self.run_out_of_place(operation)
        if self.switch is not None and operation.name in COMPOSITE_OPERATIONS and operation.carrying:
            return COMPOSITE_OPERATIONS[operation.name](self, operation)
        if self.needs_gradient and any(is_embedding_sum(t) for t in operation.given):
            operation = self.settle_input(operation)
        if (turned := reorder_attention_product(operation)) is not None:
            with self:
                return turned()
        self.refuse_writing(operation)
        result = operation.run()
        if any(result is tensor for tensor in operation.given):
            return result  # a cast to the type it has, dropout outside training
        if self.intervention is not None:
            return self.finish_changed(operation, result, self.intervention)
        return self.finish(operation, result)

    def finish_changed(self, operation: Operation, result: Any, intervention: Intervention) -> Any:
        """As `finish`, with an intervention at what is a site."""
        is_fused = operation.name == operations.FUSED_ATTENTION
        site = read_live_fused_site(operation, result, self.place) if is_fused else None
        if operation.name in operations.PRODUCTS:
            site = find_live_plain_site(operation, result, self.place)
        if site is None:
            made = self.finish(operation, result)
            if intervention.scores is not None and isinstance(made, Tensor) and trace_of(made).is_attention:
                given = operation.given[0]
                is_softmax = operation.name in operations.SOFTMAXES
                seen = given if is_softmax else getattr(given, "_whyformer_scores", None)
                made._whyformer_scores = seen  # type: ignore[attr-defined]
            return made
        site.unfold(self.heads or self.folded(site.keys, site.output))
        scores = None if is_fused else getattr(operation.given[0], "_whyformer_scores", None)
        new = apply_intervention(intervention, len(self.sites), site, scores)
        made = self.finish(operation, result if new is None else new.output)
        if new is not None:
            self.sites[-1].weights, self.sites[-1].value = new.attention.detach(), new.value.detach()
        return made

    def finish(self, operation: Operation, result: Any) -> Any:
        """Label the result, put a rule beside it, and record it if it is a site."""
        traces = self.follower.follow(operation, result)
        if any(trace_of(t).carries for t in operation.given) or any(t.words is not None for t in traces):
            traces = [provenance.mark_carrying(trace) for trace in traces]
        if self.switch is not None:
            result = self.attach_rule(operation, result, traces)
        results = [result] if isinstance(result, Tensor) else list(find_tensors(result)) if traces else []
        for tensor, trace in zip(results, traces, strict=True):
            attach_trace(tensor, trace)
        if self.tape is not None and (isinstance(result, Tensor) or any(True for _ in find_tensors([result]))):
            self.tape.append((operation, result))
        if operation.name == operations.FUSED_ATTENTION:
            self.add(read_fused_site(operation, result, self.place))
        elif (
            operation.name in operations.PRODUCTS
            and (site := find_plain_site(operation, result, self.place)) is not None
        ):
            self.add(site)
        return result

    def refuse_unseen(self, operation: Operation) -> None:
        for tensor in operation.given:
            if id(tensor) in self.originals:
                raise UnsupportedModel(
                    f"{self.place} reached the weight {self.originals[id(tensor)]!r} of the model itself, not of its "
                    "shadow: some module keeps a function or another module where it cannot be followed (hooks of "
                    "accelerate's device_map do). Load the model without it."
                )
        if operations.hides_attention(operation.name):
            raise UnsupportedModel(
                f"{self.place} calls {operation.name}, a kernel that hides its attention. "
                'Load the model with attn_implementation="sdpa" or "eager".'
            )

    def run_multi_head(self, operation: Operation) -> Any:
        """nn.MultiheadAttention, looked into."""
        before, self.heads = self.heads, operation.argument(4, "num_heads", default=0)
        try:
            with self:
                return multi_head_attention(*operation.args, **operation.kwargs)
        finally:
            self.heads = before

    def split_glu(self, operation: Operation) -> Any:
        """`glu` as the product it is."""
        x, axis = operation.argument(0, "input"), operation.argument(1, "dim", default=-1)
        with self:
            kept, gate = x.chunk(2, axis)
            return kept * torch.sigmoid(gate)

    def split_lerp(self, operation: Operation) -> Any:
        """`lerp` as the sum it is."""
        start, end = operation.argument(0, "input"), operation.argument(1, "end")
        weight = operation.argument(2, "weight")
        with self:
            return start * (1 - weight) + end * weight

    def split_addmm(self, operation: Operation) -> Any:
        """`addmm` and `baddbmm` as the product and the addition they are."""
        names = ("mat1", "mat2") if operation.name == "addmm" else ("batch1", "batch2")
        added = operation.argument(0, "input")
        first, second = (operation.argument(place, name) for place, name in enumerate(names, 1))
        alpha, beta = (operation.kwargs.get(name, 1) for name in ("alpha", "beta"))
        with self:
            if operation.name == "addmm" and not second.requires_grad and alpha == beta == 1 and added.dim() == 1:
                return F.linear(first, second.t(), added)
            product = torch.matmul(first, second)
            product = product * alpha if alpha != 1 else product
            if beta == 0:  # torch ignores what is added then, also NaN in it
                return product
            return product + (added * beta if beta != 1 else added)

    # --- where the input enters --------------------------------------------------------------------------------------

    def settle_input(self, operation: Operation) -> Operation:
        """Adding constants keeps a sum of embeddings open; any other use of it makes it the explained input."""
        if is_in_place_write(operation):
            return operation.map_arguments(lambda value: self.as_leaf(value) if is_embedding_sum(value) else value)
        result = operation.run()
        is_question = not any(True for _ in find_tensors([result]))  # size() and the like
        if is_question or any(result is t for t in operation.given) or extends_embedding_sum(operation):
            return operation
        return operation.map_arguments(lambda value: self.as_leaf(value) if is_embedding_sum(value) else value)

    def as_leaf(self, tensor: Tensor) -> Tensor:
        """The explained input, made on first use. The copy handed to the model may be changed in place; the leaf may
        not."""
        entered = getattr(tensor, "_whyformer_leaf", None)
        if entered is None:
            if self.leaf is not None:
                raise UnsupportedModel(
                    f"{self.place} takes in a second sequence of embeddings. One input can be explained; models with "
                    "an encoder and a decoder are not supported yet."
                )
            trace = replace(trace_of(tensor), words=None)
            self.words = trace_of(tensor).words
            started = tensor if self.starting_at is None else self.starting_at.to(tensor)
            self.leaf = attach_trace(started.detach().clone().requires_grad_(), trace)
            entered = attach_trace(self.leaf.clone(), trace)
            tensor._whyformer_leaf = entered  # type: ignore[attr-defined]
        return entered

    # --- operations that write into their operand ---------------------------------------------------------------------

    def run_out_of_place(self, operation: Operation) -> Tensor:
        """`h += x` done out of place. Whoever holds the old h is sent to the new one from here on."""
        old = operation.args[0]
        function = (
            getattr(torch, operations.IN_PLACE[operation.name]) if operation.name in operations.IN_PLACE else None
        )
        kept = {name: value for name, value in operation.kwargs.items() if name != "inplace"}
        with self:
            new = (function or operation.function)(*operation.args, **kept)
        old._whyformer_moved = new
        self.replaced_tensors.append(old)
        self.written.note(old)
        return new

    def current(self, value: Any) -> Any:
        """The tensor that stands for this one now."""
        if not isinstance(value, Tensor):
            return value
        while (moved := getattr(value, "_whyformer_moved", None)) is not None:
            value = moved
        if value in self.written:
            raise UnknownOperation(
                f"{self.place} uses a tensor again after one of its views was changed in place. "
                "Write it as an assignment (x = x + y)."
            )
        return value

    def refuse_writing(self, operation: Operation) -> None:
        name = operation.name
        if self.switch is not None and is_in_place_write(operation) and operation.carrying:
            raise UnknownOperation(
                f"{self.place} changes a tensor in place with {name}, and relevance cannot be followed through that. "
                "Write it as an assignment, or use a method without relevance."
            )

    # --- rules -------------------------------------------------------------------------------------------------------

    def attach_rule(self, operation: Operation, result: Any, traces: list[Trace]) -> Any:
        """The result with its rule beside it, if it carries."""
        results = list(find_tensors([result]))
        if not any(r.requires_grad for r in results):
            return result
        self.count_uses(operation)
        if needs_no_rule(operation) and isinstance(result, Tensor | list | tuple):
            return result
        described = None
        if isinstance(result, Tensor):
            attach_trace(result, traces[0])
            described = CallBuilder(operation, result, batch=self.batch, step=self.step, place=self.place).build()
        if described is None:
            raise UnknownOperation(
                f"No relevance rule for {operation.name}, called in {self.place}. Use a method without relevance "
                "(rollout, generic_attention, attcat, gradient_x_input, ...)."
            )
        call, operands = described
        carried = RuleNode.apply(self.switch, call, result, *operands)
        carried._whyformer_call = call
        return carried

    def count_uses(self, operation: Operation) -> None:
        """Note at each operand's own node what it went into: a residual branches off where one of several uses is an
        addition."""
        kind = "add" if operation.name in operations.ADDITIONS else operation.name
        for tensor in operation.given:
            if (call := getattr(tensor, "_whyformer_call", None)) is not None:
                call.consumers.append(kind)

    # --- sites -------------------------------------------------------------------------------------------------------

    def add(self, site: AttentionSite) -> None:
        site.enclosing = tuple(call.number for call in self.open_calls)
        for call in self.open_calls:
            call.sites.append(len(self.sites))
        self.sites.append(site)
        output = site.output
        before = trace_of(output)
        site.odd = find_oddity(before, site.keys, len(self.sites) - 1)
        self.follower.length = output.size(-2)
        tokens = provenance.label_axis(output.dim() - 2, output.size(-2), output.dim(), output.device)
        attach_trace(
            output, Trace(samples=before.samples, tokens=tokens, epoch=len(self.sites), carries=before.carries)
        )
        site.unfold(self.heads or self.folded(site.keys, output))

    def folded(self, trace: Trace, output: Tensor) -> int:
        """How many heads lie folded into the batch, head after head of each example; 0 if that cannot be seen."""
        rows = output.size(0)
        if output.dim() != 3 or trace.tokens is None or trace.tokens.size(0) > 1 or rows % self.batch:
            return 0
        of = trace.samples.flatten() if trace.samples is not None else None
        wanted = torch.arange(self.batch, device=output.device).repeat_interleave(rows // self.batch)
        matches = self.batch == 1 or (of is not None and torch.equal(of.long(), wanted))
        return rows // self.batch if matches else 0


COMPOSITE_OPERATIONS: dict[str, Callable[[Intercept, Operation], Any]] = {
    "addmm": Intercept.split_addmm,
    "baddbmm": Intercept.split_addmm,
    "glu": Intercept.split_glu,
    "lerp": Intercept.split_lerp,
}
