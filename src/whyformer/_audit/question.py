"""A question put to a batch: the chosen attention as one distribution per example, and what of it can be replaced."""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from whyformer._audit.choice import AttentionChoice
from whyformer._audit.replay import AttentionReplay
from whyformer.errors import UnsupportedModel
from whyformer.methods._readout_row import multiply_row, propagate_row


class AttentionQuestion:
    """One choice of attention in one batch.

    *Rows* are the queries whose weights are replaced: those on which the answer depends (its gradient there is not
    zero). In the last block of a model that reads its answer at one token that is this token alone; before that, all
    tokens.
    """

    def __init__(self, replay: AttentionReplay, choice: AttentionChoice, *, words_only: bool = False) -> None:
        self.replay, self.choice, self.words_only = replay, choice, words_only
        self._free: dict[int, Tensor] = {}
        for block in choice.blocks:
            self._refuse_odd(block)

    def _refuse_odd(self, block: int) -> None:
        if not self.replay.is_plain(block):
            queries, keys = self.replay.attention[block].shape[-2:]
            raise UnsupportedModel(
                f"The attention of block {block} is one of {queries} x {keys} tokens; the model ends with "
                f"{self.replay.layout.length} tokens an example. Windows and changing lengths cannot be audited."
            )

    # --- the distribution ---------------------------------------------------------------------------------------------

    @cached_property
    def distribution(self) -> Tensor:
        """[example token]: the attention as an explanation, read where the answer is read."""
        last = self.choice.blocks[-1]
        row = self._where_read(last)
        if not self.choice.is_rollout:
            return multiply_row(row, self._mean(last))
        for block in reversed(self.choice.blocks):
            if row.size(1) != self.replay.attention[block].size(2):
                raise UnsupportedModel("Rollout needs the same tokens at every attention.")
            row = propagate_row(row, self._mean(block), residual=1.0, normalise=True)
        return row

    def _mean(self, block: int) -> Tensor:
        attention = self.replay.attention[block]
        return attention.mean(1) if self.choice.head is None else attention[:, self.choice.head]

    def _where_read(self, block: int) -> Tensor:
        """[example query], summing to 1."""
        attention, readout = self.replay.attention[block], self.replay.readout
        if attention.size(2) > 1 and readout is not None:
            return readout.to(attention)
        reached = self.replay.reach[block].to(attention)
        return reached / reached.sum(-1, keepdim=True)

    @property
    def is_ordinary(self) -> Tensor:
        """[example token]: neither padding nor special."""
        return self.replay.layout.mask & ~self.replay.layout.special

    # --- what can be replaced -----------------------------------------------------------------------------------------

    def heads_of(self, weights: Tensor) -> Tensor:
        """Of [example head query key] the heads in question."""
        return weights if self.choice.head is None else weights[:, self.choice.head : self.choice.head + 1]

    def own(self, block: int) -> Tensor:
        """[example head query key], the heads in question alone."""
        return self.heads_of(self.replay.attention[block])

    def free(self, block: int) -> Tensor:
        """[example 1 query key]: the keys a query may spread its weight over."""
        if block not in self._free:
            allowed = self.replay.allowed[block].any(1, keepdim=True) & self.replay.layout.mask[:, None, None, :]
            if self.words_only:
                allowed = allowed & ~self.replay.layout.special[:, None, None, :]
            self._free[block] = allowed
        return self._free[block]

    def rows(self, block: int) -> Tensor:
        """[example query]: their weights are replaced."""
        several = self.free(block).sum(-1)[:, 0] > 1  # a token that may attend to one alone has no choice
        return self.replay.reach[block] & several

    def is_free(self, example: int) -> bool:
        """Some weight of the example can be moved at all; not so where there is one token."""
        return any(bool(self.rows(block)[example].any()) for block in self.choice.blocks)

    def insert_weights(self, block: int, of: Tensor, weights: Tensor) -> Tensor:
        """[row head query key] of all heads: the model's own, with these in place of those that are replaced."""
        own = self.replay.attention[block][of]
        rows = self.rows(block)[of][:, None, :, None]
        if self.choice.head is None:
            return torch.where(rows, weights.to(own), own)
        chosen = torch.zeros(own.size(1), dtype=torch.bool, device=own.device)
        chosen[self.choice.head] = True
        return torch.where(rows & chosen.view(1, -1, 1, 1), weights.to(own), own)

    def answers(self, weights: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        """Probabilities [row class] when row i is example of[i] with weights[block][i], [head query key]."""
        of = of.to(self.replay.logits.device)
        put = {block: self.insert_weights(block, of, given) for block, given in weights.items()}
        return self.replay.as_probabilities(self.replay.answers(put, of, gradient=gradient))

    @property
    def rows_at_once(self) -> int:
        return max(1, min(self.replay.rows_at_once(block) for block in self.choice.blocks) // len(self.choice.blocks))
