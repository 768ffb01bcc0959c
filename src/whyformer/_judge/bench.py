"""The bench: one batch of examples under all methods and all metrics, from one run of the model.

One capture holds what all methods need, and the probe for the metrics that perturb inputs. If something fails on a
batch, each example is tried alone, so that one bad example costs one example; a failure that remains becomes a row with
the reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer._engine import Capture, TargetLike, record
from whyformer._explain.method_call import MethodCall
from whyformer._explain.sharing import explain_by_each, record_for_methods, share_captures
from whyformer._judge.controls import is_control
from whyformer._judge.plan import JudgePlan
from whyformer._judge.rows import NAN, JudgeStore, Row, RowTable, Shard
from whyformer._model import EncodedBatch, Model, is_text_pair
from whyformer._plain import archive
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Pieces
from whyformer._plain.versions import __version__
from whyformer._runs.arguments import check_run_number
from whyformer._runs.choice import write_run_target
from whyformer._runs.preparation import NOTE_SEPARATOR, KindOfInput, PreparedExample, prepare_example, reason_of
from whyformer._runs.repeatable import repeatable_engine
from whyformer._runs.weights import describe_planned_model
from whyformer.data import Data
from whyformer.metrics._registry import Measurement, MetricCall, Rationale, measure
from whyformer.metrics._rerun import Rerun
from whyformer.results.comparison import rank_correlation
from whyformer.results.conditioning import Conditioning
from whyformer.results.explanation import Explanation

CurveSteps = dict[str, Sequence[float]]  # the x values of each metric's curve
EncodedGroup = tuple[Sequence[PreparedExample], EncodedBatch]  # examples that run together

DEFAULT_BATCH = {"cpu": 16, "cuda": 64}  # examples, by device
RANDOM_ANSWERS = "on which the model answers at random, so that another run gives other numbers"


@dataclass(frozen=True, eq=False)
class ExampleGroup:
    """Examples that went through the model together, with their explanations."""

    examples: Sequence[PreparedExample]
    encoded: EncodedBatch
    base: Capture  # holds the probe
    explanations: Mapping[str, Explanation]  # by label of the method
    failures: Mapping[str, str]  # why a method failed, by label
    predicted: Sequence[int]


@dataclass(frozen=True, eq=False)
class Bench:
    """The settings of a judgement: a model and data, with the methods to judge and the metrics to judge them by."""

    model: Model
    data: Data
    methods: Mapping[str, MethodCall]
    metrics: Mapping[str, MetricCall]
    target: TargetLike = "predicted"
    kind: KindOfInput | None = None
    batch: int | None = None  # examples; None: DEFAULT_BATCH of the device

    @property
    def plan(self) -> JudgePlan:
        """All that the rows depend on, in JSON fields."""
        size = self.batch if self.batch is not None else DEFAULT_BATCH.get(self.model.device.type, 16)
        check_run_number("batch_size", size, least=1)
        data = {"name": self.data.name, "examples": len(self.data), "fingerprint": self.data.fingerprint()}
        fields = {
            "model": describe_planned_model(self.model),
            "data": data,
            "mask_values": self.data.mask_values,
            "methods": {label: call.all_settings for label, call in self.methods.items()},
            "metrics": {label: call.settings for label, call in self.metrics.items()},
            "target": write_run_target(self.target),
            "batch": int(size),
            "whyformer": __version__,
            "torch": torch.__version__,
        }
        return JudgePlan(archive.as_json_value(fields))

    def measure(self, plan: JudgePlan, folder: Path, doing: str) -> RowTable:
        """All rows; those that the folder does not have are computed and written there."""
        store = JudgeStore(folder, plan)
        missing = [shard for shard in range(plan.shards) if store.read(shard) is None]
        total = sum(len(plan.indices(shard)) for shard in missing)
        with show_progress(total, doing, is_logged=True) as progress:
            for shard in missing:
                store.write(shard, self.make_shard(plan.indices(shard)))
                progress.advance(len(plan.indices(shard)))
        return RowTable(store)

    @property
    def class_blind(self) -> frozenset[str]:
        """The methods whose map does not depend on the explained class."""
        return frozenset(label for label, call in self.methods.items() if not call.method.class_specific)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every method with every metric."""
        return [(method, metric) for method in self.methods for metric in self.metrics]

    @repeatable_engine()
    def make_shard(self, indices: Sequence[int]) -> Shard:
        """All rows of these examples."""
        prepared = [prepare_example(self.model, self.data, index) for index in indices]
        examples, groups = self.encode_examples(prepared)
        curve_steps: CurveSteps = {}
        rows = self.fail_all([example for example in examples if example.failure is not None])
        for group, encoded in groups:
            rows += self.measure_rows(group, encoded, curve_steps)
        by_key = {(row.example, row.method, row.metric): row for row in rows}
        return Shard(tuple(by_key[index, m, k] for index in indices for m, k in self.pairs), curve_steps)

    def encode_examples(self, examples: Sequence[PreparedExample]) -> tuple[list[PreparedExample], list[EncodedGroup]]:
        """The examples, with the reason as `failure` where the model rejects one, and the others in batches.

        One batch, or one for each example where the model cannot take them together: texts of different length without
        an attention mask.
        """
        ready = [example for example in examples if example.failure is None]
        try:
            return list(examples), [(ready, self.model.encode([one.content for one in ready]))] if ready else []
        except Exception as error:
            if len(ready) == 1:
                return [e if e.failure is not None else replace(e, failure=reason_of(error)) for e in examples], []
        alone = {example.place: self.encode_examples([example]) for example in ready}
        checked = [alone[one.place][0][0] if one.place in alone else one for one in examples]
        if sum(one.failure is None for one in checked) < len(ready):  # without the rejected ones
            return self.encode_examples(checked)
        return checked, [group for _, groups in alone.values() for group in groups]

    # --- explaining ---------------------------------------------------------------------------------------------------

    def measure_rows(
        self, examples: Sequence[PreparedExample], encoded: EncodedBatch, curve_steps: CurveSteps
    ) -> list[Row]:
        """All rows of these examples; a method and metric that fail on the batch are tried on each example alone."""
        group = self.explain_group(examples, encoded)
        rows, agreement = [], [NAN] * len(examples)
        if isinstance(group, str):
            rows = self.fail_all(examples, group)
        else:
            with show_progress(len(self.pairs), "measuring", is_uniform=False) as progress:
                for m, k in self.pairs:
                    rows += self.measure_group(group, m, k, curve_steps)
                    progress.advance()
            agreement = measure_method_agreement(group.explanations, len(examples))
        failed = {(row.method, row.metric) for row in rows if row.state == "failed"}
        if failed and len(examples) > 1:
            alone = [
                row
                for example in examples
                for row in self.measure_rows([example], self.model.encode([example.content]), curve_steps)
            ]
            rows = [row for row in rows if (row.method, row.metric) not in failed]
            rows += [row for row in alone if (row.method, row.metric) in failed]
        indices = {example.place: i for i, example in enumerate(examples)}
        return [replace(row, agreement=agreement[indices[row.example]]) for row in rows]

    def explain_group(self, examples: Sequence[PreparedExample], encoded: EncodedBatch) -> ExampleGroup | str:
        """The explanations by every method that works on these examples, or the reason why there is none."""
        target = self.choose_targets(examples)
        run = partial(
            record_for_methods, model=self.model, encoded=encoded, target=target, versus=None, extra_sites={"probe"}
        )
        try:
            captures = share_captures(list(self.methods.values()), run, tolerate=(Exception,))
            own = [c for call, c in zip(self.methods.values(), captures, strict=True) if call.precision is None]
            base = next((c for c in own if isinstance(c, Capture)), None)  # the probe runs in the model's own precision
            base = base or record(self.model, encoded, target=target, keep={"probe"})
            for capture in (base, *(c for c in captures if isinstance(c, Capture))):
                _ = capture["probe"].before  # cached, so that no method is charged for the unperturbed run
        except Exception as error:
            return reason_of(error)
        explanations, errors = explain_by_each(self.methods, captures, self.model, encoded, tolerate=(Exception,))
        failures = {label: reason_of(error) for label, error in errors.items()}
        predicted = base["probe"].before.logits.argmax(-1).tolist()
        return ExampleGroup(examples, encoded, base, explanations, failures, predicted)

    def choose_targets(self, examples: Sequence[PreparedExample]) -> TargetLike:
        """The classes to explain: predicted (None), true where known, or the one given."""
        if self.target == "predicted":
            return None
        if self.target == "label":
            return [example.label if example.label >= 0 else None for example in examples]
        return self.target

    def fail_all(self, examples: Sequence[PreparedExample], reason: str = "") -> list[Row]:
        """Rows that failed, for this reason or the one that the example has."""
        return [make_failed_row(one, m, k, reason or str(one.failure)) for one in examples for m, k in self.pairs]

    # --- measuring ----------------------------------------------------------------------------------------------------

    def measure_group(self, group: ExampleGroup, method: str, metric: str, curve_steps: CurveSteps) -> list[Row]:
        """The rows of a group for one method and one metric."""
        if method in group.failures:
            return [make_failed_row(example, method, metric, group.failures[method]) for example in group.examples]
        call, measurement = self.metrics[metric], None
        truth = call.needs_truth
        if truth is None or any(example.has_truth(truth) for example in group.examples):
            try:
                measurement = measure(call, self.collect_metric_inputs(group, method))
            except Exception as error:
                return [make_failed_row(example, method, metric, reason_of(error)) for example in group.examples]
            if measurement.curve is not None:
                curve_steps.setdefault(metric, [float(step) for step in measurement.at])
        rows = []
        for i, example in enumerate(group.examples):
            row = make_explained_row(group, i, method, metric)
            if measurement is None or (truth is not None and not example.has_truth(truth)):
                rows.append(replace(row, state="missing", reason=example.why_missing(str(truth))))
            else:
                rows.append(fill_row(row, measurement, i))
        return rows

    def collect_metric_inputs(self, group: ExampleGroup, method: str) -> dict[str, Any]:
        """Everything a metric can ask for, see METRIC_INPUTS."""
        explanation, probe = group.explanations[method], group.base["probe"]
        shape = probe.encoded.inputs[probe.encoded.main].shape
        unknown = np.full(shape[-2:] if len(shape) == 4 else (1, 1), -1, dtype=np.int8)
        return {
            "explanation": explanation,
            "probe": probe,
            "label": torch.tensor([example.label for example in group.examples]),
            "mask": [unknown if example.mask is None else example.mask for example in group.examples],
            "rationale": [example.rationale or make_empty_rationale(example) for example in group.examples],
            "rerun": Rerun(self.model, group.encoded, explanation, self.methods[method].method),
            "others": {
                label: other for label, other in group.explanations.items() if label != method and not is_control(label)
            },
        }


