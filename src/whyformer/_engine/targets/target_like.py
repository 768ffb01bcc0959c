"""TargetLike: what explain() and the other verbs take as `target` and `versus`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from torch import Tensor
from typing_extensions import TypeAliasType

from whyformer._engine.targets.target_kinds import TargetKind

# A class or token by index or name; another kind of target; a function of the model's output; None: the prediction.
OneTarget: TypeAlias = int | np.integer | str | TargetKind | Callable[..., Tensor] | None
# One for all examples, or one for each.
TargetLike = TypeAliasType("TargetLike", OneTarget | Sequence[OneTarget] | Tensor | np.ndarray)
