"""When a callback looks, with what it opens the model, and where it logs: the same for every training library."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from whyformer._engine import TargetLike
from whyformer._explain.method_call import MethodLike
from whyformer._model.loading import open as open_model
from whyformer.errors import InputError
from whyformer.integrations.trackers import Tracker
from whyformer.integrations.watch import JUMP, Look, Watch, WatchedExamples

logger = logging.getLogger("whyformer")


class Schedule:
    """Looks at fixed examples before training, every n steps and at the end.

    examples, targets, method, jump: as for Watch. every: steps between two looks. trackers: where looks are logged.
    tokenizer, processor, labels: what the model is opened with, if the training library does not have it. part: the
    attribute of the trained module that is the transformer; by default the module itself.
    """

    def __init__(
        self,
        examples: WatchedExamples,
        *,
        every: int = 100,
        targets: TargetLike = None,
        method: MethodLike | None = None,
        jump: float = JUMP,
        trackers: Sequence[Tracker] = (),
        tokenizer: Any = None,
        processor: Any = None,
        labels: Sequence[str] | None = None,
        part: str | None = None,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every must be a whole number >= 1, got {every!r}.", code="E_OPTION")
        self.watch, self.every, self.part = Watch(examples, targets, method, jump), every, part
        self.trackers, self.looks = list(trackers), list[Look]()
        self.opening = {"tokenizer": tokenizer, "processor": processor, "labels": labels}

    def is_due(self, step: int) -> bool:
        return step % self.every == 0

    def look(self, module: nn.Module, step: int, preprocessor: Any = None) -> Look:
        """Explain, log and keep; a step that was looked at already is not explained again."""
        if self.looks and self.looks[-1].step == step:
            return self.looks[-1]
        watched = module if self.part is None else module.get_submodule(self.part)
        look = self.watch.look(open_model(watched, **self._choose_opening(preprocessor)), step)
        self.looks.append(look)
        if look.message:
            logger.warning(look.message)
        for tracker in self.trackers:
            tracker.log(look)
        return look

    def _choose_opening(self, preprocessor: Any) -> dict[str, Any]:
        """With the tokenizer or image processor of the training library, if none was given."""
        is_given = self.opening["tokenizer"] is not None or self.opening["processor"] is not None
        if preprocessor is None or is_given:
            return self.opening
        name = "tokenizer" if hasattr(preprocessor, "convert_ids_to_tokens") else "processor"
        return {**self.opening, name: preprocessor}
