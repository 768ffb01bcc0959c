"""TargetLike: what explain() and the other verbs take as `target` and `versus`."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor
from typing_extensions import TypeAliasType

from whyformer._engine.targets.target_kinds import TargetKind

# A class or token by index or name; another kind of target; a function of the model's output; None: the prediction.
# One for all examples, or a sequence with one for each.
TargetLike = TypeAliasType(
    "TargetLike",
    "int | np.integer | str | TargetKind | Callable[..., Tensor] | Sequence[TargetLike] | Tensor | np.ndarray | None",
)
