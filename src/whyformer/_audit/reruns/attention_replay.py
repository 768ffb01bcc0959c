r"""Reruns of a model with other attention weights, starting at the replaced attention.

A batch goes through the model once, and the output of every module before the chosen attention is kept. When the same
examples are run again with other weights there, those modules return the kept output instead of computing it: a
permutation at block 3 of 6 costs only the second half of the model, and all permutations of all examples go through
it in one batch.

    replay = AttentionReplay(model, encoded, blocks=[3])
    replay.attention[3]                                         [example head query key]
    replay.predict({3: other}, of)                              [row class]: row i is example of[i] with other[i]

A module may keep a state or mix examples, so that its output must not be reused. This is checked first: a rerun
without changes must reproduce the model's own output, otherwise the whole model is run every time.

What is left to run is recorded as a list of operations (remainder_rows.py), for all rows of a batch, and for the
replaced queries alone where no other token is needed. It is used if it gives the output and the gradient of the model
for other weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from whyformer._audit.reruns.call_tape import CallTape, EarlierOutputs, replay_outputs
from whyformer._audit.reruns.remainder_rows import FAILURES, CheckedRemainders, find_tolerance
from whyformer._engine.layout.layout import Layout, Order, lay_out, to_canonical_axes
from whyformer._engine.layout.order import find_order
from whyformer._engine.probe.probe import Probe
from whyformer._engine.run.forward import Run, run_forward
from whyformer._engine.run.intervene import Intervention, SiteChange
from whyformer._engine.targets.chosen_answer import PLAIN_TASKS, compute_readout, is_causal
from whyformer._engine.targets.target import ExplainedAnswer, Target, choose_target, probabilities_of, read_logits
from whyformer._engine.targets.task import Task, find_task
from whyformer._engine.tracing.provenance import trace_of
from whyformer._model import EncodedBatch, Model, pick_examples
from whyformer.errors import NoAttention, UnsupportedModel, WhyformerError

MAX_TOKENS = {"cpu": 4_096, "cuda": 131_072}  # tokens that go through the model at once
MAX_WEIGHTS = {"cpu": 2**24, "cuda": 2**28}  # attention weights in memory at once
VALUES_PER_TOKEN = 4  # a token that is only attended to takes this much less than one that goes through the model
MASKED_GAP = 5_000.0  # a score this far below the largest of its row is masked: implementations add -1e4, -1e9 or -inf


class AttentionReplay:
    """A batch of examples, the attention weights of the model, and its predictions with other weights.

    The rows of the run are the examples, a single one twice: with one row, the batch axis of a tensor cannot be
    identified.
    """

    def __init__(
        self, model: Model, encoded: EncodedBatch, blocks: Sequence[int] = (), target: int | str | None = None
    ) -> None:
        self.model, self.encoded, self.batch = model, encoded, encoded.batch
        self.notes: list[str] = []
        self.run_attention: list[Tensor] = []  # for each block [row head query key]
        self.run_allowed: list[Tensor] = []
        self._tape = CallTape(blocks)
        self._reproduces: dict[int, bool] = {}  # by block, whether a replay gives the model's own output
        self._run_batch = encoded if encoded.batch > 1 else pick_examples(encoded, torch.tensor([0, 0]))
        self._run_once(target)

    def _run_once(self, target: int | str | None) -> None:
        with run_forward(
            self.model,
            self._run_batch,
            asks_gradient=True,
            intervention=Intervention(scores=self._keep_allowed, attention=self._keep_attention),
            prepare=self._tape.watch,
        ) as run:
            if not run.mode.sites:
                raise NoAttention(
                    f"{self.model.name} ran without reaching attention: no softmax multiplied values and no fused "
                    "attention was called, so there is no attention to audit."
                )
            if len(self.run_attention) != len(run.mode.sites):
                raise UnsupportedModel(
                    "The model computes its attention in parts, head by head or some queries at a time, which cannot "
                    "be audited. Write all heads and queries as one attention."
                )
            refuse_moved(find_order(self.model, self._run_batch, run))
            self.layout: Layout = drop_doubled_row(lay_out(run, self._run_batch), self.batch)
            refuse_other_tasks(find_task(self.model, self._run_batch, run.returned, lambda: is_causal(run)), self.model)
            answer, targets = choose_target(self.model, self._run_batch, run.output, None, None)
            self._logits = read_logits(self._run_batch, run.output)[0].detach()
            self.targets: tuple[Target, ...] = targets[: self.batch]  # what the model predicts
            self.explained = self.targets  # what importance is measured for
            if target is not None:
                _, chosen = choose_target(self.model, self._run_batch, run.output, target, None)
                self.explained = chosen[: self.batch]
            self.readout = self._find_readout(run, answer, targets)
            # For each block [example head query key]; no mask keeps the query from attending to the key; and
            # [example query]: the output depends on what this query attends to.
            self.attention = [weights[: self.batch] for weights in self.run_attention]
            self.allowed = [allowed[: self.batch] for allowed in self.run_allowed]
            self.reached = [reached[: self.batch] for reached in self._find_reached(run)]

    # --- the first run ------------------------------------------------------------------------------------------------

    @property
    def logits(self) -> Tensor:
        """[example class], of the unchanged model."""
        return self._logits[: self.batch]

    @cached_property
    def probabilities(self) -> Tensor:
        return self.to_probabilities(self.logits)

    def to_probabilities(self, logits: Tensor) -> Tensor:
        """[row class]; the logits themselves for a regression."""
        probabilities = probabilities_of(self.model.module, logits)
        return logits if probabilities is None else probabilities

    @property
    def blocks(self) -> int:
        return len(self.run_attention)

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(weights.size(1) for weights in self.run_attention)

    def covers_all_tokens(self, block: int) -> bool:
        """Whether each example has one matrix over all its tokens, with a row per token or a single row."""
        rows, _, queries, keys = self.run_attention[block].shape
        return rows == self._run_batch.batch and keys == self.layout.length and queries in (1, keys)

    def _keep_allowed(self, _: int, scores: Tensor) -> None:
        best = scores.detach().amax(-1, keepdim=True)
        self.run_allowed.append(scores.detach() > best - MASKED_GAP)

    def _keep_attention(self, _: int, attention: Tensor) -> None:
        self.run_attention.append(attention.detach())
        self._tape.reach_attention()

    def _find_readout(self, run: Run, answer: ExplainedAnswer, targets: Sequence[Target]) -> Tensor | None:
        """[example token]: how much of the output is read at each token; None if that cannot be determined."""
        try:
            doubled = replace(self.layout, mask=expand_rows(self.layout.mask, self._run_batch.batch))
            return compute_readout(self.model, run, doubled, answer, targets)[: self.batch]
        except WhyformerError:
            return None

    def _find_reached(self, run: Run) -> Iterator[Tensor]:
        """The queries with a non-zero gradient of the output."""
        logits = read_logits(self._run_batch, run.output)[0]
        mixed = (logits * torch.linspace(1, 2, logits.size(1), dtype=logits.dtype, device=logits.device)).sum()
        outputs = [site.output for site in run.mode.sites]
        gradients: Sequence[Tensor | None] = [None] * len(outputs)
        if mixed.requires_grad:
            gradients = torch.autograd.grad(mixed, outputs, allow_unused=True)
        for site, gradient in zip(run.mode.sites, gradients, strict=True):
            by_head = site.split_heads(torch.ones_like(site.output) if gradient is None else gradient)
            reached = (by_head != 0).any(-1).any(1)
            if reached.shape == (self._run_batch.batch, self.layout.length):
                reached = reached & expand_rows(self.layout.mask, len(reached))
            yield torch.where(reached.any(-1, keepdim=True), reached, torch.ones_like(reached))

    def differentiate(self, change: SiteChange | None = None) -> tuple[Tensor, Tensor]:
        """The explained input, and the gradient of the explained probabilities, [example token channel] or as pixels.

        change: of the attention. `record` gives the gradient of a logit; that of a softmax probability would take one
        backward per class.
        """
        with run_forward(
            self.model, self.encoded, asks_gradient=True, intervention=Intervention(attention=change)
        ) as run:
            leaf = run.mode.leaf
            if leaf is None:
                raise UnsupportedModel("The explained input was not found: there is no embedding of token ids.")
            probabilities = self.to_probabilities(read_logits(self.encoded, run.output)[0])
            explained = torch.tensor([target.index for target in self.explained], device=probabilities.device)
            (gradient,) = torch.autograd.grad(probabilities.gather(1, explained[:, None]).sum(), leaf)
            words = leaf.detach() if run.mode.words is None else run.mode.words
            trace = trace_of(leaf)
            return to_canonical_axes(words, trace), to_canonical_axes(gradient, trace)

    def probe(self, examples: Tensor | None = None) -> Probe:
        """A probe of the batch, or of some of its examples."""
        encoded, layout, targets = self.encoded, self.layout, self.explained
        if examples is not None and len(examples) < self.batch:
            rows = examples.tolist()
            encoded, targets = pick_examples(encoded, examples), tuple(targets[i] for i in rows)
            tokens = tuple(layout.tokens[i] for i in rows)
            layout = replace(layout, mask=layout.mask[rows], special=layout.special[rows], tokens=tokens)
        return Probe(self.model, encoded, layout, targets)

    # --- reruns -------------------------------------------------------------------------------------------------------

    def max_rows(self, queries: Mapping[int, Tensor]) -> int:
        """How many variants go through the model at once, if these queries of each block are replaced."""
        kind = self.model.device.type
        tokens, cells = MAX_TOKENS.get(kind, MAX_TOKENS["cpu"]), MAX_WEIGHTS.get(kind, MAX_WEIGHTS["cpu"])
        limits = []
        for block, chosen in queries.items():
            _, heads, count, keys = self.run_attention[block].shape
            if len(chosen) < count and self.remainders.find(queries, torch.zeros(1, dtype=torch.long)) is not None:
                count, tokens = len(chosen), tokens * VALUES_PER_TOKEN  # only values are kept for all tokens
            limits.append(min(tokens // max(count, keys), cells // (heads * count * keys)))
        return max(1, min(limits) // len(queries))

    def predict(
        self,
        weights: Mapping[int, Tensor],
        of: Tensor,
        *,
        queries: Mapping[int, Tensor] | None = None,
        gradient: bool = False,
    ) -> Tensor:
        """The logits [row class] when row i is example of[i] with the attention weights[block][i], for all heads.

        queries: the queries that the weights of each block are for, by default all; the others keep their own.
        """
        chosen = {block: self.every_query(block) for block in weights} | dict(queries or {})
        remainder = self.remainders.find(chosen, of)
        if remainder is None and queries:  # the others may be needed
            weights = {block: self.insert_queries(block, of, given, chosen[block]) for block, given in weights.items()}
            chosen = {block: self.every_query(block) for block in weights}
            remainder = self.remainders.find(chosen, of)
        logits = None if remainder is None else remainder.run(weights)
        if logits is None or not bool(logits.isfinite().all()):  # a run of the model says where NaN comes from
            return self.predict_in_full(weights, of, gradient=gradient)
        return self._keep_own(logits, weights, of, chosen)

    def every_query(self, block: int) -> Tensor:
        return torch.arange(self.run_attention[block].size(2))

    def insert_queries(self, block: int, of: Tensor, weights: Tensor, queries: Tensor) -> Tensor:
        """[row head query key] with all queries: these weights, and the model's own for the others."""
        own = self.run_attention[block]
        if len(queries) == own.size(2):
            return weights
        return own[of.to(own.device)].index_copy(2, queries.to(own.device), weights.to(own))

    def _keep_own(
        self, logits: Tensor, weights: Mapping[int, Tensor], of: Tensor, queries: Mapping[int, Tensor]
    ) -> Tensor:
        """Rows with the model's own weights have its own output, bit by bit."""
        if logits.requires_grad:
            return logits
        is_own = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        for block, given in weights.items():
            own = self.run_attention[block][:, :, queries[block].to(given.device)][of.to(given.device)]
            is_own &= (given == own).flatten(1).all(1)
        return torch.where(is_own[:, None], self._logits[of.to(logits.device)], logits)

    @cached_property
    def remainders(self) -> CheckedRemainders:
        return CheckedRemainders(self)

    def predict_in_full(self, weights: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        """The same, by running what is left of the model, for the weights of all queries."""
        first = min(weights)
        if first in self._tape.before and first not in self._reproduces:
            self._reproduces[first] = self._try_replay(first)
        if not self._reproduces.get(first, False):
            return self._rerun(of, lambda block, _: weights.get(block), None, gradient)
        before = self._tape.before[first]
        sites = (*before.sites, *range(first, self.blocks))
        return self._rerun(of, lambda i, _: weights.get(sites[i]), before, gradient)

    def _rerun(self, of: Tensor, change: SiteChange, before: EarlierOutputs | None, gradient: bool) -> Tensor:
        chosen = pick_examples(self._run_batch, of.cpu())
        with run_forward(
            self.model,
            chosen,
            asks_gradient=gradient,
            intervention=Intervention(attention=change),
            prepare=None
            if before is None
            else lambda shadow: replay_outputs(shadow, before, of, self._run_batch.batch),
        ) as run:
            return read_logits(chosen, run.output)[0]

    def _try_replay(self, block: int) -> bool:
        """Whether a replay without changes, the examples in reverse order, gives the model's own output."""
        of = torch.arange(self._run_batch.batch).flip(0)
        own = self._logits[of.to(self._logits.device)]
        try:
            replayed = self._rerun(of, lambda *_: None, self._tape.before[block], False)
            bound = find_tolerance(own.dtype) * (1 + own.abs().amax())
            if replayed.shape == own.shape and bool(((replayed - own).abs() <= bound).all()):
                return True
        except FAILURES:
            pass
        self.notes.append(
            f"The outputs from before block {block} could not be reused, so the whole model was run each time."
        )
        return False


def refuse_other_tasks(task: Task, model: Model) -> None:
    """An audit compares distributions over the classes of an example, or over its next tokens."""
    if task.kind not in PLAIN_TASKS:
        raise UnsupportedModel(
            f"audit compares distributions over classes or next tokens, but {model.name} answers with a {task.kind}. "
            "Use judge(), which takes every target."
        )


def refuse_moved(order: Order) -> None:
    """An audit reads attention as it stands: weights of tokens or examples that a model moves would go to others."""
    if order.moves_examples or order.obstacle or not order.is_as_given:
        raise UnsupportedModel(
            "The model changes the order of its tokens or examples inside, which an audit does not undo. explain() and "
            "judge() do."
        )


def drop_doubled_row(layout: Layout, batch: int) -> Layout:
    """The layout of the examples, without the copy of a single one."""
    return replace(layout, mask=layout.mask[:batch], special=layout.special[:batch], tokens=layout.tokens[:batch])


def expand_rows(tensor: Tensor, rows: int) -> Tensor:
    return tensor if len(tensor) == rows else tensor.expand(rows, *tensor.shape[1:])
