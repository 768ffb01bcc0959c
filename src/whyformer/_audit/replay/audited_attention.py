"""The audited attention in a batch: one distribution per example, and which of its weights can be replaced."""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from whyformer._audit.replay.attention_choice import AttentionChoice
from whyformer._audit.replay.attention_replay import AttentionReplay
from whyformer.errors import UnsupportedModel
from whyformer.methods._readout_row import multiply_row, propagate_row


class AuditedAttention:
    """One choice of attention in one batch.

    Only the weights of some queries are replaced: of those the output depends on (its gradient there is not zero). In
    the last block of a model that reads its output at one token, that is this token alone; in earlier blocks, all
    tokens.
    """

    def __init__(self, replay: AttentionReplay, choice: AttentionChoice, *, words_only: bool = False) -> None:
        self.replay, self.choice, self.words_only = replay, choice, words_only
        self._free_keys: dict[int, Tensor] = {}
        self._queries: dict[int, Tensor] = {}
        self._replaced: dict[int, Tensor] = {}
        for block in choice.blocks:
            self._refuse_windows(block)

    def _refuse_windows(self, block: int) -> None:
        if not self.replay.covers_all_tokens(block):
            queries, keys = self.replay.attention[block].shape[-2:]
            raise UnsupportedModel(
                f"The attention of block {block} is {queries} x {keys}, but the model ends with "
                f"{self.replay.layout.length} tokens per example. Windowed attention and changing sequence lengths "
                "cannot be audited."
            )

    # --- the distribution ---------------------------------------------------------------------------------------------

    @cached_property
    def distribution(self) -> Tensor:
        """[example token]: the attention as an explanation, read at the position where the output is read."""
        own = {block: self.replay.attention[block] for block in self.choice.blocks}
        return self.read_distribution(own, torch.arange(self.replay.batch))

    def read_distribution(self, attention: Mapping[int, Tensor], of: Tensor) -> Tensor:
        """[row token]: the same for other weights [row head query key] of each block, row i those of example of[i]."""
        last = self.choice.blocks[-1]
        row = self._read_weights(last)[of.to(self.replay.logits.device)]
        if not self.choice.is_rollout:
            return multiply_row(row, self._mean_of_heads(attention[last]))
        for block in reversed(self.choice.blocks):
            if row.size(1) != attention[block].size(2):
                raise UnsupportedModel("Rollout needs the same tokens at every attention.")
            row = propagate_row(row, self._mean_of_heads(attention[block]), residual=1.0, normalise=True)
        return row

    @property
    def largest_weights(self) -> list[float]:
        """The largest weight of each example's distribution."""
        return [float(weight) for weight in self.distribution.amax(-1)]

    def _mean_of_heads(self, attention: Tensor) -> Tensor:
        return attention.mean(1) if self.choice.head is None else attention[:, self.choice.head]

    def _read_weights(self, block: int) -> Tensor:
        """[example query], summing to 1: how much of the output is read at each query."""
        attention, readout = self.replay.attention[block], self.replay.readout
        if attention.size(2) > 1 and readout is not None:
            return readout.to(attention)
        reached = self.replay.reached[block].to(attention)
        return reached / reached.sum(-1, keepdim=True)

    # --- what can be replaced -----------------------------------------------------------------------------------------

    def select_heads(self, weights: Tensor) -> Tensor:
        """The audited heads of [example head query key]."""
        return weights if self.choice.head is None else weights[:, self.choice.head : self.choice.head + 1]

    # The queries of what follows are those that are replaced in any example of the batch; all if that is most of them.

    def queries(self, block: int) -> Tensor:
        """[query]: their places among all queries."""
        if block not in self._queries:
            replaced = self._find_replaced(block).any(0).nonzero()[:, 0]
            is_few = 0 < 2 * len(replaced) <= self.replay.attention[block].size(2)
            self._queries[block] = replaced if is_few else self.replay.every_query(block)
        return self._queries[block]

    def own_weights(self, block: int) -> Tensor:
        """[example head query key]: what the model computed, for the audited heads."""
        return self.take_queries(block, self.select_heads(self.replay.attention[block]))

    def free_keys(self, block: int) -> Tensor:
        """[example 1 query key]: the keys over which a query may spread its weight."""
        return self.take_queries(block, self.every_free_key(block))

    def replaced_queries(self, block: int) -> Tensor:
        """[example query]: the queries whose weights are replaced."""
        if block not in self._replaced:
            self._replaced[block] = self._find_replaced(block)[:, self.queries(block).to(self.replay.logits.device)]
        return self._replaced[block]

    def take_queries(self, block: int, weights: Tensor) -> Tensor:
        """These queries of [... query key]."""
        chosen = self.queries(block)
        return weights if len(chosen) == weights.size(-2) else weights.index_select(-2, chosen.to(weights.device))

    def every_free_key(self, block: int) -> Tensor:
        """The same for all queries."""
        if block not in self._free_keys:
            allowed = self.replay.allowed[block].any(1, keepdim=True) & self.replay.layout.mask[:, None, None, :]
            if self.words_only:
                allowed = allowed & ~self.replay.layout.special[:, None, None, :]
            self._free_keys[block] = allowed
        return self._free_keys[block]

    def _find_replaced(self, block: int) -> Tensor:
        has_several = self.every_free_key(block).sum(-1)[:, 0] > 1  # with one free key there is nothing to move
        return self.replay.reached[block] & has_several

    def can_change(self, place: int) -> bool:
        """Whether any weight at this place can be moved; not with a single token."""
        return any(bool(self._find_replaced(block)[place].any()) for block in self.choice.blocks)

    def find_examples(self, places: Tensor) -> Tensor:
        """The examples that places stand for: themselves, unless each head has a place of its own (each_head.py)."""
        return places

    def insert_weights(self, block: int, of: Tensor, weights: Tensor) -> Tensor:
        """[row head query key] with all heads: the model's own weights, except where they are replaced by these."""
        own = self.take_queries(block, self.replay.attention[block])[of]
        queries = self.replaced_queries(block)[of][:, None, :, None]
        if self.choice.head is None:
            return torch.where(queries, weights.to(own), own)
        is_chosen = torch.zeros(own.size(1), dtype=torch.bool, device=own.device)
        is_chosen[self.choice.head] = True
        return torch.where(queries & is_chosen.view(1, -1, 1, 1), weights.to(own), own)

    def complete_weights(self, weights: Mapping[int, Tensor], of: Tensor) -> dict[int, Tensor]:
        """For each block [row head query key] with all heads and queries."""
        of = of.to(self.replay.logits.device)
        return {
            block: self.replay.insert_queries(block, of, self.insert_weights(block, of, given), self.queries(block))
            for block, given in weights.items()
        }

    def predict(self, weights: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        """Probabilities [row class] when row i is example of[i] with weights[block][i], [head query key]."""
        of = of.to(self.replay.logits.device)
        inserted = {block: self.insert_weights(block, of, given) for block, given in weights.items()}
        return self.predict_inserted(inserted, of, gradient=gradient)

    def predict_inserted(self, inserted: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        """The same with the weights of all heads, [row head query key], of the queries of each block."""
        queries = {block: self.queries(block) for block in inserted}
        return self.replay.to_probabilities(self.replay.predict(inserted, of, queries=queries, gradient=gradient))

    @property
    def max_rows(self) -> int:
        """How many rows go through the model at once."""
        return self.replay.max_rows({block: self.queries(block) for block in self.choice.blocks})
