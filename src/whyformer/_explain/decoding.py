"""What a language model answers to a prompt: the prompt with the generated tokens as its answer.

    prompt = generate(model, "the keys to the cabinet", max_new_tokens=8)
    prompt.answer_text; explain(model, prompt)

How tokens are chosen: token_generation.py. Token ids are kept as they were generated.
"""

from collections.abc import Sequence

from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.token_generation import generate_tokens
from whyformer._model import Model, PromptLike, TwoStreams
from whyformer._model.prompt import DocumentLike, Prompt, append_tokens
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError

LARGEST_SEED = 2**63


@neutral_torch()
def generate(
    model: ModelLike,
    prompt: PromptLike,
    *,
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Prompt:
    """The prompt with what the model answers to it.

    prompt: a text, a Prompt (its answer, if it has one, is replaced), or a list of messages.
    max_new_tokens: how many are generated at most. temperature: 0 takes the most likely token; above 0, tokens are
    drawn. top_p: draw from the fewest tokens that together have this probability. seed: the same one draws the same
    tokens.
    """
    check_options(max_new_tokens, temperature, top_p, seed)
    model = as_model(model)
    given = as_prompt(model, prompt).without_answer()
    ids = generate_tokens(model, given, max_new_tokens, temperature=temperature, top_p=top_p, seed=seed)
    return append_tokens(model, given, ids)


def as_prompt(model: Model, prompt: PromptLike, documents: Sequence[DocumentLike] | None = None) -> Prompt:
    """A text, a list of messages or a Prompt as a Prompt, with documents that it may be answered from."""
    given: object = prompt
    refuse_sound(model)
    if isinstance(given, bytes) or not isinstance(given, str | Prompt | Sequence):
        kind = type(given).__name__
        raise InputError(f"The prompt must be a text, a Prompt or a list of messages, got {kind}.", code="E_TXT_TYPE")
    if isinstance(prompt, Prompt):
        return prompt if documents is None else prompt.with_documents(documents)
    if isinstance(prompt, str):
        return Prompt.from_text(model, prompt, documents=documents)
    return Prompt.from_messages(model, prompt, documents=documents)


def refuse_sound(model: Model) -> None:
    """A prompt is a text, and some models read sound alone."""
    if isinstance(model.module, TwoStreams) and not model.module.reads_text:
        raise InputError(
            f"{model.name} reads sound, and a prompt is a text. explain() takes a sound and explains the last token "
            'that is written about it, or that after {"audio": sound, "decoder_input_ids": tokens}.'
        )


def check_options(max_new_tokens: int, temperature: float, top_p: float, seed: int) -> None:
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be a whole number >= 1, got {max_new_tokens!r}.", code="E_OPTION")
    if not is_real(temperature) or not 0 <= temperature < float("inf"):
        raise InputError(f"temperature must be a finite number >= 0, got {temperature!r}.", code="E_OPTION")
    if not is_real(top_p) or not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, got {top_p!r}.", code="E_OPTION")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < LARGEST_SEED:
        raise InputError(f"seed must be a whole number >= 0 and below 2**63, got {seed!r:.80}.", code="E_OPTION")


def is_real(value: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
