"""Why does a model call this function with these arguments?

    t = explain_tool_call(model, messages)           the model writes the call; or a Prompt or a log that has it
    t.top("function"); t.top("argument city")

The function's name and each argument are targets of their own: the log-odds of their tokens, given what was written
before them. By default every word of what users and tools say is left out in turn, so that a score is what happened.
"""

from collections.abc import Mapping, Sequence

import torch

from whyformer._engine import Answer
from whyformer._explain.decoding import as_prompt
from whyformer._explain.explain import ModelLike, as_model, explain_encoded
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._explain.token_generation import generate_tokens
from whyformer._model import PromptLike
from whyformer._model.prompt import Prompt, append_tokens, find_tool_calls
from whyformer._plain.json_value import JsonValue
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.words import group_pieces
from whyformer.errors import InputError
from whyformer.methods._players import Players, choose_players
from whyformer.methods._registry import Setting
from whyformer.results.tool_call import ToolCall

ASKING = ("user", "tool")  # kinds of regions whose words are left out


@neutral_torch()
def explain_tool_call(
    model: ModelLike,
    prompt: PromptLike | Mapping[str, JsonValue],
    method: MethodLike = "leave_one_out",
    *,
    within: Sequence[str] | None = None,
    max_new_tokens: int = 80,
    **settings: Setting,
) -> ToolCall:
    """Which words of which message a tool call comes from, for its function and for each argument.

    prompt: messages, a Prompt or a text, or a record of a log such as a request and its response of an API like that of
    OpenAI. Without an answer the model writes one, of at most max_new_tokens tokens.
    method: by default each word is deleted in turn and the call scored again, a forward pass for each word and part;
    methods without removal, such as "attnlrp", cost one pass for each part and score all words.
    within: the names of the regions whose words are left out, such as "user 2" or "tool definition search"; by default
    all that users and tools say, or the whole prompt if it has no roles.
    """
    model = as_model(model)
    whole = Prompt.from_log(model, prompt) if isinstance(prompt, Mapping) else as_prompt(model, prompt)
    if not whole.answer:
        whole = append_tokens(model, whole, generate_tokens(model, whole, max_new_tokens))
    parts = find_tool_calls(whole.answer_text)
    if not parts:
        raise InputError(
            f"The answer calls no function: {whole.answer_text[:80]!r}. A call is JSON with a name and arguments, or "
            "Python with named arguments."
        )
    call = choose_method(method, {"fill": "delete", **settings} if method == "leave_one_out" else settings)
    encoded = model.encode(whole)
    explained = []
    with choose_players([make_word_players(whole, within)]):
        for part in parts:
            target = Answer((part.start, part.stop), unit="character", score="log_odds")
            explained.append(explain_encoded(model, encoded, call, target))
    return ToolCall(whole.answer_text, tuple(parts), tuple(explained))


def make_word_players(prompt: Prompt, within: Sequence[str] | None) -> Players:
    """A player for each word of the regions. The last token of the prompt stays, since the answer is read there."""
    names = [region.name for region in prompt.regions]
    if within is not None and (unknown := [name for name in within if name not in names]):
        raise InputError(
            f"The prompt has no region {unknown[0]!r}. Regions: {', '.join(dict.fromkeys(names))}.", code="E_OPTION"
        )
    chosen = [one for one in prompt.regions if (one.kind in ASKING if within is None else one.name in within)]
    inside = {token for one in chosen or prompt.regions for token in range(one.start, one.stop)}
    inside -= {prompt.prompt_length - 1}
    groups = [group for group in group_pieces(prompt.pieces) if inside.issuperset(group)]
    owner = torch.full((len(prompt.ids),), -1)
    for number, group in enumerate(groups):
        owner[group] = number
    owner[[i for i, special in enumerate(prompt.pieces.special) if special]] = -1
    return Players(owner, len(groups), (1, len(groups)))
