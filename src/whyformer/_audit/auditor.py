"""The auditor: runs the tests batch by batch and adds one row per test, attention and example to the store."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from whyformer._audit import checks
from whyformer._audit.checks import (
    AttentionChoice,
    AttentionLike,
    AuditedAttention,
    AuditRow,
    Candidates,
    DiagnosticSample,
    as_audited,
    choose_attention,
    marks_spans,
)
from whyformer._audit.examples import (
    AuditExamples,
    count_example_tokens,
    find_class_labels,
    find_span_labels,
    read_target_labels,
)
from whyformer._audit.progress import AuditProgress, show_audit_progress
from whyformer._audit.reruns import AttentionReplay
from whyformer._audit.rows import AuditRows
from whyformer._audit.settings import AuditSettings
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import Model
from whyformer._plain.json_value import JsonValue
from whyformer._runs.repeatable import repeatable_engine
from whyformer._runs.weights import hash_weights
from whyformer.data import Data
from whyformer.errors import TargetError

FEW_EXAMPLES = 20  # with fewer examples, the result has a note
MIN_DIAGNOSTIC_EXAMPLES = 20  # for the diagnostic model to learn from
MOST_PROBLEMS = 5  # problems of the data that become notes

Batch = Sequence[int]


@dataclass(frozen=True)
class AuditExtras:
    """What some tests need besides the model and the data."""

    checkpoints: Sequence[Model] = ()
    baseline: Model | None = None
    training: Data | None = None

    def describe(self) -> dict[str, JsonValue]:
        return {
            "checkpoints": [hash_weights(checkpoint.module) for checkpoint in self.checkpoints],
            "baseline": None if self.baseline is None else hash_weights(self.baseline.module),
            "training": None if self.training is None else self.training.fingerprint(),
        }


class Auditor:
    """Walks over the data, test by test. Rows that are in the store already are not computed again."""

    def __init__(self, model: Model, data: Data, attention: AttentionLike, settings: AuditSettings) -> None:
        inputs = [example.load() for example in data.examples]
        model = as_audited(model, model.encode(inputs[:1]))
        self.model, self.data, self.settings = model, data, settings
        self.marks_spans = marks_spans(model)
        if self.marks_spans and settings.target is not None:
            raise TargetError("A model that marks an answer is audited on the answer it gives. Leave out target.")
        first = AttentionReplay(model, model.encode(inputs[:1]), target=settings.target)
        self.choices = choose_attention(attention, first.heads)
        for choice in self.choices:
            AuditedAttention(first, choice)  # raises early if the attention cannot be audited
        self.classes = first.logits.size(1)
        self.default_length = first.layout.length
        self.notes = [*data.notes, *(f"{problem} (left out)" for problem in data.problems[:MOST_PROBLEMS])]
        if len(inputs) < FEW_EXAMPLES:
            self.notes.append(f"Only {len(inputs)} examples: below {FEW_EXAMPLES}, medians and intervals mean little.")
        if self.marks_spans:
            labels = find_span_labels(model, data)
        elif first.targets[0].position is not None:
            labels = read_target_labels(model, data, self.classes, is_language=True)
        else:
            labels, notes = find_class_labels(model, data, self.classes)
            self.notes += notes
        lengths = count_example_tokens(model, inputs, self.default_length)
        self.examples = AuditExamples(model, inputs, labels, lengths, settings.target)

    def open_twin(self, model: ModelLike) -> Model:
        """Another model for the same examples, which answers in the same way."""
        twin = as_model(model)
        return as_audited(twin, twin.encode(self.examples.inputs[:1]))

    def describe_plan(self, extras: AuditExtras) -> dict[str, JsonValue]:
        """Everything the rows depend on. Only an audit with the same plan can continue a run folder."""
        return {
            **self.settings.to_fields([choice.name for choice in self.choices]),
            "model": hash_weights(self.model.module),
            "data": self.data.fingerprint(),
            **extras.describe(),
            "device": self.model.device.type,
        }

    def describe_settings(self) -> dict[str, JsonValue]:
        """The settings as saved with the result."""
        named = self.settings.to_fields([choice.name for choice in self.choices])
        return {**named, "answers": "spans"} if self.marks_spans else named

    @repeatable_engine()
    def run(self, rows: AuditRows, extras: AuditExtras) -> None:
        """Run every test of the settings for which there is what it needs."""
        tests = self.settings.tests
        with show_audit_progress(self.plan_work(rows, extras)) as progress:
            self.run_batches(rows, progress)
            if "adversarial" in tests:
                # Search for other attention with the same output. Rows are kept part by part of a batch.
                for batch in self.choose_searched():
                    for choice in self.list_choices(rows, "adversarial", batch):
                        progress.begin("adversarial")
                        for part, found in self.search_batch(batch, choice, rows, progress):
                            rows.add_test("adversarial", choice.name, part, found)
            if "adversary" in tests and self.settings.adversary_epochs:
                self.run_adversary(rows, extras.training, progress)
            if "seeds" in tests and extras.checkpoints:
                self.run_seeds(rows, extras.checkpoints, progress)
            if "baseline" in tests and extras.baseline is not None:
                self.run_baseline(rows, extras.baseline, progress)
            if "diagnostic" in tests:
                self.run_diagnostics(rows, extras.training, progress)

    def plan_work(self, rows: AuditRows, extras: AuditExtras) -> dict[str, float]:
        """The units of each kind of work that are left to do."""
        every, steps = self.examples.make_batches(), self.settings.search.steps
        epochs = self.settings.adversary_epochs
        can_train = len(self.examples) >= MIN_DIAGNOSTIC_EXAMPLES or extras.training is not None
        can_train &= not self.marks_spans
        trainings = checks.count_trainings(extras.training is not None)
        work: dict[str, tuple[Sequence[Batch], Callable[[Batch], float]]] = {
            "agreement": (every, partial(self.count_tokens, power=2)),
            "replacement": (every, self.count_tokens),
            "adversarial": (self.choose_searched(), lambda batch: steps * self.count_tokens(batch)),
            "adversary": (every if epochs else [], lambda batch: epochs * self.count_tokens(batch)),
            "seeds": (every if extras.checkpoints else [], self.count_tokens),
            "baseline": ([] if extras.baseline is None else every, self.count_tokens),
            "diagnostic": ([range(len(self.examples))] if can_train else [], lambda _: trainings),
        }
        return {
            test: sum(units(batch) * len(self.list_missing(rows, test, batch)) for batch in batches)
            for test, (batches, units) in work.items()
        }

    def list_missing(self, rows: AuditRows, test: str, batch: Batch) -> list[str]:
        """The attention for which rows of this test have yet to be computed; "" in a test of the whole model."""
        names = [""] if test in ("answer", "shape", "baseline") else [choice.name for choice in self.choices]
        is_wanted = test in ("answer", *self.settings.tests)
        return [name for name in names if is_wanted and rows.missing(test, name, batch)]

    def list_choices(self, rows: AuditRows, test: str, batch: Batch) -> list[AttentionChoice]:
        missing = self.list_missing(rows, test, batch)
        return [choice for choice in self.choices if choice.name in missing]

    def count_tokens(self, batch: Batch, power: int = 1) -> float:
        """The tokens of these examples; with power 2 their pairs: leaving out each token reruns all of its example."""
        return float(sum(self.examples.lengths[i] ** power for i in batch))

    # --- tests on every example ---------------------------------------------------------------------------------------

    def run_batches(self, rows: AuditRows, progress: AuditProgress) -> None:
        """The predictions, and the tests that share one run of each batch."""
        blocks = [choice.blocks[0] for choice in self.choices]
        for batch in self.examples.make_batches():
            if any(self.list_missing(rows, test, batch) for test in ("answer", "agreement", "replacement", "shape")):
                replay = self.examples.replay(batch, blocks)
                rows.add_test("answer", "", batch, self.describe_predictions(replay, batch))
                self.run_tests(rows, replay, batch, progress)
                self.notes += replay.notes

    def describe_predictions(self, replay: AttentionReplay, batch: Batch) -> list[AuditRow]:
        ordinary = (replay.layout.mask & ~replay.layout.special).sum(-1).tolist()
        return [
            {
                "name": self.data.examples[example].name,
                "predicted": target.index,
                "probability": target.probability,
                "label": self.examples.labels[example],
                "tokens": tokens,
            }
            for example, target, tokens in zip(batch, replay.targets, ordinary, strict=True)
        ]

    def run_tests(self, rows: AuditRows, replay: AttentionReplay, batch: Batch, progress: AuditProgress) -> None:
        if wanted := self.list_choices(rows, "agreement", batch):
            advance = progress.count("agreement", self.count_tokens(batch, power=2) * len(wanted))
            shared = checks.measure_shared_importance(replay, self.settings.methods, advance)
            for choice in wanted:
                found = checks.measure_agreement(AuditedAttention(replay, choice), shared, top=self.settings.top)
                rows.add_test("agreement", choice.name, batch, found)
        for choice in self.list_choices(rows, "replacement", batch):
            advance = progress.count("replacement", self.count_tokens(batch))
            rows.add_test("replacement", choice.name, batch, self.run_replacement(replay, choice, advance))
        if self.list_missing(rows, "shape", batch):
            rows.add_test("shape", "", batch, checks.measure_shapes(replay))

    def run_replacement(
        self, replay: AttentionReplay, choice: AttentionChoice, advance: Callable[[float], None]
    ) -> list[AuditRow | None]:
        settings = self.settings
        audited = AuditedAttention(replay, choice, words_only=settings.words_only)
        changes = checks.replace_attention(
            audited, kinds=settings.kinds, draws=settings.samples, seed=settings.seed, advance=advance
        )
        pairs = zip(changes, audited.largest_weights, strict=True)
        return [None if change is None else {"largest": largest, "kinds": change} for change, largest in pairs]

    # --- the search ---------------------------------------------------------------------------------------------------

    def choose_searched(self) -> list[list[int]]:
        """A random part of the examples, in batches."""
        total, limit = len(self.examples), self.settings.search_limit
        count = total if limit is None else min(limit, total)
        return self.examples.make_batches(sorted(Random(self.settings.seed).sample(range(total), count)))

    def search_batch(
        self, batch: Batch, choice: AttentionChoice, rows: AuditRows, progress: AuditProgress
    ) -> Iterator[tuple[list[int], list[AuditRow | None]]]:
        """The examples of each part that is missing, and their rows."""
        replay, search = self.examples.replay(batch, choice.blocks[:1]), self.settings.search
        audited = AuditedAttention(replay, choice, words_only=self.settings.words_only)
        if fixed := [example for i, example in enumerate(batch) if not audited.can_change(i)]:
            yield fixed, [None] * len(fixed)
        for members in checks.divide_examples(audited, search):
            part = [batch[i] for i in members]
            units = self.count_tokens(part)
            if not rows.missing("adversarial", choice.name, part):
                progress.skip("adversarial", units * search.steps)
                continue
            candidates = Candidates(audited, members, search, self.settings.seed)
            results = list(candidates.search_all(partial(progress.advance, "adversarial", units)))
            kept = checks.MOST_EXAMPLES - sum(1 for row in rows.of("adversarial", choice.name) if row.get("found"))
            found: list[AuditRow | None] = []
            for i, result in zip(members, results, strict=True):
                weights = candidates.take_found(i) if kept > len(found) else None
                other = None if weights is None else checks.keep_found(audited, i, weights)
                largest = {"largest": audited.largest_weights[i]}
                found.append({**result, **largest, **({} if other is None else {"found": other})})
            yield part, found

    # --- counter-tests ------------------------------------------------------------------------------------------------

    def run_seeds(self, rows: AuditRows, checkpoints: Sequence[Model], progress: AuditProgress) -> None:
        """Compare with the attention of the same model trained with other seeds."""
        progress.begin("seeds")
        for batch in self.examples.make_batches():
            if wanted := self.list_choices(rows, "seeds", batch):
                first = self.examples.replay(batch)
                others = [self.examples.replay(batch, model=checkpoint) for checkpoint in checkpoints]
                for choice in wanted:
                    rows.add_test("seeds", choice.name, batch, checks.compare_checkpoints(first, others, choice))
                    progress.advance("seeds", self.count_tokens(batch))

    def run_adversary(self, rows: AuditRows, training: Data | None, progress: AuditProgress) -> None:
        """Train one model for each attention that gives the same answers and attends elsewhere."""
        order = Random(self.settings.seed).sample(range(len(self.examples)), len(self.examples))
        taught = sorted(order[: len(order) // 2]) if training is None else []
        examples = self.examples if training is None else self.load_training(training)
        chosen = examples.make_batches(taught or None)
        if len(examples) < MIN_DIAGNOSTIC_EXAMPLES:
            self.notes.append(
                f"The adversary needs at least {MIN_DIAGNOSTIC_EXAMPLES} examples to train on a half of, got "
                f"{len(examples)}. Pass more, or training=."
            )
            return
        for choice in self.list_choices(rows, "adversary", range(len(self.examples))):
            advance = progress.count("adversary", self.settings.adversary_epochs * self.count_tokens(order))
            adversary = checks.train_adversary(
                examples.replay, self.model, choice, chosen, epochs=self.settings.adversary_epochs,
                seed=self.settings.seed, advance=advance,
            )  # fmt: skip
            rows.add_test("adversary", choice.name, taught, [None] * len(taught))
            for batch in self.examples.make_batches(sorted(set(order) - set(taught))):
                own, other = (self.examples.replay(batch, model=model) for model in (None, adversary))
                rows.add_test("adversary", choice.name, batch, checks.measure_adversary(own, other, choice))

    def run_baseline(self, rows: AuditRows, baseline: Model, progress: AuditProgress) -> None:
        """Compare with the predictions of a model trained with uniform attention."""
        for batch in self.examples.make_batches():
            if self.list_missing(rows, "baseline", batch):
                inputs = [self.examples.inputs[i] for i in batch]
                classes = None if self.marks_spans else self.classes
                rows.add_test("baseline", "", batch, checks.predict_baseline(baseline, inputs, classes))
                progress.advance("baseline", self.count_tokens(batch))

    def run_diagnostics(self, rows: AuditRows, training: Data | None, progress: AuditProgress) -> None:
        """Train small models that weight tokens by each audited attention."""
        count = len(self.examples)
        if self.marks_spans:
            self.notes.append("No diagnostic model was trained: it learns classes, and the model marks spans.")
            return
        if count < MIN_DIAGNOSTIC_EXAMPLES and training is None:
            self.notes.append(
                f"The diagnostic model needs at least {MIN_DIAGNOSTIC_EXAMPLES} examples to learn from, got {count}. "
                "Pass more, or training=."
            )
            return
        progress.begin("diagnostic")
        for choice in self.list_choices(rows, "diagnostic", range(count)):
            samples = self.make_samples(self.examples, choice)
            known = [] if training is None else self.make_samples(self.load_training(training), choice)
            advance = progress.count("diagnostic")
            correct = checks.run_diagnostic(
                samples, known, classes=self.classes, seed=self.settings.seed, advance=advance
            )
            found = [{"right": {guide: flags[i] for guide, flags in correct.items()}} for i in range(count)]
            rows.add_test("diagnostic", choice.name, range(count), found)

    def load_training(self, training: Data) -> AuditExamples:
        inputs = [example.load() for example in training.examples]
        labels = read_target_labels(self.model, training, self.classes, is_language=False)
        lengths = count_example_tokens(self.model, inputs, self.default_length)
        return AuditExamples(self.model, inputs, labels, lengths)

    def make_samples(self, examples: AuditExamples, choice: AttentionChoice) -> list[DiagnosticSample]:
        samples: dict[int, DiagnosticSample] = {}
        for batch in examples.make_batches():
            audited = AuditedAttention(examples.replay(batch), choice)
            made = checks.make_diagnostic_samples(audited, [examples.labels[i] for i in batch])
            samples |= dict(zip(batch, made, strict=True))
        return [samples[i] for i in range(len(examples))]
