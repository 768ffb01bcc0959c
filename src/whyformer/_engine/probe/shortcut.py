"""Shortcuts: faster ways to the same answers, each tried once for a model, and its code, before it is used.

    if takes_shortcut(module, "prefix", plain, fast): ...

`plain` and `fast` compute the answers to the same few variants. They may differ by rounding: TOLERANCE of the largest
logit. A shortcut that fails, or gives other answers, is not taken for this model again.
"""

from collections.abc import Callable, Hashable

import torch
from torch import nn

from whyformer._engine.run.model_state import ModelMemo
from whyformer._engine.targets.reading import Answers
from whyformer._plain.failure import is_out_of_memory
from whyformer.errors import ResourceError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}

verdicts: ModelMemo[bool] = ModelMemo()


def takes_shortcut(
    module: nn.Module, name: Hashable, plain: Callable[[], Answers], fast: Callable[[], Answers]
) -> bool:
    """Whether the fast way gives this model's answers; tried the first time."""
    known = verdicts.recall(module)
    if name not in known:
        known[name] = agrees(plain, fast)
    return known[name]


def agrees(plain: Callable[[], Answers], fast: Callable[[], Answers]) -> bool:
    wanted = plain()
    try:
        found = fast()
    except Exception as error:  # whatever a model raises on inputs that it does not take
        if is_out_of_memory(error) or isinstance(error, ResourceError):
            raise
        return False
    if wanted.logits.shape != found.logits.shape:
        return False
    tolerance = TOLERANCE.get(wanted.logits.dtype, 1e-5)
    difference = (wanted.logits - found.logits).abs().amax()
    return bool(difference <= tolerance * wanted.logits.abs().amax())
