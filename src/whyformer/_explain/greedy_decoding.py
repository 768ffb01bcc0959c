"""Decoding step by step: a text continued by the most likely token, or by one that is drawn, again and again.

For models without a `generate` of their own (decoding.py). Which token `explain` explains is chosen in
_engine/targets/target.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whyformer._engine import find_task, make_shadow, read_logits, refuse_encoder_decoders, run_plain_returned
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.progress import Writing, show_activity
from whyformer._plain.random_generator import make_generator
from whyformer.errors import InputError, NonFinite


def decode_step_by_step(
    model: Model, start: Sequence[int], tokens: int, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
) -> list[int]:
    """The ids that follow these, until the text ends or is long enough."""
    ends, generator = find_end_tokens(model), make_generator(seed, 0)
    ids, shadow = list(start), make_shadow(model.module)
    writing = Writing(tokens)
    with show_activity(writing):
        while len(ids) < len(start) + tokens:
            logits = predict_next_logits(model, shadow, model.encode([torch.tensor(ids)]))
            if logits is None:
                raise InputError(f"{model.name} predicts classes, not a next token. Use a causal language model.")
            token = draw_token(logits, temperature, top_p, generator) if temperature else int(logits.argmax())
            if token in ends:
                break
            ids.append(token)
            writing.write(token)
    return ids[len(start) :]


def find_end_tokens(model: Model) -> set[int]:
    """The tokens that end a text, by the tokenizer, the config and the generation config of the model."""
    ends = [getattr(model.tokenizer, name, None) for name in ("eos_token_id", "pad_token_id")]
    for name in ("generation_config", "config"):
        found = getattr(getattr(unwrap(model.module), name, None), "eos_token_id", None)
        ends += found if isinstance(found, list | tuple) else [found]
    return {int(end) for end in ends if isinstance(end, int) and end >= 0}


def predict_next_logits(model: Model, shadow: nn.Module, encoded: EncodedBatch) -> Tensor | None:
    """The logits after the first example of the batch; None if the model predicts no tokens."""
    refuse_encoder_decoders(model.module)
    task = find_task(model, encoded, run_plain_returned(shadow, encoded), is_causal=lambda: True)
    if not bool(task.output.isfinite().all()):
        raise NonFinite("The model's output is not finite, so there is no most likely next token.")
    return read_logits(encoded, task.output)[0][0].detach() if task.kind == "next token" else None


def draw_token(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """A token drawn from the softmax, among the fewest tokens that together have the probability top_p."""
    probabilities, order = (logits.double().cpu() / temperature).softmax(-1).sort(descending=True)
    kept = probabilities.cumsum(-1) - probabilities < top_p
    drawn = torch.multinomial(probabilities * kept, 1, generator=generator)
    return int(order[drawn])
