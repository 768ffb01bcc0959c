"""The tokens that a model generates after a prompt, or that its decoder writes about a source.

The model's own `generate` is used if it has one, with its cache of keys and values; otherwise tokens are chosen one by
one (greedy_decoding.py). Generation ends before an end token.
"""

from collections.abc import Sequence
from typing import Any

import torch

from whyformer._engine import Answer, TargetLike, make_shadow, refuse_encoder_decoders
from whyformer._explain.greedy_decoding import decode_step_by_step, find_end_tokens
from whyformer._model import InputLike, Model, TextPair, unwrap
from whyformer._model.prompt import Prompt, append_tokens
from whyformer._plain.progress import Writing, show_activity
from whyformer.errors import InputError

WRITTEN = 20  # tokens that a decoder writes at most before the last of them is explained
OWN_OPTIONS = ("forced_bos_token_id", "bad_words_ids")  # by which a translator knows its language


def generate_tokens(
    model: Model, prompt: Prompt, tokens: int, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
) -> list[int]:
    """The ids that the model generates after these."""
    refuse_encoder_decoders(model.module)
    read = len(prompt) - prompt.source_length
    room = tokens if model.max_length is None else min(tokens, model.max_length - read)
    if room < 1:
        raise InputError(
            f"The prompt has {read} tokens, and {model.name} takes at most {model.max_length}, so there is no room for "
            "an answer. Shorten the prompt.",
            code="E_TXT_TOO_LONG",
        )
    if prompt.source_length or hasattr(unwrap(model.module), "generate"):
        return call_own_generate(model, prompt, room, temperature=temperature, top_p=top_p, seed=seed)
    return decode_step_by_step(model, prompt.ids, room, temperature=temperature, top_p=top_p, seed=seed)


def call_own_generate(
    model: Model, prompt: Prompt, tokens: int, *, temperature: float, top_p: float, seed: int
) -> list[int]:
    """The tokens of the model's own `generate`, run on a shadow; every option that would change them is set here."""
    from transformers import GenerationConfig

    ends, source = find_end_tokens(model), prompt.source_length
    options: dict[str, Any] = {}
    if temperature:
        options |= {"temperature": float(temperature), "top_p": float(top_p), "top_k": 0}
    if source:
        own = getattr(unwrap(model.module), "generation_config", None)
        options |= {name: found for name in OWN_OPTIONS if (found := getattr(own, name, None)) is not None}
        options |= {"decoder_start_token_id": model.decoder_start}
    config = GenerationConfig(
        do_sample=bool(temperature), max_new_tokens=tokens, num_beams=1, repetition_penalty=1.0, use_cache=True,
        eos_token_id=sorted(ends) or None, pad_token_id=model.padding, **options,
    )  # fmt: skip
    ids = torch.tensor([list(prompt.ids)], device=model.device)
    devices = [ids.device] if ids.device.type == "cuda" else []
    given, shadow = ids[:, :source] if source else ids, make_shadow(model.module)
    written = {"decoder_input_ids": ids[:, source:]} if source else {}
    writing = Writing(tokens)
    with torch.random.fork_rng(devices), torch.no_grad(), show_activity(writing):
        torch.manual_seed(seed)
        made = (shadow.model if source else shadow).generate(  # type: ignore[operator, union-attr]
            given, attention_mask=torch.ones_like(given), generation_config=config, streamer=writing, **written
        )
    found = [int(i) for i in made[0, len(prompt) - source :]]
    return found[: next((index for index, i in enumerate(found) if i in ends), len(found))]


# --- what a decoder writes before it is explained ---------------------------------------------------------------------


def write_out(model: Model, inputs: InputLike, target: TargetLike) -> tuple[InputLike, TargetLike]:
    """Texts with what the decoder writes about them, of which by default the last token is the target.

    Other inputs, and those of models without a decoder that writes, are returned as they are.
    """
    items = [inputs] if isinstance(inputs, str | Prompt) else inputs
    if model.decoder_start is None or not isinstance(items, list | tuple) or isinstance(items, TextPair) or not items:
        return inputs, target
    if not all(isinstance(one, str) or (isinstance(one, Prompt) and not one.answer) for one in items):
        return inputs, target
    written = [write_one(model, one if isinstance(one, Prompt) else Prompt.from_text(model, one)) for one in items]
    if target is None:
        return written, [Answer(-1) if prompt.answer else None for prompt in written]
    return written, target


def write_one(model: Model, prompt: Prompt) -> Prompt:
    ids: Sequence[int] = generate_tokens(model, prompt, WRITTEN)
    return append_tokens(model, prompt, ids) if ids else prompt