# --- rows -------------------------------------------------------------------------------------------------------------


def make_empty_row(example: PreparedExample, method: str, metric: str) -> Row:
    """A row with what is known before anything is explained."""
    return Row(example.place, example.name, method, metric, note=example.note, label=example.label)


def make_failed_row(example: PreparedExample, method: str, metric: str, reason: str) -> Row:
    return replace(make_empty_row(example, method, metric), state="failed", reason=reason)


def make_explained_row(group: ExampleGroup, i: int, method: str, metric: str) -> Row:
    """A row with everything but the number."""
    explanation, spent = group.explanations[method], group.explanations[method].spent
    target, conditioning = explanation.targets[i], Conditioning.from_details(explanation.details)
    empty = make_empty_row(group.examples[i], method, metric)
    return replace(
        empty,
        note=NOTE_SEPARATOR.join(filter(None, (empty.note, RANDOM_ANSWERS if group.base.is_random else ""))),
        target=target.index,
        predicted=group.predicted[i],
        probability=NAN if target.probability is None else target.probability,
        forward=float(spent.get("forward", NAN)),
        backward=float(spent.get("backward", 0.0)),
        relevance=float(spent.get("relevance", 0.0)),
        undetermined=NAN if conditioning is None else float(not conditioning.is_determined[i]),
    )


