r"""Reasoning hops: an answer traced through the tokens that the model generated before it, back to the prompt.

    h = trace_reasoning(model, prompt, select=-1)      # the last token of the answer
    print(h); h.matrix(); h.save("hops.json")

Relevance of an answer lands on the prompt and on tokens that the model generated itself. Those were predicted from
what came before them, so in the next hop each sends its share of what its step received, from its own logit:

$$ R^{(h+1)} = \sum_{t\,\in\,\text{generated}} \bar R^{(h)}_t \; \frac{\mathcal{R}[c_t]}{c_t}, \qquad
   \bar R_t = \frac{1}{|S(t)|} \sum_{u \in S(t)} R_u, \qquad
   c_t = z_{t-1,\,y_t} - \tfrac1V \sum_v z_{t-1,\,v} $$

with $S(t)$ the step of token $t$ (a sentence, a line, or up to a semicolon: `find_steps`; with steps=False every
token is one and $\bar R = R$), $\mathcal{R}[c]$ the relevance of the score $c$ at every token, $y_t$ the token at
position $t$ and $z_{t-1}$ the logits from which it was predicted. Hop 0 is the relevance of $\sum_t c_t$ over the
explained tokens. Signs are kept, and all tokens send at once: one run of the model and one relevance pass per hop.
Attention is causal: with steps=False relevance moves to the left in each hop, and there are at most as many hops as
generated tokens; a step also sends a part to itself, which shrinks from hop to hop.

A hop sends what it received, $\sum_t R_t$, because $\mathcal{R}[c]/c$ sums to 1 up to what the rules absorb:

    received = passed to the prompt + passed to generated tokens + absorbed

Why not the logit $z_{t-1,y_t}$ itself? The division needs a score that is positive and away from 0 for a token that
the model chose. Softmax ignores a constant added to all logits, so nothing in training fixes it: the likeliest token
can have a negative logit (docs/reasoning.md has models that do), the division would turn every sign, and the relevance
would explain the constant. The logit over the mean of the vocabulary is free of it and, for the likeliest token, never
negative. Log-probabilities go to 0 for a confident token, the opposite of what is needed. A token whose logit is less
than half a standard deviation above the mean was not chosen by the model (it was typed, or drawn by chance); it keeps
what it received, which counts as absorbed.

The formula is our own; no paper is followed. Relevance is linear in the score only if the recipe sends slopes, so other
recipes are refused. The default is CP-LRP: with attention held constant, softmax absorbs nothing, and on models where
the way of an answer is known more of it arrives at its source than with AttnLRP (docs/reasoning.md).
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine import Answer, TargetLike, find_output, find_recipe, record
from whyformer._explain.conservation import find_sent_relevance
from whyformer._explain.decoding import as_prompt
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodCall, MethodLike, choose_method
from whyformer._explain.precision import convert_precision
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer._explain.unforeseen import report_own_bugs
from whyformer._model import AnswerPart, EncodedBatch, Model, PromptLike, refuse_learned_prompt
from whyformer._model.prompt import Prompt, SplitBy, add_answer
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.words import find_sentence_starts
from whyformer.errors import InputError, MethodError, TargetError
from whyformer.methods._registry import METHODS, Setting
from whyformer.results.hops import Hop, Hops
from whyformer.show.chips import get_piece_text

LEAST_PREFERENCE = 0.5  # standard deviations above the mean logit; with less, a token keeps what it received
NEGLIGIBLE = 0.01  # of the relevance in hop 0, by magnitude: what generated tokens received is not sent on
LONGEST_LABEL = 60  # characters of the explained tokens in their name
KEPT = "tokens that the model did not choose"


@dataclass(frozen=True)
class PredictedTokens:
    """Some tokens of a sequence, and where in the output they were predicted."""

    module: nn.Module  # which tensor the logits are
    positions: tuple[int, ...]  # in the sequence
    ids: tuple[int, ...]
    length: int  # of the sequence

    @classmethod
    def of(cls, model: Model, prompt: Prompt, positions: Sequence[int]) -> "PredictedTokens":
        return cls(model.module, tuple(positions), tuple(prompt.ids[position] for position in positions), len(prompt))

    def read_preferences(self, returned: Any) -> tuple[Tensor, Tensor]:
        """[token]: the logit of each token over the mean logit; and the standard deviation of these logits."""
        logits = find_output(returned, self.module)
        if logits.dim() != 3 or logits.size(1) != self.length:
            raise TargetError(
                f"Hops need a language model that returns logits for every token, got {list(logits.shape)} for "
                f"{self.length} tokens. Use a causal language model with its head."
            )
        rows = logits[0, torch.tensor(self.positions, device=logits.device) - 1]  # [token, vocabulary]
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        own = rows.gather(1, torch.tensor(self.ids, device=logits.device)[:, None])[:, 0]
        return own - rows.mean(-1), rows.detach().std(-1, correction=0)


@dataclass(frozen=True)
class SelectedTokens:
    """The sum over some tokens of the answer of their logits over the mean logit: the score of hop 0."""

    tokens: PredictedTokens
    label: str

    def __call__(self, returned: Any) -> Tensor:
        return self.tokens.read_preferences(returned)[0].sum()[None]


@dataclass(frozen=True)
class PassedOn:
    """What generated tokens received, as a score of the output: its relevance is the next hop.

    Its value is the sum of what is sent; its slope divides that by the logits over the mean.
    """

    tokens: PredictedTokens  # those that send
    amounts: tuple[float, ...]  # what each received
    label = "what the generated tokens received"

    def __call__(self, returned: Any) -> Tensor:
        preference, deviation = self.tokens.read_preferences(returned)
        size = preference.detach()
        is_chosen = (size >= LEAST_PREFERENCE * deviation) & (size > 0)
        amounts = torch.tensor(self.amounts, dtype=preference.dtype, device=preference.device)
        return (amounts * preference / size.where(is_chosen, 1.0) * is_chosen).sum()[None]


@neutral_torch()
def trace_reasoning(
    model: ModelLike,
    prompt: PromptLike,
    method: MethodLike = "cp_lrp",
    *,
    answer: str | Sequence[int] | None = None,
    select: AnswerPart = None,
    target: TargetLike = None,
    versus: TargetLike = None,
    hops: int = 8,
    by: SplitBy | None = None,
    steps: bool = True,
    **settings: Setting,
) -> Hops:
    """Where an answer came from: its relevance, sent on by the tokens that the model generated before it.

    prompt: a `Prompt` with an answer, such as `generate` returns, or a text or a list of messages, with answer= as text
    or token ids. All tokens of the answer count as generated: the chain of thought and what follows from it.
    select: which tokens of the answer are explained, as in `targets.Answer`: by default all; -1 is the last one, a text
    is a part of the answer. Hop 0 explains the sum of their logits over the mean logit.
    target, versus: explain this instead, as in `explain`.
    hops: how many times relevance is sent on at most; 0 explains the target only. It ends earlier when less than 1 % of
    the relevance is left on generated tokens.
    by: the regions of the prompt, as in `Prompt.split`; by default its roles or documents, or else its passages.
    steps: what a token received, all tokens of its written step send on: a sentence, a line, or up to a semicolon.
    False: each token sends what it received itself, which finds less of a chain of steps (docs/reasoning.md).
    health=True also measures what the rules absorb in each hop.
    """
    call = choose_method(method, settings)
    refuse_other_methods(call)
    if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
        raise InputError(f"hops must be a whole number >= 0, got {hops!r}.", code="E_OPTION")
    model = as_model(model)
    refuse_learned_prompt(model.module, "trace_reasoning")
    prompt = read_prompt(model, prompt, answer)
    takes_own = by is None and (len(prompt.regions) > 1 or not prompt.text.strip())  # without a text, all of it
    regions = prompt.regions if takes_own else prompt.split("passage" if by is None else by)
    if target is None and versus is None:
        target = select_tokens(model, prompt, select)
    elif select is not None:
        raise InputError("Pass select= or target=, not both: select= names tokens of the answer.", code="E_OPTION")
    parts = find_steps(prompt) if steps else [[token] for token in prompt.answer]
    return Hops(tuple(pass_on(call, model, prompt, target, versus, parts, hops)), prompt, regions)


def read_prompt(model: Model, prompt: PromptLike, answer: str | Sequence[int] | None) -> Prompt:
    """A prompt with an answer, from either form of the arguments."""
    if isinstance(prompt, Prompt) and answer is not None:
        raise InputError("The prompt has its answer already. Leave out answer=, or pass the prompt as text.")
    whole = as_prompt(model, prompt) if answer is None else add_answer(model, as_prompt(model, prompt), answer)
    if not whole.answer:
        raise InputError(
            "The prompt has no answer, so there are no generated tokens to trace. Pass what the model generated as "
            "answer=, or let it generate: trace_reasoning(model, generate(model, prompt))."
        )
    return whole


def select_tokens(model: Model, prompt: Prompt, select: AnswerPart) -> SelectedTokens:
    """The score of hop 0, from numbers of tokens or a text of the answer."""
    numbers = Answer(select).find_tokens(prompt)
    positions = tuple(prompt.prompt_length + number for number in numbers)
    words = " ".join(get_piece_text(prompt.pieces, position).strip() for position in positions)
    words = words if len(words) <= LONGEST_LABEL else f"{words[: LONGEST_LABEL - 3]}..."
    return SelectedTokens(PredictedTokens.of(model, prompt, positions), repr(words))


def pass_on(
    call: MethodCall,
    model: Model,
    prompt: Prompt,
    target: TargetLike,
    versus: TargetLike,
    steps: Sequence[Sequence[int]],
    most: int,
) -> list[Hop]:
    """The hops from the target, until hardly anything is left on generated tokens or there are `most`."""
    converted = convert_precision(model, model.encode(prompt), call.precision)
    make_hop = partial(explain_hop, call, *converted, prompt.answer)
    hops = [make_hop(target, versus)]
    negligible = NEGLIGIBLE * hops[0].magnitude
    last = max(hops[0].find_senders(), default=0)  # what is written after the target does not explain it
    while len(hops) <= most and hops[-1].magnitude_left > negligible:
        received = share_within_steps(hops[-1].find_senders(), steps, last)
        if not received:
            break
        score = PassedOn(PredictedTokens.of(model, prompt, tuple(received)), tuple(received.values()))
        hops.append(make_hop(score, None, received))
    return hops


def explain_hop(
    call: MethodCall,
    model: Model,
    encoded: EncodedBatch,
    generated: range,
    target: TargetLike,
    versus: TargetLike,
    received: Mapping[int, float] | None = None,
) -> Hop:
    """Explain one score. received: by generated token; None for the first hop.

    health=True needs no blocks here, only what was absorbed in all.
    """
    assert call.recipe is not None
    plain = replace(call, wants_health=False)
    with report_own_bugs(model):
        if call.wants_health:
            capture = record(
                model, encoded, target=target, versus=versus, keep=set(plain.needs), recipes=[call.recipe],
                track_absorbed=True,
            )  # fmt: skip
        else:
            capture = record_for_methods([plain], model, encoded, target, versus)
        explanation = make_explanation(plain, model, encoded, capture)
    sent = float(find_sent_relevance(capture, call.recipe)[0])
    total = sent if received is None else math.fsum(received.values())
    if not call.wants_health:
        return Hop(explanation, generated, total, received or {})
    absorbed_by: dict[str, float] = {}  # by what, over the whole model
    for one in capture.absorbed[call.recipe]:
        absorbed_by[one.what] = absorbed_by.get(one.what, 0.0) + float(one.amount[0])
    absorbed_by |= {} if received is None else {KEPT: total - sent}
    return Hop(explanation, generated, total, received or {}, absorbed_by)


def refuse_other_methods(call: MethodCall) -> None:
    """Only relevance at the input, under a recipe that sends slopes, adds up over hops."""
    if call.needs == ("input_relevance",) and call.recipe is not None and call.recipe.sends == "slope":
        return
    able = [
        name
        for name, one in METHODS.items()
        if one.needs == ("input_relevance",) and one.recipe and find_recipe(one.recipe).sends == "slope"
    ]
    raise MethodError(
        f"Hops need relevance that is linear in the explained score and arrives at the tokens; {call.method.name} "
        f"{'with this recipe ' if call.method.name in able else ''}does not give that. Use one of: {', '.join(able)}, "
        'or attnlrp with another recipe that sends slopes, such as recipe="libra".',
        code="E_OPTION",
    )


# --- steps ------------------------------------------------------------------------------------------------------------

# A name in a step is why its value was looked up, but relevance of the value hardly shows that: attention reads the
# value and only points with the name. So a step answers for its tokens together: what one of them received, all of
# them send on, in equal shares.


STEP_END = re.compile(r";\s+|\n\s*")


def find_steps(prompt: Prompt) -> list[list[int]]:
    """The tokens of each step of the answer, in order; without a text every token is one."""
    text, begin = prompt.answer_text, prompt.answer_start
    if not text.strip():
        return [[token] for token in prompt.answer]
    starts = sorted({0, *find_sentence_starts(text), *(match.end() for match in STEP_END.finditer(text))})
    ends = [span[1] - begin if (span := prompt.pieces.spans[token]) else 0 for token in prompt.answer]
    numbers, number = [], 0
    for end in ends:  # a token belongs to the step that it ends in; one without characters to the step before it
        number = max(number, bisect_right(starts, end - 1))
        numbers.append(number)
    numbered = zip(numbers, prompt.answer, strict=True)
    return [[token for _, token in step] for _, step in groupby(numbered, key=lambda one: one[0])]


def share_within_steps(received: Mapping[int, float], steps: Sequence[Sequence[int]], last: int) -> dict[int, float]:
    """Token -> what it sends: its share of what its step received. Tokens after `last` had no part in the target."""
    shared = {}
    for step in steps:
        tokens = [token for token in step if 0 < token <= last]  # the first of all was predicted from nothing
        amount = math.fsum(received.get(token, 0.0) for token in tokens)
        if amount:
            shared.update(dict.fromkeys(tokens, amount / len(tokens)))
    return shared
