"""Token masks: the inputs that say which tokens are real, and their forms.

    attention_mask [batch token] of 0 and 1       1: real
    ..._padding_mask, of torch modules            True: padding
    a float mask of numbers up to 0               0: real; it is added to the scores of attention

Each may have axes of size 1 between the batch and the tokens.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

MASKED = -100.0  # an added number below this hides a token


def find_mask_name(inputs: Mapping[str, Tensor], main: Tensor) -> str | None:
    """The input that is a mask of the tokens of each example."""
    masks = (name for name in inputs if name == "attention_mask" or name.endswith("padding_mask"))
    return next((name for name in masks if inputs[name] is not main and has_one_per_token(inputs[name])), None)


def has_one_per_token(mask: Tensor) -> bool:
    """One number per token of each example."""
    return mask.dim() >= 2 and mask.shape[1:-1].numel() == 1


def is_added(mask: Tensor) -> bool:
    """A mask that is added to scores: numbers up to 0."""
    return mask.is_floating_point() and float(mask.max()) <= 0 and bool(((mask == 0) | (mask < MASKED)).all())


def read_token_mask(name: str, mask: Tensor, *, is_inverted: bool = False) -> Tensor:
    """[batch token]: real, on the CPU."""
    rows = mask.reshape(len(mask), -1).cpu()
    if is_added(rows):
        return rows >= MASKED
    return rows.bool() != (name.endswith("padding_mask") != is_inverted)


def write_token_mask(name: str, like: Tensor, real: Tensor, *, is_inverted: bool = False) -> Tensor:
    """A mask of the form of this one, from [batch token]: real."""
    shape = (len(real), *like.shape[1:-1], real.size(1))
    if is_added(like):
        hidden = float(like.min()) if bool((like < 0).any()) else torch.finfo(like.dtype).min
        return torch.where(real, like.new_zeros(()), like.new_full((), hidden)).view(shape)
    return (real != (name.endswith("padding_mask") != is_inverted)).to(like).view(shape)
