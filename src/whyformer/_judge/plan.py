"""The plan of a judgement: model, data, methods, metrics and batches. See whyformer._runs.plan."""

from dataclasses import dataclass
from typing import ClassVar

from whyformer._runs.plan import ShardedPlan


@dataclass(frozen=True)
class JudgePlan(ShardedPlan):
    """What is judged. One shard of rows holds one batch of examples."""

    kind: str = "judgement"
    counted: ClassVar[str] = "examples"
    shard_field: ClassVar[str] = "batch"

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.fields["methods"])

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.fields["metrics"])
