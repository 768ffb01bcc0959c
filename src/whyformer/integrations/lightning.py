"""A callback for Lightning: explain fixed examples every n steps.

    trainer = Trainer(callbacks=[ExplainCallback(["a gorgeous film"], tokenizer=tokenizer, part="model", every=100)])

`part` names the attribute of the LightningModule that is the transformer; without it the module itself is explained.
"""

from typing import Any

from whyformer.integrations.schedule import Schedule
from whyformer.integrations.trackers import import_optional

Callback: Any = import_optional("lightning.pytorch", "lightning").Callback


class ExplainCallback(Callback):  # type: ignore[misc]
    """Explains the examples before training, every n steps and at the end; see `Schedule` for the other arguments."""

    def __init__(self, examples: Any, *, part: str | None = None, **options: Any) -> None:
        self.part, self.schedule = part, Schedule(examples, **options)

    @property
    def looks(self) -> list[Any]:
        return self.schedule.looks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module, is_due=True)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._look(trainer, pl_module, is_due=self.schedule.is_due(trainer.global_step))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module, is_due=True)

    def _look(self, trainer: Any, pl_module: Any, *, is_due: bool) -> None:
        if is_due and trainer.is_global_zero:
            module = pl_module if self.part is None else pl_module.get_submodule(self.part)
            self.schedule.look(module, trainer.global_step)
