"""Batches of examples of similar length."""

from collections.abc import Sequence
from typing import Any

from whyformer._model import Model

BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}  # tokens per batch, padding included
MAX_EXAMPLES = 64  # per batch
MIN_LENGTH = 16  # shorter examples count as this long, so that batches of short texts stay small
ENCODED_AT_ONCE = 256


def count_tokens(model: Model, inputs: Sequence[Any], default: int) -> list[int]:
    """The number of tokens of each text; `default` for every other kind of input."""
    if model.kind != "text":
        return [default] * len(inputs)
    lengths: list[int] = []
    for start in range(0, len(inputs), ENCODED_AT_ONCE):
        mask = model.encode(list(inputs[start : start + ENCODED_AT_ONCE])).token_mask
        assert mask is not None
        lengths += mask.sum(-1).tolist()
    return lengths


def make_batches(lengths: Sequence[int], device: str) -> list[list[int]]:
    """Indices grouped by similar length. No batch has a single example if it can be avoided.

    The replacement "other" needs a second example in the batch.
    """
    tokens = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        size = len(batches[-1]) + 1 if batches else 0
        if batches and size * max(lengths[i], MIN_LENGTH) <= tokens and size <= MAX_EXAMPLES:
            batches[-1].append(i)
        else:
            batches.append([i])
    if len(batches) > 1 and len(batches[-1]) == 1:
        single = batches.pop()
        batches[-1] += single
    return batches
