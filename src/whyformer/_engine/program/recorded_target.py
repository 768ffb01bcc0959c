"""The plain target as part of a program: chosen by operations on tensors, so that nothing waits for Python.

Which class or token each example asks for is an input of the program, [batch] numbers, where PREDICTED stands for what
the model predicts, or for no contrast. Strings become numbers, and wrong ones errors, before the program runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine.targets.target import (
    ExplainedAnswer,
    Target,
    TargetNames,
    describe_targets,
    find_last_tokens,
    probabilities_of,
    read_logits,
    refuse_same_targets,
)
from whyformer._engine.tracing.provenance import Trace
from whyformer._model import EncodedBatch, Model

PREDICTED = -1


@dataclass(frozen=True)
class RecordedChoice:
    """What was chosen, [batch] each."""

    predicted: Tensor
    index: Tensor
    score: Tensor
    probability: Tensor | None
    position: Tensor | None


def number_targets(wanted: Sequence[int | None], device: torch.device) -> Tensor:
    return torch.tensor([PREDICTED if one is None else one for one in wanted], device=device)


def choose_recorded_target(
    model: Model, encoded: EncodedBatch, output: Tensor, wanted: Tensor, against: Tensor | None
) -> tuple[ExplainedAnswer, RecordedChoice]:
    """As `choose_target`, with the numbers of the targets as tensors."""
    answers, position, trace = locate_logits(encoded, output)
    predicted = answers.detach().argmax(-1)
    index = torch.where(wanted < 0, predicted, wanted)
    target = pick_logit(answers, index)
    versus = None if against is None else torch.where(against < 0, 0, pick_logit(answers, against.clamp(min=0)))
    answer = ExplainedAnswer(target, versus, trace, answers.shape)
    probabilities = probabilities_of(model.module, answers.detach())
    chosen = None if probabilities is None else pick_logit(probabilities, index)
    return answer, RecordedChoice(predicted, index, answer.score.detach(), chosen, position)


def locate_logits(encoded: EncodedBatch, output: Tensor) -> tuple[Tensor, Tensor | None, Trace]:
    """As `read_logits`, with the positions as a tensor."""
    if output.dim() < 3:
        answers, _, trace = read_logits(encoded, output)
        return answers, None, trace
    last, read = find_last_tokens(encoded, output)
    if output.size(1) == 1:
        return output[:, 0], last, Trace(samples=None, read=read)
    at = last.clamp(min=0)[:, None, None].expand(-1, 1, output.size(2))
    return output.gather(1, at)[:, 0], last, Trace(samples=None, read=read)


def pick_logit(logits: Tensor, index: Tensor) -> Tensor:
    return logits.gather(1, index[:, None])[:, 0]


def describe_recorded_target(
    names: TargetNames, choice: RecordedChoice, others: Sequence[int | None]
) -> tuple[Target, ...]:
    """The target of each example, from a choice on the CPU."""
    indices = choice.index.tolist()
    refuse_same_targets(names, indices, others)
    return describe_targets(
        names,
        indices,
        others,
        choice.predicted.tolist(),
        choice.score.tolist(),
        None if choice.probability is None else choice.probability.tolist(),
        None if choice.position is None else choice.position.tolist(),
    )
