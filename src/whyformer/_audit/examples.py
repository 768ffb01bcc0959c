"""The examples of an audit as one model takes them: inputs, true classes, and batches of similar length."""

from collections.abc import Sequence
from dataclasses import dataclass

from whyformer._audit.checks import find_span_class
from whyformer._audit.reruns import AttentionReplay
from whyformer._engine import TargetNames
from whyformer._model import Model, OneInput
from whyformer._runs.preparation import find_class_index
from whyformer.data import Data

BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}  # tokens per batch, padding included
MAX_EXAMPLES = 64  # per batch
MIN_LENGTH = 16  # shorter examples count as this long, so that batches of short texts stay small
ENCODED_AT_ONCE = 256


@dataclass(frozen=True)
class AuditExamples:
    """The inputs of a data set, loaded, with their true classes."""

    model: Model
    inputs: Sequence[OneInput]
    labels: Sequence[int | None]  # None where the class is unknown, or not one of the model's
    lengths: Sequence[int]  # in tokens
    target: int | str | None = None  # the class that importance is measured for; by default the predicted one

    def __len__(self) -> int:
        return len(self.inputs)

    def make_batches(self, chosen: Sequence[int] | None = None) -> list[list[int]]:
        """The examples, or the chosen ones, in batches of similar length."""
        indices = range(len(self)) if chosen is None else chosen
        batches = group_by_length([self.lengths[i] for i in indices], self.model.device.type)
        return [[indices[i] for i in batch] for batch in batches]

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


def find_span_labels(model: Model, data: Data) -> list[int | None]:
    """The class of each marked answer, of its first stretch; None without one."""
    return [
        find_span_class(model.encode([example.load()]), *example.rationale[0]) if example.rationale else None
        for example in data.examples
    ]


def read_target_labels(model: Model, data: Data, classes: int, *, is_language: bool) -> list[int | None]:
    """The true class, or next token, of each example; a label the model does not have is an error."""
    names = TargetNames(model, classes, is_language=is_language)
    return [None if example.label is None else names.index(example.label) for example in data.examples]


def count_example_tokens(model: Model, inputs: Sequence[OneInput], default: int) -> list[int]:
    """The number of tokens of each text; `default` for every other kind of input."""
    if model.kind != "text":
        return [default] * len(inputs)
    lengths: list[int] = []
    for start in range(0, len(inputs), ENCODED_AT_ONCE):
        mask = model.encode(list(inputs[start : start + ENCODED_AT_ONCE])).token_mask
        assert mask is not None
        lengths += mask.sum(-1).tolist()
    return lengths


def group_by_length(lengths: Sequence[int], device: str) -> list[list[int]]:
    """Indices grouped by similar length. No batch has a single example if it can be avoided.

    The replacement "other" needs a second example in the batch.
    """
    tokens = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        size = len(batches[-1]) + 1 if batches else 0
        if batches and size * max(lengths[i], MIN_LENGTH) <= tokens and size <= MAX_EXAMPLES:
            batches[-1].append(i)
        else:
            batches.append([i])
    if len(batches) > 1 and len(batches[-1]) == 1:
        single = batches.pop()
        batches[-1] += single
    return batches
