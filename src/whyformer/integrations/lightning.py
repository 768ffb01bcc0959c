"""A callback for Lightning: explain fixed examples every n steps.

trainer = Trainer(callbacks=[ExplainCallback(["a gorgeous film"], tokenizer=tokenizer, part="model", every=100)])
"""

from typing import Any

from whyformer.integrations.schedule import Schedule
from whyformer.integrations.trackers import import_optional

Callback: Any = import_optional("lightning.pytorch", "lightning").Callback


class ExplainCallback(Schedule, Callback):  # type: ignore[misc]
    __doc__ = Schedule.__doc__

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module, is_due=True)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._look(trainer, pl_module, is_due=self.is_due(trainer.global_step))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module, is_due=True)

    def _look(self, trainer: Any, pl_module: Any, *, is_due: bool) -> None:
        if is_due and trainer.is_global_zero:
            self.look(pl_module, trainer.global_step)
