"""The remainders of a batch: recorded when they are needed, checked against the model, kept for the same rows.

A remainder is the list of operations from the replaced attention to the output (remainder.py).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whyformer._engine.reruns.remainder import Remainder, record_remainder
from whyformer._engine.reruns.remainder_rows import Inseparable, choose_rows
from whyformer._engine.reruns.steps import Unrecordable
from whyformer.errors import WhyformerError

if TYPE_CHECKING:
    from whyformer._engine.reruns.attention_replay import AttentionReplay

FAILURES = (  # of an operation that was recorded for other rows
    Unrecordable, Inseparable, WhyformerError, RuntimeError, IndexError, TypeError, ValueError, AttributeError,
    KeyError, AssertionError,
)  # fmt: skip
BlockQueries = tuple[tuple[int, ...], ...]  # for each block its number and its queries


class CheckedRemainders:
    """The remainders of one batch."""

    def __init__(self, replay: "AttentionReplay") -> None:
        self.replay = replay
        self._checked: dict[BlockQueries, Remainder | None] = {}
        self._last: tuple[BlockQueries, list[int]] | None = None
        self._of_last: Remainder | None = None

    def find(self, queries: Mapping[int, Tensor], of: Tensor) -> Remainder | None:
        """The remainder for these queries of each block and these examples; None if the model must be run."""
        key = tuple((block, *queries[block].tolist()) for block in sorted(queries))
        if key not in self._checked:
            self._checked[key] = self._make_checked(queries)
        remainder, wanted = self._checked[key], (key, of.tolist())
        if remainder is not None and self._last != wanted:
            self._last, self._of_last = wanted, choose_examples(remainder, of)
        return None if remainder is None else self._of_last

    def _make_checked(self, queries: Mapping[int, Tensor]) -> Remainder | None:
        """The remainder for every example once, if it gives what the model gives."""
        trial = {block: self._draw_weights(block) for block in queries}
        every = torch.arange(len(next(iter(trial.values()))))
        try:
            remainder = record_remainder(trial, lambda: self.replay.predict_in_full(trial, every))
            for block, chosen in queries.items():
                if len(chosen) < trial[block].size(2):
                    remainder = choose_rows(remainder, {block: 2}, chosen)
            return remainder if self._agrees(remainder, queries) else None
        except FAILURES:
            return None

    def _draw_weights(self, block: int) -> Tensor:
        """Random attention wherever the model may attend: no row has the weights of the model."""
        allowed, own = self.replay.run_allowed[block], self.replay.run_attention[block]
        noise = torch.rand(allowed.shape, generator=torch.Generator().manual_seed(block)).to(own) + 0.1
        noise = torch.where(allowed, noise, 0)
        return noise / noise.sum(-1, keepdim=True)

    def _agrees(self, remainder: Remainder, queries: Mapping[int, Tensor]) -> bool:
        """Whether output and gradient for other weights, the examples in reverse order, are those of the model."""
        with torch.enable_grad():
            given = {
                block: self._draw_weights(block)[:, :, chosen.to(self.replay.logits.device)].requires_grad_()
                for block, chosen in queries.items()
            }
            of = torch.arange(len(next(iter(given.values())))).flip(0)
            full = {block: self.replay.insert_queries(block, of, w, queries[block]) for block, w in given.items()}
            own = self.replay.predict_in_full(full, of, gradient=True)
            found = choose_examples(remainder, of).run(given)
            mixed = torch.linspace(1, 2, own.size(1), dtype=own.dtype, device=own.device)
            slopes = [torch.autograd.grad((logits * mixed).sum(), list(given.values())) for logits in (own, found)]
        return all(is_reproduced(a, b) for a, b in zip((own, *slopes[0]), (found, *slopes[1]), strict=True))


def choose_examples(remainder: Remainder, of: Tensor) -> Remainder:
    """The remainder with a row for each of these examples."""
    return choose_rows(remainder, dict.fromkeys(remainder.inputs, 0), of)


def is_reproduced(own: Tensor, found: Tensor) -> bool:
    bound = find_tolerance(own.dtype) * own.abs().amax()
    return own.shape == found.shape and bool(((found - own).abs() <= bound).all())


def find_tolerance(dtype: torch.dtype) -> float:
    return {torch.float32: 1e-4, torch.float64: 1e-8}.get(dtype, 1e-2)
