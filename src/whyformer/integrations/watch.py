r"""Watch: what a model looks at in a few fixed examples while it is trained, and when that jumps.

    watch = Watch(["a gorgeous film", "a tedious film"])
    look = watch.look(model, step=100)
    look.moved        share of the evidence of each example that moved since the last look

An example with a label is explained for its label, any other for what the model answers at that step: what an untrained
head answers is not worth following. With the scores $s$ of two looks as shares $p_i = |s_i| / \sum_j |s_j|$, what moved
is the total variation distance

$$\frac{1}{2} \sum_i |p_i - q_i|$$

from 0 (nothing) to 1 (everything); above `jump` the look is flagged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from torch import Tensor

from whyformer._engine import TargetLike
from whyformer._explain.explain import as_model, explain
from whyformer._explain.method_call import MethodLike
from whyformer._model import InputLike, Model
from whyformer._runs.preparation import find_class_index
from whyformer.data import Data, Example
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation

JUMP = 0.5  # half of the evidence is elsewhere
WatchedExamples: TypeAlias = InputLike | Data | Sequence[Example]


@dataclass(frozen=True)
class Look:
    """The explanations of all watched examples at one step of training."""

    step: int
    explanation: Explanation
    moved: tuple[float, ...] | None  # of each example since the last look; None at the first
    jump: float = JUMP

    @property
    def jumped(self) -> list[str]:
        """The names of the examples whose evidence moved by more than the limit."""
        pairs = zip(self.explanation.names, self.moved or (), strict=False)
        return [name for name, moved in pairs if moved > self.jump]

    @property
    def message(self) -> str:
        """A sentence on the jumps; empty if there is none."""
        if not self.jumped:
            return ""
        most = max(self.moved or (0.0,))
        return (
            f"Step {self.step}: what the model looks at jumped in {len(self.jumped)} of {len(self.explanation)} "
            f"examples ({', '.join(self.jumped[:3])}); up to {most:.0%} of the evidence moved since the last look."
        )

    def scalars(self) -> dict[str, float]:
        """Numbers to log: of each example the probability of its target, and how much moved."""
        found: dict[str, float] = {}
        for i, name in enumerate(self.explanation.names):
            probability = self.explanation.targets[i].probability
            found |= {} if probability is None else {f"probability/{name}": probability}
            found |= {} if self.moved is None else {f"moved/{name}": self.moved[i]}
        return found | ({} if self.moved is None else {"moved/largest": max(self.moved)})


@dataclass
class Watch:
    """Fixed examples that are explained again and again.

    examples: what explain() takes, or examples with labels (whyformer.data), the same at each look. targets: one each;
    by default the label, or what the model answers now where there is none. settings: of the method.
    """

    examples: WatchedExamples
    targets: TargetLike = None
    method: MethodLike | None = None
    jump: float = JUMP
    settings: Mapping[str, Any] = field(default_factory=dict)
    last: Explanation | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.jump <= 1:
            raise InputError(f"jump must be above 0 and at most 1, got {self.jump!r}.", code="E_OPTION")

    def look(self, model: Model | Any, step: int = 0) -> Look:
        """Explain the examples with the weights that the model has now; the model is left as it is."""
        model = as_model(model)
        inputs, labels = read_watched(self.examples, model)
        targets = labels if self.targets is None else self.targets
        now = explain(model, inputs, self.method, target=targets, **self.settings)
        moved = None if self.last is None else measure_moves(self.last.scores, now.scores)
        self.last = now
        return Look(step, now, moved, self.jump)


def measure_moves(before: Tensor, after: Tensor) -> tuple[float, ...]:
    """The total variation distance of the shares of each example."""
    one, other = (as_shares(scores) for scores in (before, after))
    return tuple((0.5 * (one - other).abs().sum(1)).tolist())


def as_shares(scores: Tensor) -> Tensor:
    """[batch token]: absolute scores that sum to 1; equal shares if all are zero."""
    magnitude = scores.double().abs()
    total = magnitude.sum(1, keepdim=True)
    return (magnitude / total).where(total > 0, 1 / max(scores.shape[1], 1))


def read_watched(examples: WatchedExamples, model: Model) -> tuple[InputLike, list[int | None] | None]:
    """The inputs, and the class of each by its label; None without labels."""
    found = examples.examples if isinstance(examples, Data) else examples
    labelled = [one for one in found if isinstance(one, Example)] if isinstance(found, list | tuple) else []
    if not labelled:
        return cast(InputLike, examples), None
    indices = (find_class_index(model, one, {}) for one in labelled)
    return [one.load() for one in labelled], [None if index < 0 else index for index in indices]
