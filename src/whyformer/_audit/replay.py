r"""The model again, from one attention on.

A batch goes through the model once. What every module answered before the chosen attention is kept, and when the same
examples are run again with other weights there, those modules hand out what they answered before instead of computing
it: of a permutation at block 3 of 6 only the second half of the model is paid for, and all permutations of all examples
go through it side by side.

    replay = Replay(model, encoded, blocks=[3])
    replay.attention[3]                                         [example head query key]
    replay.answers({3: other}, of)                              [row class]: row i is example of[i] with other[i]

Whether a module's answer can be handed out again (it may keep a state, or mix examples) is tried before it is relied
on: the replay must give the model's own answers, else the whole model is run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.forward import Run, run_forward
from whyformer._engine.intervene import Intervention
from whyformer._engine.layout import Layout, axis_of, lay_out
from whyformer._engine.layout import compute_readout as readout_of
from whyformer._engine.perturb import pick_examples
from whyformer._engine.target import Target, choose_target, probabilities_of, read_logits
from whyformer._engine.tracing import provenance
from whyformer._engine.tracing.provenance import attach_trace, trace_of
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer.errors import WhyformerError

MAX_TOKENS = {"cpu": 4_096, "cuda": 131_072}  # tokens sent through the model at once
MAX_WEIGHTS = {"cpu": 2**24, "cuda": 2**28}  # attention weights held at once
MASKED_GAP = 5_000.0  # a score so far below the best of its row was masked: implementations add -1e4, -1e9 or -inf
COMPUTED = object()  # this call of a module is made


@dataclass
class ReplayedCall:
    """One call of a module of the twin, while it runs or once it has answered."""

    path: str
    serial: int
    answer: Any = None
    sites: list[int] = field(default_factory=list)  # attention reached inside it
    done: list["ReplayedCall"] = field(default_factory=list)  # calls made by it that have answered


@dataclass(frozen=True)
class EarlierAnswers:
    """What had been answered when an attention was reached."""

    answers: Mapping[
        str, list[Any]
    ]  # by module: what each call that is still made gives, in order; REAL where computed
    reached: tuple[int, ...]  # the attention that a run with these answers still comes to, in order


class CallTape:
    """Follows the calls of a forward, and keeps what was answered before each of the chosen sites."""

    def __init__(self, sites: Sequence[int]) -> None:
        self.chosen = set(sites)
        self.before: dict[int, EarlierAnswers] = {}
        self.root = ReplayedCall("", -1)
        self.open = [self.root]
        self.serial = self.site = 0

    def watch(self, twin: nn.Module) -> None:
        def hooks(path: str, module: nn.Module) -> None:
            module.register_forward_pre_hook(lambda *_: self.enter(path))
            module.register_forward_hook(lambda module, _, answer: self.leave(answer))

        for path, module in twin.named_modules():
            hooks(path, module)

    def enter(self, path: str) -> None:
        self.open.append(ReplayedCall(path, self.serial))
        self.serial += 1

    def leave(self, answer: Any) -> None:
        call = self.open.pop()
        with torch._C.DisableTorchFunction():  # the mode is on in hooks
            call.answer, call.done = detach_answer(answer), []
        self.open[-1].done.append(call)

    def reach(self) -> None:
        """An attention is about to be used."""
        if self.site in self.chosen:
            done = [call for outer in self.open for call in outer.done]
            skipped = {site for call in done for site in call.sites}
            answers: dict[str, list[Any]] = {}
            for call in sorted([*done, *self.open[1:]], key=lambda call: call.serial):
                answers.setdefault(call.path, []).append(COMPUTED if call in self.open else call.answer)
            again = tuple(site for site in range(self.site) if site not in skipped)
            self.before[self.site] = EarlierAnswers(answers, again)
        for call in self.open:
            call.sites.append(self.site)
        self.site += 1


def detach_answer(answer: Any) -> Any:
    """The same structure with its tensors detached; labels, and whether they depend on the input, are kept."""
    return map_answer(
        answer, lambda tensor: attach_trace(tensor.detach(), replace(trace_of(tensor), carries=tensor.requires_grad))
    )


def map_answer(answer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's answer with each of its tensors changed."""
    if isinstance(answer, Tensor):
        return change(answer)
    if type(answer) in (list, tuple):
        return type(answer)(map_answer(one, change) for one in answer)
    if isinstance(answer, Mapping):
        return type(answer)(**{name: map_answer(one, change) for name, one in answer.items()})
    return answer


