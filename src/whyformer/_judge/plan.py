"""The plan of a judgement: model, data, methods, metrics and batches. See whyformer._runs.plan."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import __version__ as torch_version

from whyformer._explain.method_call import MethodCall
from whyformer._judge.controls import CONTROL_NAMES
from whyformer._model import Model
from whyformer._plain import archive
from whyformer._plain.versions import __version__
from whyformer._runs.arguments import check_run_number
from whyformer._runs.choice import write_judged_target
from whyformer._runs.plan import PLAN_FILE, RunPlan, read_stored_plan
from whyformer._runs.weights import describe_planned_model
from whyformer.data import Data
from whyformer.metrics._registry import MetricCall

LATER_SETTINGS = {"ties": "random"}  # of metrics, added after 0.1; with this value they compute what 0.1 did
DEFAULT_BATCH = {"cpu": 16, "cuda": 64}  # examples, by device


@dataclass(frozen=True)
class JudgePlan(RunPlan):
    """What is judged. One shard of rows holds one batch of examples."""

    kind: str = "judgement"

    @property
    def batch(self) -> int:
        return int(self.fields["batch"])

    @property
    def examples(self) -> int:
        return int(self.fields["data"]["examples"])

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.fields["methods"])

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.fields["metrics"])

    @property
    def shards(self) -> int:
        return -(-self.examples // self.batch)

    def without_methods(self, labels: Collection[str]) -> "JudgePlan":
        """The same plan with fewer methods."""
        kept = {label: settings for label, settings in self.fields["methods"].items() if label not in labels}
        return replace(self, fields={**self.fields, "methods": kept})

    def without_settings(self, later: Mapping[str, Collection[str]]) -> "JudgePlan":
        """The same plan without these settings of metrics, where they have the value of LATER_SETTINGS."""
        metrics = {
            label: {
                name: value
                for name, value in settings.items()
                if name not in later.get(label, ()) or value != LATER_SETTINGS[name]
            }
            for label, settings in self.fields["metrics"].items()
        }
        return replace(self, fields={**self.fields, "metrics": metrics})

    def places(self, shard: int) -> range:
        """The examples of one shard."""
        return range(shard * self.batch, min(self.examples, (shard + 1) * self.batch))


def make_judge_plan(
    model: Model,
    data: Data,
    methods: Mapping[str, MethodCall],
    metrics: Mapping[str, MetricCall],
    *,
    target: Any,
    batch: int | None,
) -> JudgePlan:
    """The plan, in the JSON fields of version 0.1."""
    size = batch if batch is not None else DEFAULT_BATCH.get(model.device.type, 16)
    check_run_number("batch", size, least=1)
    fields = {
        "model": describe_planned_model(model),
        "data": {"name": data.name, "examples": len(data), "fingerprint": data.fingerprint()},
        "mask_values": data.mask_values,
        "methods": {label: call.all_settings for label, call in methods.items()},
        "metrics": {label: call.settings for label, call in metrics.items()},
        "target": write_judged_target(target),
        "batch": int(size),
        "whyformer": __version__,
        "torch": torch_version,
    }
    return JudgePlan(archive.as_json_value(fields))


def match_stored_plan(plan: JudgePlan, folder: Path) -> JudgePlan:
    """The plan without what came after the folder's plan was written, so that folders of earlier versions are resumed.

    That is the controls, and settings whose default is what was computed before they existed.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        return plan
    stored = read_stored_plan(path, plan)
    methods, metrics = stored.get("methods"), stored.get("metrics")
    if not isinstance(methods, Mapping) or CONTROL_NAMES.isdisjoint(methods):
        plan = plan.without_methods(CONTROL_NAMES)
    if isinstance(metrics, Mapping):
        plan = plan.without_settings({label: LATER_SETTINGS.keys() - settings for label, settings in metrics.items()})
    return plan
