"""A callback for transformers.Trainer: explain fixed examples every n steps.

    trainer = Trainer(model, args, train_dataset=data, processing_class=tokenizer,
                      callbacks=[ExplainCallback(["a gorgeous film"], every=100, trackers=[FolderTracker("looks")])])

`callback.looks` has all looks; one in which the evidence jumped is logged as a warning of the logger "whyformer".
"""

from typing import Any

from transformers import TrainerCallback

from whyformer.integrations.schedule import Schedule


class ExplainCallback(TrainerCallback):
    """Explains the examples before training, every n steps and at the end; see `Schedule` for the arguments.

    The tokenizer or image processor is the `processing_class` of the Trainer unless another is given.
    """

    def __init__(self, examples: Any, **options: Any) -> None:
        self.schedule = Schedule(examples, **options)

    @property
    def looks(self) -> list[Any]:
        return self.schedule.looks

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._look(state, more, is_due=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._look(state, more, is_due=self.schedule.is_due(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._look(state, more, is_due=True)

    def _look(self, state: Any, more: dict[str, Any], *, is_due: bool) -> None:
        if is_due and state.is_world_process_zero:
            self.schedule.look(more["model"], state.global_step, more.get("processing_class"))
