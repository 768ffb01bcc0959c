"""Explain every token that a language model generates.

    g = explain_generation(model, "the keys to the cabinet", max_new_tokens=8)
    g[0]; g.whole; print(g); g.save("why.html")      # a page: click on a token to see why the model chose it

Each token is explained as the next token after all before it. Methods whose recipe sends slopes (attnlrp, libragrad
...) run the model once for all tokens, with one backward pass for each and one for the continuation as a whole. Others
explain the prefixes in batches; an example gets the same scores in a batch as alone, so the batch size does not
matter. Token ids are those that were generated: nothing is tokenised again.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from whyformer._engine import Answer, Target, record_each
from whyformer._explain.decoding import as_prompt, check_options, refuse_sound
from whyformer._explain.default_method import TEXT_METHOD
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodCall, MethodLike, choose_method
from whyformer._explain.precision import convert_precision
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer._explain.token_generation import generate_tokens
from whyformer._explain.unforeseen import report_own_bugs
from whyformer._model import Model, PromptLike
from whyformer._model.prompt import Prompt, append_tokens, check_ids, cut_prompt, encode_continuation
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Pieces, Stream
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, TargetError
from whyformer.methods._registry import Setting
from whyformer.results.explanation import Explanation
from whyformer.results.generation import Generation

BATCH = 16  # prefixes explained at once
# What is captured at a token does not depend on the tokens after it
SHARED_SITES = {"input_relevance", "hidden_relevance", "token_relevance", "position_relevance", "unattended", "mask"}


@neutral_torch()
def explain_generation(
    model: ModelLike,
    prompt: PromptLike,
    method: MethodLike = TEXT_METHOD,
    *,
    max_new_tokens: int = 20,
    continuation: str | Sequence[int] | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    **settings: Setting,
) -> Generation:
    """Why each token of a continuation was chosen.

    prompt: a text, a list of messages or a Prompt; the answer of a Prompt is the continuation.
    max_new_tokens: how many tokens the model generates at most. continuation: explain this text, or these token ids,
    instead of the model's own. temperature, top_p, seed: as in generate().
    """
    call = choose_method(method, settings)
    check_options(max_new_tokens, temperature, top_p, seed)
    model = as_model(model)
    refuse_sound(model)
    for what, text in (("prompt", prompt), ("continuation", continuation)):
        if isinstance(text, bytes) or not isinstance(text, str | Prompt | Sequence | None):
            raise InputError(f"The {what} must be a text, got {type(text).__name__}.", code="E_TXT_TYPE")
    if model.kind != "text" and not isinstance(prompt, Prompt):
        raise InputError(f"{model.name} has no tokenizer, so it cannot generate text. Use a causal language model.")
    whole = as_prompt(model, prompt)
    if continuation is not None:
        whole = append_tokens(model, whole.without_answer(), encode_given(model, whole.without_answer(), continuation))
    elif not whole.answer:
        ids = generate_tokens(model, whole, max_new_tokens, temperature=temperature, top_p=top_p, seed=seed)
        whole = append_tokens(model, whole, ids)
    if not whole.answer:
        raise InputError("The model generates nothing after this prompt: its first token is the end of the text.")
    if shares_forward(call):
        steps, total = explain_from_one_forward(call, model, whole)
    else:
        steps, total = explain_prefixes(call, model, whole), None
    return Generation(whole.text, whole.prompt_length, tuple(steps), whole, total)


def encode_given(model: Model, prompt: Prompt, continuation: str | Sequence[int]) -> Sequence[int]:
    """The ids of a continuation; a text that the tokenizer would join with the prompt is refused."""
    if not isinstance(continuation, str):
        return check_ids(continuation, "continuation")
    before = "" if prompt.source_length else prompt.text
    ids, is_joined = encode_continuation(model.tokenizer, before, continuation)
    if not is_joined and not prompt.source_length:
        raise TargetError(
            f"{continuation!r} does not continue the prompt token by token: the tokenizer splits the joined text "
            "differently. Put the space between them at the start of the continuation, or end the prompt elsewhere."
        )
    return ids


def shares_forward(call: MethodCall) -> bool:
    """Whether all tokens can be explained from one forward pass over the whole continuation."""
    sends_slopes = call.recipe is not None and call.recipe.sends == "slope"
    return sends_slopes and set(call.needs) <= SHARED_SITES and not call.wants_health


def explain_from_one_forward(call: MethodCall, model: Model, prompt: Prompt) -> tuple[list[Explanation], Explanation]:
    """The explanation of every token of the answer, and of all as one target, from one forward pass."""
    own, encoded = convert_precision(model, model.encode(prompt), call.precision)
    count = len(prompt.answer)
    targets = [Answer(token) for token in range(count)]
    assert call.recipe is not None
    steps: list[Explanation] = []
    with report_own_bugs(model), show_progress(count, "explaining") as progress:
        for position, capture in enumerate(record_each(own, encoded, [*targets, Answer()], call.needs, [call.recipe])):
            e = make_explanation(call, model, encoded, capture)
            if position == count:
                return steps, e
            steps.append(cut_step(e, model, prompt, prompt.prompt_length + position, count))
            progress.advance()
    raise AssertionError("the last capture is that of the sum")


def cut_step(e: Explanation, model: Model, prompt: Prompt, position: int, count: int) -> Explanation:
    """The explanation of one token, without the tokens that come later: these have no part in it."""
    before, target, index = cut_prompt(prompt, position), e.targets[0], prompt.ids[position]
    label = str(index) if model.tokenizer is None else model.tokenizer.decode([index])
    explained = Target(index, label, target.score, target.probability, target.predicted, position=position - 1)
    return replace(
        e,
        scores=e.scores[:, :position],
        tokens=(before.pieces,),
        names=(before.text or e.names[0],),
        targets=(explained,),
        details=cut_details(e, range(position), len(prompt)),
        parts=find_streams(before),
        spent={name: passes / count if name == "forward" else passes for name, passes in e.spent.items()},
    )


def explain_prefixes(call: MethodCall, model: Model, prompt: Prompt) -> list[Explanation]:
    """The explanation of every token of the answer, each from a run on the tokens before it."""
    steps: list[Explanation] = []
    size = BATCH if model.takes_batches_of_texts else 1
    with show_progress(len(prompt.answer), "explaining") as progress:
        for first in range(prompt.prompt_length, len(prompt), size):
            positions = list(range(first, min(first + size, len(prompt))))
            prefixes = [cut_prompt(prompt, position) for position in positions]
            encoded = replace(model.encode(prefixes), answers=())
            capture = record_for_methods([call], model, encoded, [prompt.ids[position] for position in positions], None)
            batch = make_explanation(call, model, encoded, capture)
            steps += [drop_padded_tokens(batch[i], prefix) for i, prefix in enumerate(prefixes)]
            progress.advance(len(positions))
    return steps


def drop_padded_tokens(e: Explanation, prefix: Prompt) -> Explanation:
    """One example without its padding."""
    tokens = e.tokens[0]
    assert isinstance(tokens, Pieces)
    real = [i for i, padding in enumerate(tokens.padding) if not padding]
    details = cut_details(e, real, len(tokens))
    return replace(e, scores=e.scores[:, real], tokens=(prefix.pieces,), details=details, parts=find_streams(prefix))


def find_streams(prompt: Prompt) -> tuple[Stream, ...]:
    """What the encoder and the decoder read, of a model that has both."""
    source = prompt.source_length
    return (Stream("source", 0, source), Stream("prefix", source, len(prompt))) if source else ()


def cut_details(e: Explanation, kept: Sequence[int], length: int) -> dict[str, Tensor]:
    """The details of these tokens; what is not by token stays as it is, unless it has another number of them."""
    details = {name: detail[..., list(kept)] for name, detail in e.details.items() if detail.shape[-1] == length}
    return details | {name: detail for name, detail in e.details.items() if detail.dim() == 1}
