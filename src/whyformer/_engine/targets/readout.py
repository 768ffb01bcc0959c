"""Readout: how much of the answer the model reads at each token."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.layout.layout import Layout
from whyformer._engine.run.forward import Run
from whyformer._engine.targets.function_target import ExplainedScore
from whyformer._engine.targets.target import Target
from whyformer._model import Model
from whyformer.errors import InputError, UnsupportedModel


@runtime_checkable
class ReadsTokens(Protocol):
    """A module that reads each of its classes at certain tokens."""

    def list_read_tokens(self, index: int) -> Sequence[int]: ...


def compute_readout(
    model: Model, run: Run, layout: Layout, answer: ExplainedScore, targets: Sequence[Target]
) -> Tensor:
    """How much of the answer the model's pooling reads at each token: [batch token]."""
    mask = layout.mask
    if model.readout is not None:
        weights: Tensor | None = model.readout_weights(mask)
    elif isinstance(model.module, ReadsTokens):
        places = torch.tensor([model.module.list_read_tokens(target.index) for target in targets])
        weights = F.one_hot(places, layout.length).double().mean(1)
    else:
        weights = answer.compute_pooling_weights(mask.size(0), layout.length, run.mode.follower.numbers)
    if weights is None or weights.shape != mask.shape:
        raise UnsupportedModel(
            "At which tokens the answer is read is not known. Pass it when opening the model: "
            'readout="first", "last", "mean" or the index of a token.'
        )
    weights = weights.to(mask.device, model.dtype) * mask
    total = weights.sum(-1, keepdim=True)
    if not bool(total.all()):
        which = int((total[:, 0] == 0).nonzero()[0])
        raise InputError(
            f"The answer for example {which} is read at a padding token: this model reads a fixed position, such as "
            "the first token. Pad on the other side."
        )
    return weights / total
