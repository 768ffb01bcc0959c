"""Reruns: the rest of a model with other attention weights, in the parts that the engine is made of.

The door of this room: code outside of it imports from here.
"""

from whyformer._audit.reruns.attention_replay import AttentionReplay