def fill_row(row: Row, measurement: Measurement, i: int) -> Row:
    """The row with the numbers of example i."""
    curve, parts = as_floats(measurement.curve, i), as_floats(measurement.parts, i)
    row = replace(row, value=float(measurement.value[i]), curve=curve, parts=parts)
    if math.isnan(row.value):
        return replace(row, state="undefined", reason="the metric is undefined for this example")
    return row


def as_floats(rows: Tensor | None, i: int) -> tuple[float, ...]:
    return () if rows is None else tuple(rows[i].double().tolist())


def make_empty_rationale(example: PreparedExample) -> Rationale:
    """A placeholder for an example without a rationale, in a batch where others have one."""
    texts = example.content if is_text_pair(example.content) else (example.content,)
    words = [word for text in texts if isinstance(text, str) for word in text.split()]
    return Rationale((0,) * len(words))


# --- agreement --------------------------------------------------------------------------------------------------------


def measure_method_agreement(explanations: Mapping[str, Explanation], count: int) -> list[float]:
    """For each example, the mean rank correlation of the scores over all pairs of methods, without controls."""
    judged = [e for label, e in explanations.items() if not is_control(label)]
    comparable = [e for e in judged if e.scores.shape == judged[0].scores.shape]
    if len(comparable) < 2:
        return [NAN] * count
    found = []
    for i in range(count):
        scores, tokens = torch.stack([e.scores[i].double() for e in comparable]), comparable[0].tokens[i]
        if isinstance(tokens, Pieces):
            scores = scores[:, ~(torch.tensor(tokens.padding) | torch.tensor(tokens.special))]
        rho = rank_correlation(scores)
        found.append(float(rho[torch.ones_like(rho).triu(1).bool()].nanmean()))
    return found
