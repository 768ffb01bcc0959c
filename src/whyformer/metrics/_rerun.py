"""Rerun a method with the same settings on other inputs, targets or weights; stability and sanity metrics need this.

    rerun = Rerun(model, encoded, explanation)
    rerun()                                 once more, unchanged
    rerun(target=[1, 0])                    for other classes
    rerun(inputs=noisy, of=[0, 0, 1, 1])    two variants of each example, with the targets of the first run
    rerun(model=randomised)                 by another module of the same shape
    rerun(seed=1)                           with another setting

The model and the encoded batch are not changed: variants are copies, run in chunks of the size of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from whyformer._engine import TargetLike, restore_target_like
from whyformer._explain.explain import explain_encoded
from whyformer._explain.method_call import choose_method
from whyformer._model import EncodedBatch, Model, pick_examples
from whyformer.errors import InputError
from whyformer.methods._registry import Method, Setting
from whyformer.results.explanation import Explanation
from whyformer.results.joining import join_explanations


@dataclass(frozen=True, eq=False)
class Rerun:
    """The explanation of a batch, ready to be computed again."""

    model: Model
    encoded: EncodedBatch
    explanation: Explanation
    method: Method | None = None  # for a method that is not registered; by default the one the explanation names

    @property
    def inputs(self) -> Tensor:
        """The explained input as the model takes it: pixels [batch channel height width], ids [batch token], ..."""
        return self.encoded.inputs[self.encoded.main]

    def __call__(
        self,
        inputs: Tensor | None = None,
        *,
        target: TargetLike = None,
        model: nn.Module | Model | None = None,
        of: Sequence[int] | Tensor | None = None,
        **settings: Setting,
    ) -> Explanation:
        """Explain variants: row n is a variant of example of[n], with its target unless another one is given.

        inputs: replaces the explained input, with the rows along the same axis. target: one class for all rows, or one
        per row.
        """
        if self.method is not None and self.method.is_given:
            raise InputError(
                f"The scores of {self.method.name} were computed elsewhere, so this metric cannot compute them for "
                "other inputs, targets or weights."
            )
        rows = list(range(self.encoded.batch)) if of is None else [int(i) for i in of]
        if inputs is not None and inputs.size(self.encoded.batch_axis) != len(rows):
            raise InputError(
                f"Got {inputs.size(self.encoded.batch_axis)} inputs for {len(rows)} rows; pass one per row."
            )
        targets, versus = self._choose_targets(rows, target)
        by = replace(self.model, module=model) if isinstance(model, nn.Module) else model or self.model
        call = choose_method(self.method or self.explanation.method, {**self.explanation.settings, **settings})
        size = max(self.encoded.batch, 1)
        parts = []
        for start in range(0, len(rows), size):
            chunk = slice(start, start + size)
            encoded = self._encode_variants(rows[chunk], inputs, start)
            parts.append(explain_encoded(by, encoded, call, targets[chunk], versus[chunk]))
        return join_explanations(parts)

    def _encode_variants(self, rows: Sequence[int], inputs: Tensor | None, start: int) -> EncodedBatch:
        """The examples of these rows, with the inputs from `start` on in place of their own."""
        encoded = pick_examples(self.encoded, torch.tensor(rows))
        if inputs is None:
            return encoded
        variants = inputs.narrow(self.encoded.batch_axis, start, len(rows))
        variants = variants.to(self.inputs.device, self.inputs.dtype)
        return replace(encoded, inputs={**encoded.inputs, encoded.main: variants})

    def _choose_targets(self, rows: Sequence[int], target: TargetLike) -> tuple[list[TargetLike], list[TargetLike]]:
        """The target and the contrast of each row; a new target has no contrast."""
        first = [self.explanation.targets[i] for i in rows]
        if target is None:
            return [restore_target_like(t.index, t.spec) for t in first], [
                restore_target_like(t.versus, t.versus_spec) for t in first
            ]
        if isinstance(target, Tensor):
            target = target.tolist()
        targets = list(target) if isinstance(target, list | tuple) else [target] * len(rows)
        if len(targets) != len(rows):
            raise InputError(f"Got {len(targets)} targets for {len(rows)} rows; pass one for all, or one per row.")
        return targets, [None] * len(rows)
