"""Explanations and a probe whose answers can be worked out by hand: no model, every unit has a known effect."""

import torch

from whyformer.explanation import Explanation
from whyformer.target import Target
from whyformer.tokens import Grid


def explanation(scores, tokens, **more):
    scores = torch.as_tensor(scores, dtype=torch.float64)
    facts = dict(
        targets=(Target(index=0, label="0", score=0.0),) * len(scores),
        names=tuple(f"example {i}" for i in range(len(scores))),
        method="by_hand",
        settings={},
        model="none",
        versions={},
        class_specific=True,
        signed=True,
    )
    return Explanation(scores, tokens, **facts | more)


def picture(scores, rows, columns, **more):
    """Maps of rows x columns patches."""
    return explanation(scores, (Grid(rows, columns),) * len(scores), **more)
