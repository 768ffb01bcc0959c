"""What was found out about models: one memory for the whole engine.

How a model must be run, because of a surprise in its code, stays known; docs/architecture.md has the table of these.
Answers to questions are kept as long as what they depend on stays: the code of the model, or its code and its weights.

    recall(module, "plans")                      a dictionary to be added to; empty after code of the model was replaced
    recall(module, "order", of_weights=True)     and after its weights have changed
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from torch import nn

from whyformer._engine.run.cut_graph import Ignored
from whyformer._engine.run.model_state import ModelState
from whyformer._model import unwrap

Scale: TypeAlias = Literal[
    "logits", "softmax", "sigmoid", "log-softmax", "log-odds", "log-probabilities",
    "exp", "shifted", "logsumexp",  # steps of a softmax that is written out
]  # fmt: skip


@dataclass(eq=False)
class Learnt:
    """What is known of one model."""

    writes: bool = False  # its forward writes into its own tensors: shadows have copies of them
    compiles: bool = False  # its forward calls functions that it compiles: they run as they are written
    ignored: Ignored = Ignored.NOTHING  # of what cuts its graph
    reads_marks: bool = False  # whether numbers pass a threshold is all that it reads of them
    settles_early: bool = False  # it embeds ids again after a first use: the embedding itself is the explained input
    scale: Scale | None = None  # of what it returns, once one of its runs has been watched
    is_turned: bool = False  # it returns logits [class row], [class] for one row, or with an axis of size 1
    runs_alone: bool = False  # the rows of a batch touch each other
    maps_examples: bool = False  # it maps over the examples of a batch, so each is run alone
    memory_share: float = 1.0  # of the budget for variants: halved when memory ran out
    state: ModelState | None = None
    of_code: dict[str, dict[Any, Any]] = field(default_factory=dict)  # answers, by question
    of_weights: dict[str, dict[Any, Any]] = field(default_factory=dict)


MEMORY: WeakKeyDictionary[nn.Module, Learnt] = WeakKeyDictionary()
OF_MODEL = "_whyformer_learnt"  # where a shadow keeps what is known of its model


class RunAgain(Exception):
    """What was just learnt about the model changes how it is run: the run starts again, once for each such thing."""


def learnt(module: nn.Module) -> Learnt:
    """What is known of a model, or of the model of a shadow."""
    own: Learnt | None = MEMORY.get(module) or vars(unwrap(module)).get(OF_MODEL)
    return MEMORY.setdefault(unwrap(module), Learnt()) if own is None else own


def read_state(module: nn.Module) -> ModelState:
    """The state of a model now, read faster if it was known before."""
    return ModelState(module, learnt(module).state)


def recall(
    module: nn.Module, question: str, now: ModelState | None = None, *, of_weights: bool = False
) -> dict[Any, Any]:
    """The answers that hold for the model as it is now, to be added to. now: its state, if it has just been read."""
    own = learnt(module)
    now = read_state(module) if now is None else now
    if own.state is None or not own.state.is_same(now):
        now = ModelState(module)  # what was read before may name code that is followed anew since
    if own.state is None or not own.state.is_same(now):
        if own.state is None or not own.state.has_same_code(now):
            own.of_code.clear()
        own.of_weights.clear()
        own.state = now.keep(module)
    return (own.of_weights if of_weights else own.of_code).setdefault(question, {})
