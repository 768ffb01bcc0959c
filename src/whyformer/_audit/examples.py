"""The examples of an audit as one model takes them: inputs, lengths and true classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whyformer._audit.batches import make_batches
from whyformer._audit.replay import AttentionReplay
from whyformer._engine import TargetNames
from whyformer._model import Model
from whyformer._runs.preparation import find_class_index
from whyformer.data import Data


@dataclass(frozen=True)
class AuditExamples:
    """The inputs of a data set, loaded, with their true classes."""

    model: Model
    inputs: Sequence[Any]
    labels: Sequence[int | None]  # None where the class is unknown, or not one of the model's
    lengths: Sequence[int]  # in tokens
    target: int | str | None = None  # the class that importance is measured for; by default the predicted one

    def __len__(self) -> int:
        return len(self.inputs)

    def make_batches(self, chosen: Sequence[int] | None = None) -> list[list[int]]:
        """The examples, or the chosen ones, in batches of similar length."""
        indices = range(len(self)) if chosen is None else chosen
        batches = make_batches([self.lengths[i] for i in indices], self.model.device.type)
        return [[indices[place] for place in batch] for batch in batches]

    def replay(self, batch: Sequence[int], blocks: Sequence[int] = (), model: Model | None = None) -> AttentionReplay:
        """Run a batch through the model, or through another one."""
        runner = self.model if model is None else model
        return AttentionReplay(runner, runner.encode([self.inputs[i] for i in batch]), blocks, self.target)


def find_class_labels(model: Model, data: Data, classes: int) -> tuple[list[int | None], list[str]]:
    """The true class of each example, None where it is unknown, and notes about labels the model does not have."""
    indices = [find_class_index(model, example, {}) for example in data.examples]
    unknown = [e.label for e, i in zip(data.examples, indices, strict=True) if i < 0 and e.label is not None]
    notes = []
    if unknown:
        notes.append(
            f"{len(unknown)} of {len(indices)} labels are not classes of the model, for example {unknown[0]!r}."
        )
    return [i if 0 <= i < classes else None for i in indices], notes


def read_target_labels(model: Model, data: Data, classes: int, *, is_language: bool) -> list[int | None]:
    """The true class, or next token, of each example; a label the model does not have is an error."""
    names = TargetNames(model, classes, is_language=is_language)
    return [None if example.label is None else names.index(example.label) for example in data.examples]
