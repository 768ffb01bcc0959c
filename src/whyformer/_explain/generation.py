"""Explain every token that a language model generates.

    g = explain_generation(model, "the keys to the cabinet", tokens=8)
    g[0]; print(g); g.save("why.html")      # a page: click on a token to see why the model chose it

Each token is explained as the next token after all before it. The prefixes are explained in batches; an example gets
the same scores in a batch as alone, so the batch size does not matter.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whyformer._explain.decoding import generate_tokens
from whyformer._explain.default_method import TEXT_METHOD
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.greedy_decoding import encode_ids
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer._model.model import EncodedBatch, Model
from whyformer._model.spans import decode_with_spans
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, TargetError
from whyformer.results.explanation import Explanation
from whyformer.results.generation import Generation

BATCH = 16  # prefixes explained at once


@neutral_torch()
def explain_generation(
    model: ModelLike,
    prompt: str,
    method: MethodLike = TEXT_METHOD,
    *,
    tokens: int = 20,
    continuation: str | None = None,
    **settings: Any,
) -> Generation:
    """Why each token of a continuation was chosen.

    tokens: how many tokens the model generates at most. continuation: explain this text instead of the model's own.
    """
    call = choose_method(method, settings)
    model = as_model(model)
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise InputError(f"tokens must be a whole number, got {tokens!r}.", code="E_OPTION")
    if tokens < 1:
        raise InputError(f"tokens must be >= 1, got {tokens}.", code="E_OPTION")
    for what, text in (("prompt", prompt), ("continuation", continuation)):
        if not isinstance(text, str) and (text is not None or what == "prompt"):
            raise InputError(f"The {what} must be a text, got {type(text).__name__}.", code="E_TXT_TYPE")
    if model.kind != "text":
        raise InputError(f"{model.name} has no tokenizer, so it cannot generate text. Use a causal language model.")
    start, ids = encode_prompt(model, prompt, continuation)
    if continuation is None:
        ids = [*start, *generate_tokens(model, start, tokens)]
    if len(ids) == len(start):
        raise InputError("The model generates nothing after this prompt: its first token is the end of the text.")
    steps = []
    with show_progress(len(ids) - len(start), "explaining") as progress:
        for first in range(len(start), len(ids), BATCH):
            places = list(range(first, min(first + BATCH, len(ids))))
            encoded = encode_ids(model, [ids[:place] for place in places])
            capture = record_for_methods([call], model, encoded, [ids[place] for place in places], None)
            batch = make_explanation(call, model, encoded, capture)
            steps += [trim_padding(batch[i], model, ids[:place]) for i, place in enumerate(places)]
            progress.advance(len(places))
    return Generation(model.tokenizer.decode(ids), len(start), tuple(steps))


def encode_prompt(model: Model, prompt: str, continuation: str | None) -> tuple[list[int], list[int]]:
    """The ids of the prompt, and of the whole text if a continuation is given."""
    start = token_ids_of(model.encode(prompt))
    if continuation is None:
        return start, start
    whole = token_ids_of(model.encode(prompt + continuation))
    if whole[: len(start)] != start or len(whole) == len(start):
        raise TargetError(
            f"{continuation!r} does not continue the prompt token by token: the tokenizer splits the joined text "
            "differently. Put the space between them at the start of the continuation, or end the prompt elsewhere."
        )
    return start, whole


def token_ids_of(encoded: EncodedBatch) -> list[int]:
    return [int(i) for i in encoded.inputs[encoded.main][0]]


def trim_padding(e: Explanation, model: Model, ids: Sequence[int]) -> Explanation:
    """One example without its padding, its tokens with the characters that they cover."""
    tokens = e.tokens[0]
    assert isinstance(tokens, Pieces)
    real = [i for i, padding in enumerate(tokens.padding) if not padding]
    text, spans = decode_with_spans(model.tokenizer, ids)
    trimmed = Pieces(
        pieces=tuple(tokens.pieces[i] for i in real),
        special=tuple(tokens.special[i] for i in real),
        padding=(False,) * len(real),
        spans=tuple(None if tokens.special[i] else spans[place] for place, i in enumerate(real)),
        text=text,
    )
    details = {name: detail[..., real] for name, detail in e.details.items() if detail.shape[-1] == len(tokens)}
    details |= {name: detail for name, detail in e.details.items() if detail.dim() == 1}
    return replace(e, scores=e.scores[:, real], tokens=(trimmed,), names=(text,), details=details)
