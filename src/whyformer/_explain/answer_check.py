"""Check whether a model could have given an answer: its log-probabilities, beside those of a log.

    prompt = Prompt.from_log(model, record)
    print(check_answer(model, prompt))

The model runs once on all tokens.
"""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._engine import find_task, make_shadow, refuse_encoder_decoders, run_plain_returned
from whyformer._explain.decoding import is_real
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import Model
from whyformer._model.prompt import Prompt
from whyformer._plain.setting_checks import list_entries
from whyformer._plain.tokens import Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError
from whyformer.results.answer_check import AnswerCheck


@neutral_torch()
def check_answer(
    model: ModelLike, prompt: Prompt, logged: Sequence[float] | None = None, *, tolerance: float = 0.1
) -> AnswerCheck:
    """How likely the model finds each token of a prompt's answer, and whether a log agrees.

    logged: the log-probabilities of another engine, one for each token of the answer; by default those of the log that
    the prompt was made from. tolerance: the largest mean difference at which the log can be of this model.
    """
    model = as_model(model)
    if not isinstance(prompt, Prompt) or not prompt.answer:
        raise InputError(
            "check_answer needs a Prompt with an answer. Make one with Prompt.from_tokens(model, ids, answer_ids), "
            "Prompt.from_text(model, text, answer) or generate(model, text)."
        )
    if not is_real(tolerance) or not tolerance >= 0:
        raise InputError(f"tolerance must be a number >= 0, got {tolerance!r}.", code="E_OPTION")
    others = check_logged(prompt.logged if logged is None else logged, len(prompt.answer))
    scores = read_answer_logits(model, prompt).double().log_softmax(-1).cpu()
    own = scores[torch.arange(len(scores)), torch.tensor(prompt.answer_ids)]
    ranks = (scores > own[:, None]).sum(-1)
    return AnswerCheck(cut_answer(prompt), tuple(own.tolist()), tuple(ranks.tolist()), others, tolerance)


def read_answer_logits(model: Model, prompt: Prompt) -> Tensor:
    """[token word]: the logits from which each token of the answer was predicted."""
    refuse_encoder_decoders(model.module)
    encoded = model.encode(prompt)
    with torch.no_grad():
        task = find_task(model, encoded, run_plain_returned(make_shadow(model.module), encoded), is_causal=lambda: True)
    if task.kind != "next token" or task.output.size(1) != len(prompt):
        raise InputError(
            f"{model.name} does not predict the next token at every position. Use a causal language model."
        )
    return task.output[0, [position - 1 for position in prompt.answer]].detach()


def check_logged(logged: Sequence[float] | None, length: int) -> tuple[float, ...] | None:
    if logged is None:
        return None
    values = list_entries(logged)
    are_numbers = values is not None and all(is_real(one) and abs(one) <= sys.float_info.max for one in values)
    if values is None or len(values) != length or not are_numbers:
        given = type(logged).__name__ if values is None else f"{len(values)} entries"
        raise InputError(
            f"logged must have one number for each of the {length} tokens of the answer, got {given}.", code="E_OPTION"
        )
    return tuple(float(value) for value in values)


def cut_answer(prompt: Prompt) -> Pieces:
    own, pieces = slice(prompt.answer.start, prompt.answer.stop), prompt.pieces
    return Pieces(pieces.pieces[own], pieces.special[own], pieces.padding[own], pieces.spans[own], pieces.text)
