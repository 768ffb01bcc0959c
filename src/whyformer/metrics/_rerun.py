"""Again: the same method with the same settings, on other inputs, targets or weights. Stability and sanity ask for it.

    rerun = Rerun(model, encoded, explanation)
    rerun()                                 once more as it was
    rerun(target=[1, 0])                    for other classes
    rerun(inputs=noisy, of=[0, 0, 1, 1])    two variants of each example; the targets stay those of the first run
    rerun(model=randomised)                 by another module of the same shape
    rerun(seed=1)                           with another setting

The model and the encoded batch are never changed: variants are made on copies, run in chunks of the batch's own size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.perturb import pick_examples
from whyformer._explain.explain import explain
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation


@dataclass(frozen=True, eq=False)
class Rerun:
    """The explanation of a batch, to be made again."""

    model: Model
    encoded: EncodedBatch
    explanation: Explanation

    @property
    def inputs(self) -> Tensor:
        """The explained input as the model takes it: pixels [batch channel height width], ids [batch token], ..."""
        return self.encoded.inputs[self.encoded.main]

    def __call__(
        self,
        inputs: Tensor | None = None,
        *,
        target: Any = None,
        model: nn.Module | Model | None = None,
        of: Sequence[int] | Tensor | None = None,
        **settings: Any,
    ) -> Explanation:
        """Explain variants: row n is a variant of example of[n], with its target unless another one is given.

        inputs: what takes the place of the explained input, rows along the same axis. target: one class, or one a row.
        """
        rows = list(range(self.encoded.batch)) if of is None else [int(i) for i in of]
        if inputs is not None and inputs.size(self.encoded.batch_axis) != len(rows):
            raise InputError(f"{inputs.size(self.encoded.batch_axis)} inputs for {len(rows)} rows. Give one a row.")
        targets, against = self._targets(rows, target)
        by = self._model(model)
        chosen = {**self.explanation.settings, **settings}
        step = max(self.encoded.batch, 1)
        parts = []
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            encoded = pick_examples(self.encoded, torch.tensor(rows[some]))
            if inputs is not None:
                new = inputs.narrow(self.encoded.batch_axis, start, len(rows[some]))
                new = new.to(self.inputs.device, self.inputs.dtype)
                encoded = replace(encoded, inputs={**encoded.inputs, encoded.main: new})
            method = self.explanation.method
            parts.append(explain(by, encoded, method, target=targets[some], versus=against[some], **chosen))
        return join_batches(parts)

    def _targets(self, rows: Sequence[int], target: Any) -> tuple[list[Any], list[Any]]:
        """The class of each row, and the one it is held against; a new target stands alone."""
        first = [self.explanation.targets[i] for i in rows]
        if target is None:
            return [one.index for one in first], [one.versus for one in first]
        if isinstance(target, Tensor):
            target = target.tolist()
        wanted = list(target) if isinstance(target, list | tuple) else [target] * len(rows)
        if len(wanted) != len(rows):
            raise InputError(f"{len(wanted)} targets for {len(rows)} rows. Give one for all, or one a row.")
        return wanted, [None] * len(rows)

    def _model(self, model: nn.Module | Model | None) -> Model:
        if model is None:
            return self.model
        return model if isinstance(model, Model) else replace(self.model, module=model)


def join_batches(parts: Sequence[Explanation]) -> Explanation:
    """Explanations of several batches by the same method as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        scores=torch.cat([part.scores for part in parts]),
        tokens=tuple(tokens for part in parts for tokens in part.tokens),
        targets=tuple(target for part in parts for target in part.targets),
        names=tuple(name for part in parts for name in part.names),
        pixels=None if first.pixels is None else torch.cat([p.pixels for p in parts if p.pixels is not None]),
        special=None if first.special is None else torch.cat([p.special for p in parts if p.special is not None]),
        details={name: torch.cat([part.details[name] for part in parts]) for name in first.details},
    )
