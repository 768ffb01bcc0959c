"""A callback for transformers.Trainer: explain fixed examples every n steps.

    trainer = Trainer(model, args, train_dataset=data, processing_class=tokenizer,
                      callbacks=[ExplainCallback(["a gorgeous film"], every=100, trackers=[FolderTracker("looks")])])

`callback.looks` has all looks; one in which the evidence jumped is logged as a warning of the logger "whyformer". The
tokenizer or image processor is the `processing_class` of the Trainer unless another is given.
"""

from typing import Any

from transformers import TrainerCallback

from whyformer.integrations.schedule import Schedule


class ExplainCallback(Schedule, TrainerCallback):
    __doc__ = Schedule.__doc__

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._look(state, more, is_due=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._look(state, more, is_due=self.is_due(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._look(state, more, is_due=True)

    def _look(self, state: Any, more: dict[str, Any], *, is_due: bool) -> None:
        if is_due and state.is_world_process_zero:
            self.look(more["model"], state.global_step, more.get("processing_class"))
