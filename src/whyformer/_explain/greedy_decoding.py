"""Greedy decoding: a text continued by the most likely token, again and again.

These are the tokens that `explain_generation` explains. Which token `explain` explains is chosen in _engine/target.py.
"""

from collections.abc import Sequence

import torch
from torch import nn

from whyformer._engine.forward import run_plain_returned
from whyformer._engine.shadow import make_shadow
from whyformer._engine.target import read_logits
from whyformer._engine.task import find_task, refuse_encoder_decoders
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._plain.progress import show_progress
from whyformer.errors import InputError, NonFinite


def decode_greedily(model: Model, start: Sequence[int], tokens: int) -> list[int]:
    """The ids with the most likely token appended until the text ends or is long enough."""
    ends = {model.tokenizer.eos_token_id, model.tokenizer.pad_token_id} - {None}
    longest = len(start) + tokens if model.max_length is None else min(len(start) + tokens, model.max_length)
    ids, shadow = list(start), make_shadow(model.module)
    with show_progress(longest - len(ids), "generating") as progress:
        while len(ids) < longest:
            token = predict_likeliest_token(model, shadow, encode_ids(model, [ids]))
            if token is None:
                raise InputError(f"{model.name} predicts classes, not a next token. Use a causal language model.")
            if token in ends:
                break
            ids.append(token)
            progress.advance()
    return ids


def encode_ids(model: Model, rows: Sequence[Sequence[int]]) -> EncodedBatch:
    """Token ids as a batch."""
    return model.encode([{"input_ids": torch.tensor(row)} for row in rows])


def predict_likeliest_token(model: Model, shadow: nn.Module, encoded: EncodedBatch) -> int | None:
    """The most likely token after the first example of the batch; None if the model predicts no tokens."""
    refuse_encoder_decoders(model.module)
    task = find_task(model, encoded, run_plain_returned(shadow, encoded), is_causal=lambda: True)
    if not bool(task.output.isfinite().all()):
        raise NonFinite("The model's output is not finite, so there is no most likely next token.")
    if task.kind != "next token":
        return None
    return int(read_logits(encoded, task.output)[0][0].argmax())
