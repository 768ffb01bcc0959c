"""What was found out about a model, forgotten when the model computes in another way.

    LESSONS: ModelMemo[Lesson] = ModelMemo()
    lessons = LESSONS.recall(module)             a dictionary; empty after somebody has replaced code of the model

Changed weights do not matter: what is kept here does not depend on them.
"""

from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from whyformer._engine.run.model_state import ModelState

V = TypeVar("V")


class ModelMemo(WeakKeyDictionary[nn.Module, dict[Any, V]]):
    """A dictionary for each model."""

    def __init__(self) -> None:
        super().__init__()
        self.states: WeakKeyDictionary[nn.Module, ModelState] = WeakKeyDictionary()

    def recall(self, module: nn.Module, now: ModelState | None = None) -> dict[Any, V]:
        """What is known of the model as it is now, to be added to. now: its state, if it has just been read."""
        before = self.states.get(module)
        if before is None or not before.has_same_code(now or ModelState(module, before)):
            self.states[module] = ModelState(module).keep(module)
            self[module] = {}
        return self.setdefault(module, {})

    def read_state(self, module: nn.Module) -> ModelState:
        """The state of the model now, read faster if it was known before."""
        return ModelState(module, self.states.get(module))