class AttentionReplay:
    """A batch of examples, the attention the model pays in it, and its answers with other attention."""

    def __init__(self, model: Model, encoded: EncodedBatch, blocks: Sequence[int] = ()) -> None:
        self.model, self.encoded, self.batch = model, encoded, encoded.batch
        self.notes: list[str] = []
        self._tape = CallTape(blocks)
        self._attention: dict[int, Tensor] = {}
        self._allowed: dict[int, Tensor] = {}
        # Two rows at least: of one alone it cannot be seen which axis of a tensor is the batch.
        self._run_batch = encoded if encoded.batch > 1 else pick_examples(encoded, torch.tensor([0, 0]))
        self._first_run()

    def _first_run(self) -> None:
        with run_forward(
            self.model,
            self._run_batch,
            asks_gradient=True,
            intervention=Intervention(scores=self._keep_allowed, attention=self._keep_attention),
            prepare=self._tape.watch,
        ) as run:
            self.layout: Layout = drop_doubled_row(lay_out(run, self._run_batch), self.batch)
            answer, targets = choose_target(self.model, self._run_batch, run.output, None, None)
            self._logits = read_logits(self._run_batch, run.output)[0].detach()
            self.targets: tuple[Target, ...] = targets[: self.batch]
            self.readout = self._readout(run, answer)
            self._reach = list(self._find_reached(run))

    # --- what was seen ------------------------------------------------------------------------------------------------

    @property
    def logits(self) -> Tensor:
        """[example class], of the model as it is."""
        return self._logits[: self.batch]

    @cached_property
    def probabilities(self) -> Tensor:
        return self.as_probabilities(self.logits)

    def as_probabilities(self, logits: Tensor) -> Tensor:
        """[row class]; the logits themselves where the model answers with a number."""
        found = probabilities_of(self.model.module, logits)
        return logits if found is None else found

    @property
    def blocks(self) -> int:
        return len(self._attention)

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(self._attention[block].size(1) for block in range(self.blocks))

    @cached_property
    def attention(self) -> list[Tensor]:
        """For each block [example head query key]."""
        return [self._attention[block][: self.batch] for block in range(self.blocks)]

    def is_plain(self, block: int) -> bool:
        """One row of this attention an example, over all its tokens, for each of them or for one query."""
        rows, _, queries, keys = self._attention[block].shape
        return rows == self._run_batch.batch and keys == self.layout.length and queries in (1, keys)

    @cached_property
    def allowed(self) -> list[Tensor]:
        """For each block [example head query key]: the query may attend to the key; no mask forbids it."""
        return [self._allowed[block][: self.batch] for block in range(self.blocks)]

    @cached_property
    def reach(self) -> list[Tensor]:
        """For each block [example query]: the answer depends on what this query collects."""
        return [reach[: self.batch] for reach in self._reach]

    def _keep_allowed(self, _: int, scores: Tensor) -> None:
        best = scores.detach().amax(-1, keepdim=True)
        self._allowed[len(self._allowed)] = scores.detach() > best - MASKED_GAP

    def _keep_attention(self, _: int, attention: Tensor) -> None:
        self._attention[len(self._attention)] = attention.detach()
        self._tape.reach()

    def _readout(self, run: Run, answer: Any) -> Tensor | None:
        """[example token]: how much of the answer is read at each token; None where that cannot be seen."""
        try:
            doubled = replace(self.layout, mask=expand_rows(self.layout.mask, self._run_batch.batch))
            return readout_of(self.model, run, doubled, answer)[: self.batch]
        except WhyformerError:
            return None

    def _find_reached(self, run: Run) -> Iterator[Tensor]:
        """Queries whose output the answer depends on: its gradient is not zero there."""
        logits = read_logits(self._run_batch, run.output)[0]
        mixed = (logits * torch.linspace(1, 2, logits.size(1), dtype=logits.dtype, device=logits.device)).sum()
        outputs = [site.output for site in run.mode.sites]
        found = torch.autograd.grad(mixed, outputs, allow_unused=True) if mixed.requires_grad else [None] * len(outputs)
        for site, gradient in zip(run.mode.sites, found, strict=True):
            apart = site.split_heads(torch.ones_like(site.output) if gradient is None else gradient)
            reached = (apart != 0).any(-1).any(1)
            if reached.shape == (self._run_batch.batch, self.layout.length):
                reached = reached & expand_rows(self.layout.mask, len(reached))
            yield torch.where(reached.any(-1, keepdim=True), reached, torch.ones_like(reached))

    # --- the model again ----------------------------------------------------------------------------------------------

    def rows_at_once(self, block: int) -> int:
        """How many variants go through the model at a time."""
        _, heads, queries, keys = self._attention[block].shape
        kind = self.model.device.type
        tokens, cells = MAX_TOKENS.get(kind, MAX_TOKENS["cpu"]), MAX_WEIGHTS.get(kind, MAX_WEIGHTS["cpu"])
        return max(1, min(tokens // max(queries, keys), cells // (heads * queries * keys)))

    def answers(self, weights: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        """The logits [row class] when row i is example of[i] with the attention weights[block][i]."""
        first = min(weights)
        if not self._can_replay(first):
            return self._pass(of, lambda block, _: weights.get(block), None, gradient)
        before = self._tape.before[first]
        reached = (*before.reached, *range(first, self.blocks))
        return self._pass(of, lambda i, _: weights.get(reached[i]), before, gradient)

    def _pass(
        self, of: Tensor, change: Callable[[int, Tensor], Tensor | None], before: EarlierAnswers | None, gradient: bool
    ) -> Tensor:
        chosen = pick_examples(self._run_batch, of.cpu())
        with run_forward(
            self.model,
            chosen,
            asks_gradient=gradient,
            intervention=Intervention(attention=change),
            prepare=None if before is None else lambda twin: replay_answers(twin, before, of, self._run_batch.batch),
        ) as run:
            return read_logits(chosen, run.output)[0]

    def _can_replay(self, block: int) -> bool:
        if block not in self._tape.before:
            return False
        if block not in self._tried:
            self._tried[block] = self._gives_the_same(block)
        return self._tried[block]

    @cached_property
    def _tried(self) -> dict[int, bool]:
        return {}

    def _gives_the_same(self, block: int) -> bool:
        """Try the replay, in reverse order, with nothing changed."""
        of = torch.arange(self._run_batch.batch).flip(0)
        try:
            found = self._pass(of, lambda *_: None, self._tape.before[block], False)
        except (WhyformerError, RuntimeError, IndexError, TypeError, ValueError, AttributeError, KeyError):
            found = None
        own = self._logits[of.to(self._logits.device)]
        tolerance = 1e-4 if own.dtype == torch.float32 else 1e-8 if own.dtype == torch.float64 else 1e-2
        fits = found is not None and found.shape == own.shape
        if found is not None and fits and bool(((found - own).abs() <= tolerance * (1 + own.abs().amax())).all()):
            return True
        self.notes.append(f"What comes before block {block} could not be handed out again, so the whole model was run.")
        return False


def drop_doubled_row(layout: Layout, batch: int) -> Layout:
    """The layout of the examples alone, where one was run twice."""
    return replace(layout, mask=layout.mask[:batch], special=layout.special[:batch], tokens=layout.tokens[:batch])


def expand_rows(tensor: Tensor, rows: int) -> Tensor:
    return tensor if len(tensor) == rows else tensor.expand(rows, *tensor.shape[1:])


def replay_answers(twin: nn.Module, before: EarlierAnswers, of: Tensor, batch: int) -> None:
    """Let the modules of a twin answer as they did before, for the examples `of`."""
    for path, module in twin.named_modules():
        if path in before.answers:
            module.forward = make_replaying_forward(module.forward, before.answers[path], of, batch)  # type: ignore[method-assign]


def make_replaying_forward(
    compute: Callable[..., Any], answers: list[Any], of: Tensor, batch: int
) -> Callable[..., Any]:
    left = iter(answers)

    def forward(*args: Any, **kwargs: Any) -> Any:
        answer = next(left, COMPUTED)
        if answer is COMPUTED:
            return compute(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return map_answer(answer, lambda tensor: select_example_rows(tensor, of, batch))

    return forward


def select_example_rows(tensor: Tensor, of: Tensor, batch: int) -> Tensor:
    """The rows of a batch that belong to these examples, labels with them."""
    trace = trace_of(tensor)
    axis = axis_of(trace.samples)
    if axis is None and trace.samples is None and trace.carries:  # where labels were lost, as in an LSTM
        axis = next((axis for axis in range(tensor.dim()) if tensor.size(axis) == batch), None)
    if axis is None or tensor.size(axis) != batch:
        return tensor
    rows = select_keeping_strides(tensor, axis, of.to(tensor.device))
    samples = provenance.label_axis(axis, len(of), rows.dim(), rows.device) if trace.samples is not None else None
    return attach_trace(rows, replace(trace, samples=samples, words=None, read=None, root=None, carries=False))


def select_keeping_strides(tensor: Tensor, axis: int, rows: Tensor) -> Tensor:
    """`index_select` that leaves the axes in memory as they lie: kernels round otherwise when they lie otherwise."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda a: -strides[a])
    back = [order.index(a) for a in range(tensor.dim())]
    return tensor.permute(order).index_select(order.index(axis), rows).permute(back)
