"""Reruns of a model with other attention weights, from the replaced attention on.

The door of this room: code outside of it imports from here.
"""

from whyformer._audit.replay.attention_choice import AttentionChoice, AttentionLike, choose_attention
from whyformer._audit.replay.attention_replay import AttentionReplay
from whyformer._audit.replay.audited_attention import AuditedAttention, BlockWeights, EachHead

__all__ = [
    "AttentionChoice", "AttentionLike", "AttentionReplay", "AuditedAttention", "BlockWeights", "EachHead",
    "choose_attention",
]  # fmt: skip
