"""Multiple choice: a model that scores several texts of an example, and chooses one of them.

Its input is [batch, choice, token], its answer [batch, choice]. Each text gets its score on its own, so the choice is
explained by running the model on the chosen text only: [batch, 1, token]. The module is wrapped for that, not changed.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from whyformer._engine.run.forward import run_plain
from whyformer._engine.run.returned import Returned
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.target import expand_per_example
from whyformer._engine.targets.target_kinds import refuse_task
from whyformer._engine.targets.target_like import OneTarget, Settled, TargetKind, TargetLike
from whyformer._engine.targets.terms import Term
from whyformer._model import EncodedBatch, Model
from whyformer.errors import TargetError


@dataclass(frozen=True)
class Choice(TargetKind):
    """The score of one of the texts that a multiple-choice model chooses between; by default the chosen one."""

    number: int

    def settle(self, view: AnswerView, row: int) -> Settled:
        if not isinstance(view.model.module, OneChoice):
            raise refuse_task(view, "Choice", "a multiple-choice model and inputs [batch, choice, token]")
        return Settled((Term((0,)),), f"choice {self.number}", self)


class OneChoice(nn.Module):
    """A multiple-choice model that gets one text of each example, [batch, token]."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Tensor) -> Returned:
        return self.module(**{name: given[:, None] for name, given in inputs.items()})


def has_choices(encoded: EncodedBatch) -> bool:
    main = encoded.inputs[encoded.main]
    return main.dim() == 3 and not main.is_floating_point()


def pick_choices(
    model: Model, encoded: EncodedBatch, target: TargetLike, versus: TargetLike
) -> tuple[Model, EncodedBatch, list[Choice]]:
    """The model and the batch of the explained texts, and their targets."""
    if any(one is not None for one in expand_per_example(versus, encoded.batch, "versus")):
        raise TargetError("versus does not work for multiple choice: every choice is a text of its own. Explain each.")
    scores = run_plain(make_shadow(model.module), encoded)
    wanted = expand_per_example(target, encoded.batch, "target")
    numbers = [
        int(scores[row].argmax()) if one is None else read_choice(one, scores.size(1)) for row, one in enumerate(wanted)
    ]
    rows = torch.arange(encoded.batch)
    at = torch.tensor(numbers)
    choices = encoded.inputs[encoded.main].size(1)
    inputs = {
        name: given[rows.to(given.device), at.to(given.device)]
        if given.dim() >= 3 and given.size(1) == choices
        else given
        for name, given in encoded.inputs.items()
    }
    chosen = replace(model.encode(inputs), names=encoded.names)
    targets = [Choice(number) for number in numbers]
    return replace(model, module=OneChoice(model.module), labels=None), chosen, targets


def read_choice(wanted: OneTarget, choices: int) -> int:
    number = wanted.number if isinstance(wanted, Choice) else wanted
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < choices:
        raise TargetError(f"There is no choice {wanted!r}. Choices are 0 to {choices - 1}.")
    return number
