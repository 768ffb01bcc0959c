"""The plan of a judgement: model, data, methods, metrics and batches. See whyformer._runs.plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import __version__ as torch_version

from whyformer._engine import TargetLike
from whyformer._explain.method_call import MethodCall
from whyformer._model import Model
from whyformer._plain import archive
from whyformer._plain.versions import __version__
from whyformer._runs.arguments import check_run_number
from whyformer._runs.choice import write_run_target
from whyformer._runs.plan import ShardedPlan
from whyformer._runs.weights import describe_planned_model
from whyformer.data import Data
from whyformer.metrics._registry import MetricCall

DEFAULT_BATCH = {"cpu": 16, "cuda": 64}  # examples, by device


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


def make_judge_plan(
    model: Model,
    data: Data,
    methods: Mapping[str, MethodCall],
    metrics: Mapping[str, MetricCall],
    *,
    target: TargetLike,
    batch: int | None,
) -> JudgePlan:
    """The plan, in JSON fields."""
    size = batch if batch is not None else DEFAULT_BATCH.get(model.device.type, 16)
    check_run_number("batch_size", size, least=1)
    fields = {
        "model": describe_planned_model(model),
        "data": {"name": data.name, "examples": len(data), "fingerprint": data.fingerprint()},
        "mask_values": data.mask_values,
        "methods": {label: call.all_settings for label, call in methods.items()},
        "metrics": {label: call.settings for label, call in metrics.items()},
        "target": write_run_target(target),
        "batch": int(size),
        "whyformer": __version__,
        "torch": torch_version,
    }
    return JudgePlan(archive.as_json_value(fields))
