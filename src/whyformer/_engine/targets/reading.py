"""How the explained score is read from what a model returned, once the target is fixed.

The same reading is used for the explained run and for every variant of it that a probe runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from whyformer._engine.run.returned import Returned, find_output
from whyformer._engine.targets.target import Target, pick_logits, probabilities_of, read_logits
from whyformer._model import EncodedBatch


@dataclass(frozen=True)
class Answers:
    """The answers of the model to n variants, for the target of the original example."""

    score: Tensor  # [n], the explained logit, the difference of two, or another score
    probability: Tensor  # [n], of the target; its score if it has no probability (a regression, a function)
    logits: Tensor  # [n class]; [n 1], the score, for a target that is no class

    def map(self, change: Callable[[Tensor], Tensor]) -> "Answers":
        return Answers(change(self.score), change(self.probability), change(self.logits))


class Reading(Protocol):
    """Reads the score of each row; row i is a variant of example of[i]."""

    def read(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> Answers: ...


@dataclass(frozen=True)
class ClassReading:
    """The logit of a class or of the next token, minus that of another one if there is one."""

    module: nn.Module
    targets: Sequence[Target]

    def read(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> Answers:
        logits = read_logits(encoded, find_output(returned, self.module))[0]
        wanted = [self.targets[i] for i in of.tolist()]
        target, versus = pick_logits(logits, [t.index for t in wanted], [t.versus for t in wanted])
        score = target if versus is None else target - versus
        probabilities = probabilities_of(self.module, logits)
        probability = target
        if probabilities is not None:
            probability = pick_logits(probabilities, [t.index for t in wanted], [None] * len(wanted))[0]
        return Answers(score, probability, logits)
