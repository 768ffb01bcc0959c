"""Explanations and a probe whose answers can be computed by hand: no model, every unit has a known effect.

The logit of class 0 is a bias plus the effects of the units that are kept, that of class 1 is 0. So the probability of
class 0 is the logistic function of that sum, and the effects themselves are the perfect explanation.
"""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import torch

from whyformer._engine.probe.probe import Answers
from whyformer._engine.targets.target import Target
from whyformer._model.encoded import EncodedBatch
from whyformer._plain.tokens import Grid, Pieces
from whyformer.results.explanation import Explanation

TARGET = Target(index=0, label="0", score=0.0)


def explanation(scores, tokens, **more):
    scores = torch.as_tensor(scores, dtype=torch.float64)
    facts = dict(
        targets=(TARGET,) * len(scores),
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


def text(scores, **more):
    """Scores of tokens between [CLS] and [SEP], whose own scores are 0: [batch token + 2]."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    edge = scores.new_zeros(len(scores), 1)
    return explanation(torch.cat([edge, scores, edge], 1), pieces(scores.shape[1]) * len(scores), **more)


def pieces(count):
    """[CLS], count tokens, [SEP]."""
    special = (True, *[False] * count, True)
    return (Pieces(("[CLS]", *"x" * count, "[SEP]"), special, (False,) * (count + 2), (None,) * (count + 2)),)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class FakeProbe:
    """Effects [batch unit] of tokens (between [CLS] and [SEP]) or, with `grid`, of patches of side x side pixels."""

    def __init__(self, effects, *, grid=None, side=1, bias=0.0, fingerprints=None):
        effects = torch.as_tensor(effects, dtype=torch.float64)
        self.batch, self.bias = len(effects), torch.as_tensor(bias, dtype=torch.float64).expand(len(effects))
        self.is_image = grid is not None
        self.targets = (TARGET,) * self.batch
        self.fingerprints = fingerprints or tuple(range(100, 100 + self.batch))
        self.asked = []  # (rows, fill)
        self.model, self.refuse_changed_weights = SimpleNamespace(module=torch.nn.Identity()), nullcontext
        if self.is_image:
            self.tokens, self.effects = (Grid(*grid),) * self.batch, effects
            self.real = torch.ones(effects.shape, dtype=torch.bool)
            whole = effects.reshape(self.batch, *grid) / side**2
            self.per_pixel = whole.repeat_interleave(side, 1).repeat_interleave(side, 2)
            ones = torch.ones(self.batch, 1, *self.per_pixel.shape[1:], dtype=torch.float64)
            self.encoded = EncodedBatch({"pixel_values": ones}, "pixel_values", self.batch, ("",) * self.batch)
        else:
            self.tokens = pieces(effects.shape[1]) * self.batch
            self.effects = torch.nn.functional.pad(effects, (1, 1))
            self.real = ~torch.tensor([one.special for one in self.tokens])
        self.units = self.effects.shape[1]
        self.before = self.answers(self.bias + effects.sum(1))

    @property
    def fill(self):
        return "zero" if self.is_image else "mask"

    def answers(self, score):
        logits = torch.stack([score, torch.zeros_like(score)], -1)
        return Answers(score, logits.softmax(-1)[:, 0], logits)

    def keep_only(self, keep, of, fill=None, *, seed=0):
        self.asked.append((len(of), fill))
        effects = self.per_pixel if keep.dim() == 3 else self.effects
        return self.answers(self.bias[of] + (keep * effects[of]).flatten(1).sum(1))

    def replace_inputs(self, tensors, of):
        self.asked.append((len(of), None))
        return self.answers(self.bias[of] + (tensors[:, 0] * self.per_pixel[of]).flatten(1).sum(1))
