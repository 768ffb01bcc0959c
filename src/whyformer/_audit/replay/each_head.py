"""Every head of one block, each audited on its own, in one batch: place i * heads + h is head h in example i.

A search for other weights (adversarial.py) then moves all heads of a block at once, each with the others as they are.
Adam updates each number independently, so the result of a head is that of a search for this head alone.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from whyformer._audit.replay.attention_choice import AttentionChoice
from whyformer._audit.replay.attention_replay import AttentionReplay
from whyformer._audit.replay.audited_attention import AuditedAttention


class EachHead(AuditedAttention):
    """The heads of a block as if each were the only one that is audited."""

    def __init__(self, replay: AttentionReplay, block: int) -> None:
        super().__init__(replay, AttentionChoice((block,), None))
        self.heads = replay.heads[block]

    def find_examples(self, places: Tensor) -> Tensor:
        return places // self.heads

    def can_change(self, place: int) -> bool:
        return super().can_change(place // self.heads)

    def own_weights(self, block: int) -> Tensor:
        """[place 1 query key]"""
        return super().own_weights(block).flatten(0, 1).unsqueeze(1)

    def free_keys(self, block: int) -> Tensor:
        return super().free_keys(block).repeat_interleave(self.heads, 0)

    def replaced_queries(self, block: int) -> Tensor:
        return super().replaced_queries(block).repeat_interleave(self.heads, 0)

    def insert_weights(self, block: int, of: Tensor, weights: Tensor) -> Tensor:
        """[row head query key] with all heads: the model's own weights, and these for the head of each place."""
        own = self.take_queries(block, self.replay.attention[block])[of // self.heads]
        queries = self.replaced_queries(block)[of][:, None, :, None]
        is_chosen = torch.arange(self.heads, device=own.device) == (of % self.heads)[:, None]
        return torch.where(queries & is_chosen[:, :, None, None], weights.to(own), own)

    def predict(self, weights: Mapping[int, Tensor], of: Tensor, *, gradient: bool = False) -> Tensor:
        of = of.to(self.replay.logits.device)
        inserted = {block: self.insert_weights(block, of, given) for block, given in weights.items()}
        return self.predict_inserted(inserted, of // self.heads, gradient=gradient)
