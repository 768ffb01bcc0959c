"""The finalist: does the map of the recommended method change with the class, and with the weights of the model?

Two sanity checks on a few examples: the rank correlation of its map with that of the least likely class (class_swap),
and with that of the same model after all weights were drawn anew (parameter_randomisation). A map that stays the same
explains something else than this answer of this model. The second needs a copy of the model, so that models of more
than MOST_PARAMETERS are left out; whatever fails is said, and the judgement stands without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from whyformer._judge.bench import Bench
from whyformer._plain.statistics import compute_t_interval
from whyformer.metrics._registry import MetricCall, choose_metric

EXAMPLES = 16
CLASS, WEIGHTS = "class_swap", "parameter_randomisation"
CHECKS: Mapping[str, Mapping[str, int]] = {CLASS: {}, WEIGHTS: {"stages": 1}}
MOST_PARAMETERS = 1_000_000_000
HARDLY_CHANGES = {CLASS: 0.9, WEIGHTS: 0.5}  # rank correlations from which that is said beside the recommendation


@dataclass(frozen=True)
class Finalist:
    """The recommended method, and the rank correlations of its maps with their 95 % intervals, by check."""

    method: str
    correlations: Mapping[str, tuple[float, float, float]]
    examples: int
    problem: str = ""  # why a check was left out

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
        said = (
            [f"Its maps have a rank correlation of {' and '.join(found)}, on {self.examples} examples."]
            if found
            else []
        )
        return said + ([f"Not tested for class and weights: {self.problem}."] if self.problem else [])


def check_finalist(bench: Bench, method: str, folder: Path) -> Finalist:
    """Both checks on a few examples, stored beside the other rows."""
    checks = dict(CHECKS)
    problem = ""
    if sum(weight.numel() for weight in bench.model.module.parameters()) > MOST_PARAMETERS:
        del checks[WEIGHTS]
        problem = "a copy of the model with other weights would be too large"
    try:
        values = measure_checks(bench, method, checks, folder / "finalist")
    except Exception as error:
        return Finalist(method, {}, 0, f"{error}".rstrip(".") or type(error).__name__)
    found = {name: compute_t_interval(values[:, k]) for k, name in enumerate(checks)}
    return Finalist(method, found, len(values), problem)


def measure_checks(bench: Bench, method: str, checks: Mapping[str, Mapping[str, int]], folder: Path) -> np.ndarray:
    """[example check], of a few examples."""
    metrics: dict[str, MetricCall] = {name: choose_metric(name, dict(own)) for name, own in checks.items()}
    own = {method: bench.methods[method]}
    few = replace(bench, data=bench.data.sample(EXAMPLES), methods=own, metrics=metrics, batch=None)
    folder.mkdir(exist_ok=True)
    return few.measure(few.plan, folder, f"checking {method}").value[:, 0]
