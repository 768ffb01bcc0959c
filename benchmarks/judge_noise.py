"""How often the verdict of `judge` recommends a method that is noise, and one that is truly better.

    python benchmarks/judge_noise.py [--runs 200] [--shapes normal ...] [--examples 20 100 200]

Twelve methods, `chance` and ten metrics, half of them better if higher. On noise every row has the same distribution,
so each recommendation is false; the verdict promises at most 5 %. *better*: one method is better by one standard
deviation in every metric. *skewed*: methods and chance have the same mean, but the values of the methods are skewed and
those of chance are not; the verdict promises nothing there. Confidence intervals have no part in the verdict and are
left out here.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyformer._judge import table
from whyformer._judge.rows import Row, RowTable, Shard
from whyformer._judge.verdict import write_verdict
from whyformer.metrics._registry import choose_metric

METRICS = ("deletion", "insertion", "log_odds", "aopc", "sufficiency", "comprehensiveness", "infidelity", "road",
           "positive_perturbation", "negative_perturbation")  # fmt: skip
METHODS = tuple(f"method {number}" for number in range(1, 13))
IMAGE_CONTROLS = ("chance", "centre_blob", "random_pixels")
NOISE = ("normal", "metrics correlated", "methods correlated", "heavy tails", "skew", "ties", "rare hits", "scales",
         "easy and hard examples", "undefined values", "three controls")  # fmt: skip


@dataclass
class PlantedStore:
    """Values as if they had been measured, [example row metric]."""

    values: np.ndarray
    methods: tuple[str, ...]
    metrics: tuple[str, ...] = METRICS

    @property
    def plan(self) -> "PlantedStore":
        return self

    @property
    def total(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Shard]:
        yield Shard(tuple(
            Row(e, f"{e}", method, metric, value=value, state="measured" if value == value else "undefined")
            for e, rows in enumerate(self.values.tolist())
            for method, row in zip(self.methods, rows, strict=True)
            for metric, value in zip(self.metrics, row, strict=True)
        ))  # fmt: skip


def draw_values(shape: str, generator: np.random.Generator, examples: int, rows: int) -> np.ndarray:
    """[example row metric]. Rows are exchangeable in every shape of NOISE."""
    size, one = (examples, rows, len(METRICS)), (examples, 1, 1)
    normal = generator.normal(size=size)
    match shape:
        case "metrics correlated":  # 0.9 between any two
            return 0.1**0.5 * normal + 0.9**0.5 * generator.normal(size=(examples, rows, 1))
        case "methods correlated":
            return 0.1**0.5 * normal + 0.9**0.5 * generator.normal(size=(examples, 1, len(METRICS)))
        case "heavy tails":
            return generator.standard_t(2, size=size)
        case "skew":
            return generator.lognormal(0, 1.5, size=size)
        case "ties":
            return generator.integers(2, size=size).astype(float)
        case "rare hits":
            return (generator.random(size) < 0.05).astype(float)
        case "scales":
            return normal * 10.0 ** np.arange(len(METRICS))
        case "easy and hard examples":
            return normal * generator.lognormal(0, 1.5, size=one)
        case "undefined values":
            return np.where(generator.random(size) < 0.06, np.nan, normal)
        case "better":
            signs = [1 if choose_metric(metric).metric.better == "higher" else -1 for metric in METRICS]
            normal[:, 0] += signs
            return normal
        case "skewed":
            values = generator.exponential(size=size) - 1
            values[:, len(METHODS) :] = 0.1 * normal[:, len(METHODS) :]
            return values
    return normal


def judge_noise(shape: str, examples: int, seed: int) -> str:
    """The verdict on one table."""
    controls = IMAGE_CONTROLS if shape == "three controls" else ("chance",)
    generator = np.random.default_rng([seed, examples, *shape.encode()])
    values = draw_values(shape, generator, examples, len(METHODS) + len(controls))
    rows = RowTable(PlantedStore(values, (*METHODS, *controls)))  # type: ignore[arg-type]
    return write_verdict(table.tabulate_rows(rows, {metric: choose_metric(metric) for metric in METRICS}))


def average_without_interval(values: np.ndarray, combine: object) -> tuple[float, float, float]:
    return float(np.nanmean(values)), np.nan, np.nan


def is_recommendation(verdict: str, method: str = "") -> bool:
    return verdict.startswith(f"On this data use {method}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--shapes", nargs="+", default=[*NOISE, "better", "skewed"])
    parser.add_argument("--examples", nargs="+", type=int, default=[20, 100, 200])
    options = parser.parse_args()
    table.bootstrap = average_without_interval  # type: ignore[assignment]
    total = count = 0
    print("| shape | " + " | ".join(f"{n} examples" for n in options.examples) + " |")
    print("|---" * (len(options.examples) + 1) + "|", flush=True)
    for shape in options.shapes:
        named = "method 1:" if shape == "better" else ""
        found = [
            sum(is_recommendation(judge_noise(shape, examples, seed), named) for seed in range(options.runs))
            for examples in options.examples
        ]
        if shape in NOISE:
            total, count = total + sum(found), count + options.runs * len(found)
        print(f"| {shape} | " + " | ".join(f"{number} of {options.runs}" for number in found) + " |", flush=True)
    if count:
        print(f"all shapes of noise: {total} of {count} tables recommend a method ({total / count:.1%})")


if __name__ == "__main__":
    main()
