"""The tails of a batch (tail.py): recorded when they are needed, checked against the model, kept for the same rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whyformer._audit.tail import Tail, record_tail
from whyformer._audit.tail_rows import Inseparable, choose_rows
from whyformer._engine import Unrecordable
from whyformer.errors import WhyformerError

if TYPE_CHECKING:
    from whyformer._audit.replay import AttentionReplay

FAILURES = (  # of an operation that was recorded for other rows
    Unrecordable, Inseparable, WhyformerError, RuntimeError, IndexError, TypeError, ValueError, AttributeError,
    KeyError, AssertionError,
)  # fmt: skip
TailKey = tuple[Any, ...]


class ReplayTails:
    """The tails of one batch."""

    def __init__(self, replay: "AttentionReplay") -> None:
        self.replay = replay
        self._checked: dict[TailKey, Tail | None] = {}
        self._last: tuple[TailKey, Tail | None] | None = None

    def find(self, queries: Mapping[int, Tensor], of: Tensor) -> Tail | None:
        """The tail for these queries of each block and these examples; None if the model must be run."""
        key = tuple((block, *queries[block].tolist()) for block in sorted(queries))
        if key not in self._checked:
            self._checked[key] = self._make_checked(queries)
        tail = self._checked[key]
        if tail is None:
            return None
        rows = (key, *of.tolist())
        if self._last is None or self._last[0] != rows:
            self._last = rows, choose_examples(tail, of)
        return self._last[1]

    def _make_checked(self, queries: Mapping[int, Tensor]) -> Tail | None:
        """The tail for every example once, if it gives what the model gives."""
        trial = {block: self._draw_weights(block) for block in queries}
        every = torch.arange(len(next(iter(trial.values()))))
        try:
            tail = record_tail(trial, lambda: self.replay.predict_in_full(trial, every))
            tail = choose_queries(tail, queries)
            return tail if self._agrees(tail, queries) else None
        except FAILURES:
            return None

    def _draw_weights(self, block: int) -> Tensor:
        """Random attention wherever the model may attend: no row has the weights of the model."""
        allowed, own = self.replay.run_allowed(block), self.replay.run_attention(block)
        noise = torch.rand(allowed.shape, generator=torch.Generator().manual_seed(block)).to(own) + 0.1
        noise = torch.where(allowed, noise, 0)
        return noise / noise.sum(-1, keepdim=True)

    def _agrees(self, tail: Tail, queries: Mapping[int, Tensor]) -> bool:
        """Whether output and gradient for other weights, the examples in reverse order, are those of the model."""
        with torch.enable_grad():
            given = {
                block: self._draw_weights(block)[:, :, chosen.to(self.replay.logits.device)].requires_grad_()
                for block, chosen in queries.items()
            }
            of = torch.arange(len(next(iter(given.values())))).flip(0)
            full = {block: self.replay.insert_queries(block, of, w, queries[block]) for block, w in given.items()}
            own = self.replay.predict_in_full(full, of, gradient=True)
            found = choose_examples(tail, of).run(given)
            mixed = torch.linspace(1, 2, own.size(1), dtype=own.dtype, device=own.device)
            slopes = [torch.autograd.grad((logits * mixed).sum(), list(given.values())) for logits in (own, found)]
        return all(is_close(a, b) for a, b in zip((own, *slopes[0]), (found, *slopes[1]), strict=True))


def choose_examples(tail: Tail, of: Tensor) -> Tail:
    """The tail with a row for each of these examples."""
    return choose_rows(tail, dict.fromkeys(tail.inputs, 0), of)


def choose_queries(tail: Tail, queries: Mapping[int, Tensor]) -> Tail:
    """The tail for these queries of each block alone."""
    for block, chosen in queries.items():
        if len(chosen) < tail.shapes[tail.inputs[block]][2]:
            tail = choose_rows(tail, {block: 2}, chosen)
    return tail


def is_close(own: Tensor, found: Tensor) -> bool:
    tolerance = 1e-4 if own.dtype == torch.float32 else 1e-8 if own.dtype == torch.float64 else 1e-2
    return own.shape == found.shape and bool(((found - own).abs() <= tolerance * own.abs().amax()).all())
