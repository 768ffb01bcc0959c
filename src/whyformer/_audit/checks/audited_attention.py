"""The audited attention in a batch: one distribution per example, and which of its weights can be replaced."""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from whyformer._audit.checks.attention_choice import AttentionChoice
from whyformer._audit.reruns import AttentionReplay
from whyformer.errors import UnsupportedModel
from whyformer.methods._readout_row import multiply_row, propagate_row

BlockWeights = dict[int, Tensor]  # block -> [row head query key]


class AuditedAttention:
    """One choice of attention in one batch.

    Only the weights of some queries are replaced: of those the output depends on (its gradient there is not zero). In
    the last block of a model that reads its output at one token, that is this token alone; in earlier blocks, all
    tokens.
    """

    def __init__(self, replay: AttentionReplay, choice: AttentionChoice, *, words_only: bool = False) -> None:
        self.replay, self.choice, self.words_only = replay, choice, words_only
        for block in choice.blocks:
            if not replay.covers_all_tokens(block):
                queries, keys = replay.attention[block].shape[-2:]
                raise UnsupportedModel(
                    f"The attention of block {block} is {queries} x {keys}, but the model ends with "
                    f"{replay.layout.length} tokens per example. Windowed attention and changing sequence lengths "
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

    @cached_property
    def every_free_key(self) -> BlockWeights:
        """For each block [example 1 query key]: the keys over which a query may spread its weight."""
        layout = self.replay.layout
        movable = layout.mask & ~layout.special if self.words_only else layout.mask
        return {
            block: self.replay.allowed[block].any(1, keepdim=True) & movable[:, None, None, :]
            for block in self.choice.blocks
        }

    @cached_property
    def _every_replaced_query(self) -> BlockWeights:
        """For each block [example query]; with one free key there is nothing to move."""
        return {
            block: self.replay.reached[block] & (free.sum(-1)[:, 0] > 1) for block, free in self.every_free_key.items()
        }

    # The queries of what follows are those that are replaced in any example of the batch; all if that is most of them.

    @cached_property
    def queries(self) -> BlockWeights:
        """For each block [query]: their indices among all queries."""
        chosen = {}
        for block, replaced in self._every_replaced_query.items():
            some = replaced.any(0).nonzero()[:, 0]
            is_few = 0 < 2 * len(some) <= self.replay.attention[block].size(2)
            chosen[block] = some if is_few else self.replay.every_query(block)
        return chosen

    def own_weights(self, block: int) -> Tensor:
        """[example head query key]: what the model computed, for the audited heads."""
        return self.take_queries(block, self.select_heads(self.replay.attention[block]))

    def free_keys(self, block: int) -> Tensor:
        """[example 1 query key]: the keys over which a query may spread its weight."""
        return self.take_queries(block, self.every_free_key[block])

    def replaced_queries(self, block: int) -> Tensor:
        """[example query]: the queries whose weights are replaced."""
        return self._replaced_queries[block]

    @cached_property
    def _replaced_queries(self) -> BlockWeights:
        device = self.replay.logits.device
        return {
            block: self._every_replaced_query[block][:, chosen.to(device)] for block, chosen in self.queries.items()
        }

    def take_queries(self, block: int, weights: Tensor) -> Tensor:
        """These queries of [... query key]."""
        chosen = self.queries[block]
        return weights if len(chosen) == weights.size(-2) else weights.index_select(-2, chosen.to(weights.device))

    def can_change(self, row: int) -> bool:
        """Whether any weight of this row can be moved; not with a single token."""
        return any(bool(replaced[row].any()) for replaced in self._every_replaced_query.values())

    def find_heads(self, block: int, of: Tensor) -> Tensor:
        """[row head]: the heads whose weights are replaced; one row if they are the same in all."""
        heads = torch.arange(self.replay.heads[block], device=of.device)
        return (heads >= 0 if self.choice.head is None else heads == self.choice.head)[None]

    def insert_weights(self, block: int, of: Tensor, weights: Tensor) -> Tensor:
        """[row head query key] with all heads: the model's own weights, except where they are replaced by these."""
        own = self.take_queries(block, self.replay.attention[block])[of]
        queries = self.replaced_queries(block)[of][:, None, :, None]
        return torch.where(queries & self.find_heads(block, of.to(own.device))[:, :, None, None], weights.to(own), own)

    def complete_weights(self, weights: Mapping[int, Tensor], of: Tensor) -> BlockWeights:
        """For each block [row head query key] with all heads and queries."""
        of = of.to(self.replay.logits.device)
        return {
            block: self.replay.insert_queries(block, of, self.insert_weights(block, of, given), self.queries[block])
            for block, given in weights.items()
        }

    def predict(self, weights: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        """Probabilities [row class] when row i is example of[i] with weights[block][i], [head query key]."""
        of = of.to(self.replay.logits.device)
        inserted = {block: self.insert_weights(block, of, given) for block, given in weights.items()}
        queries = {block: self.queries[block] for block in inserted}
        return self.replay.to_probabilities(self.replay.predict(inserted, of, queries=queries, gradient=gradient))

    def place_noise(self, block: int, example: int, draw: Callable[[int, int], Tensor]) -> Tensor:
        """[... query key] with the noise that `draw` makes for so many real queries and keys: padding has no effect."""
        queries, keys = self.replay.attention[block].shape[-2:]
        real = self.replay.layout.mask[example].cpu()
        rows = real if queries == keys else torch.ones(queries, dtype=torch.bool)
        drawn = draw(int(rows.sum()), int(real.sum()))
        noise = torch.zeros(*drawn.shape[:-2], queries, keys)
        noise[..., rows.nonzero(), real.nonzero()[:, 0]] = drawn
        return self.take_queries(block, noise)

    @property
    def max_rows(self) -> int:
        """How many rows go through the model at once."""
        return self.replay.max_rows(self.queries)
