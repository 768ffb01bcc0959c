"""The finalist: does the map of the recommended method change with the class, and with the weights of the model?

Two sanity checks on a few examples: the rank correlation of its map with that of the least likely class (class_swap),
and with that of the same model after all weights were drawn anew (parameter_randomisation). A map that stays the same
explains something else than this answer of this model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from whyformer._judge.bench import Bench
from whyformer._judge.plan import make_judge_plan
from whyformer._judge.rows import JudgeStore, RowTable
from whyformer._plain.statistics import compute_t_interval
from whyformer.metrics._registry import MetricCall, choose_metric

EXAMPLES = 16
CLASS, WEIGHTS = "class_swap", "parameter_randomisation"
CHECKS: Mapping[str, Mapping[str, int]] = {CLASS: {}, WEIGHTS: {"stages": 1}}
HARDLY_CHANGES = {CLASS: 0.9, WEIGHTS: 0.5}  # rank correlations from which that is said beside the recommendation


@dataclass(frozen=True)
class Finalist:
    """The recommended method, and the rank correlations of its maps with their 95 % intervals, by check."""

    method: str
    correlations: Mapping[str, tuple[float, float, float]]
    examples: int

    def list_objections(self) -> list[str]:
        """What speaks against the method, for the first sentence."""
        texts = {CLASS: "hardly change with the class", WEIGHTS: "hardly depend on the trained weights"}
        return [
            f"its maps {texts[check]} (rank correlation {mean:.2f})"
            for check, (mean, _, _) in self.correlations.items()
            if mean >= HARDLY_CHANGES[check]
        ]

    def describe(self) -> list[str]:
        """One sentence with the numbers."""
        texts = {CLASS: "those of another class", WEIGHTS: "those of the model with randomised weights"}
        found = [
            f"{mean:.2f} (95 % {max(low, -1):.2f} to {min(high, 1):.2f}) with {texts[check]}"
            for check, (mean, low, high) in self.correlations.items()
            if mean == mean
        ]
        if not found:
            return []
        return [f"Its maps have a rank correlation of {' and '.join(found)}, on {self.examples} examples."]


def check_finalist(bench: Bench, method: str, folder: Path) -> Finalist:
    """Both checks on a few examples, stored beside the other rows."""
    metrics: dict[str, MetricCall] = {name: choose_metric(name, dict(own)) for name, own in CHECKS.items()}
    call = bench.methods[method]
    few = replace(bench, data=bench.data.sample(EXAMPLES), methods={method: call}, metrics=metrics)
    plan = make_judge_plan(few.model, few.data, few.methods, metrics, target=few.target, batch=None)
    (folder / "finalist").mkdir(exist_ok=True)
    store = JudgeStore(folder / "finalist", plan)
    for shard in range(plan.shards):
        if store.read(shard) is None:
            store.write(shard, few.make_shard(plan.indices(shard)))
    values = RowTable(store).value[:, 0]
    found = {name: compute_t_interval(values[:, k]) for k, name in enumerate(metrics)}
    return Finalist(method, found, len(few.data))
