"""The auditor: runs the tests batch by batch and adds one row per test, attention and example to the store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from torch import Tensor

from whyformer._audit import importance
from whyformer._audit.adversarial import Candidates, divide_examples
from whyformer._audit.agreement import correlate_attention
from whyformer._audit.audited_attention import AuditedAttention
from whyformer._audit.batches import count_tokens
from whyformer._audit.choice import AttentionChoice, AttentionLike, choose_attention
from whyformer._audit.counter_tests import compare_seeds, predict_baseline
from whyformer._audit.diagnostic import DiagnosticSample, count_trainings, run_diagnostic
from whyformer._audit.examples import AuditExamples, find_class_labels, read_target_labels
from whyformer._audit.found_attention import MOST_EXAMPLES, keep_found
from whyformer._audit.head_swaps import swap_examples
from whyformer._audit.progress import WORK_LABELS, Advance, AuditProgress, show_audit_progress
from whyformer._audit.replacement import pair_attention, replace_attention
from whyformer._audit.replay import AttentionReplay
from whyformer._audit.rows import AuditRows
from whyformer._audit.samples import make_diagnostic_samples
from whyformer._audit.settings import AuditSettings
from whyformer._audit.shape import measure_shapes
from whyformer._model import Model
from whyformer.data import Data

FEW_EXAMPLES = 20  # with fewer examples, the result carries a note
MIN_DIAGNOSTIC_EXAMPLES = 20  # for the diagnostic model to learn from
MOST_PROBLEMS = 5  # problems of the data that become notes

TestRow = Mapping[str, Any]


class Auditor:
    """Walks over the data, test by test. Rows that are in the store already are not computed again."""

    def __init__(self, model: Model, data: Data, attention: AttentionLike, settings: AuditSettings) -> None:
        self.model, self.data, self.settings = model, data, settings
        inputs = [example.load() for example in data.examples]
        first = AttentionReplay(model, model.encode(inputs[:1]), target=settings.target)
        self.choices = choose_attention(attention, first.heads)
        for choice in self.choices:
            AuditedAttention(first, choice)  # raises early if the attention cannot be audited
        self.classes = first.logits.size(1)
        self.default_length = first.layout.length
        self.notes = [*data.notes, *(f"{problem} (left out)" for problem in data.problems[:MOST_PROBLEMS])]
        if len(inputs) < FEW_EXAMPLES:
            self.notes.append(f"Only {len(inputs)} examples: below {FEW_EXAMPLES}, medians and intervals mean little.")
        labels = self._read_labels(is_language=first.targets[0].position is not None)
        lengths = count_tokens(model, inputs, self.default_length)
        self.examples = AuditExamples(model, inputs, labels, lengths, settings.target)

    def _read_labels(self, *, is_language: bool) -> list[int | None]:
        if is_language:
            return read_target_labels(self.model, self.data, self.classes, is_language=True)
        labels, notes = find_class_labels(self.model, self.data, self.classes)
        self.notes += notes
        return labels

    def run(
        self,
        rows: AuditRows,
        *,
        checkpoints: Sequence[Model] = (),
        baseline: Model | None = None,
        training: Data | None = None,
        page: Path | None = None,
    ) -> None:
        """Run every test of the settings for which there is what it needs. page: where to save the swapped heads."""
        tests = self.settings.tests
        planned = self.plan_work(rows, checkpoints=checkpoints, baseline=baseline, training=training)
        planned["heads"] = 0.0 if page is None else 100.0
        with show_audit_progress(planned) as progress:
            self.run_batches(rows, progress)
            if "adversarial" in tests:
                self.run_search(rows, progress)
            if "seeds" in tests and checkpoints:
                self.run_seeds(rows, checkpoints, progress)
            if "baseline" in tests and baseline is not None:
                self.run_baseline(rows, baseline, progress)
            if "diagnostic" in tests:
                self.run_diagnostics(rows, training, progress)
            if page is not None:
                self.save_swaps(page, progress)

    def save_swaps(self, page: Path, progress: AuditProgress) -> None:
        """The page on which heads are swapped, for the first examples."""
        progress.begin("heads")
        advance = lambda part: progress.advance("heads", 100 * part)  # noqa: E731
        given = self.data.examples[: self.settings.swap_limit]
        swap_examples(self.model, given, seed=self.settings.seed, advance=advance).save(page)

    def plan_work(
        self, rows: AuditRows, *, checkpoints: Sequence[Model], baseline: Model | None, training: Data | None
    ) -> dict[str, float]:
        """The units of each kind of work that are left to do."""
        tests, steps = self.settings.tests, self.settings.search.steps
        planned: dict[str, float] = dict.fromkeys(WORK_LABELS, 0.0)

        def add(kind: str, batches: Sequence[Sequence[int]], units: Callable[[Sequence[int]], float]) -> None:
            for batch in batches:
                planned[kind] += units(batch) * sum(rows.missing(kind, c.name, batch) for c in self.choices)

        every = self.examples.make_batches()
        if "agreement" in tests:
            add("agreement", every, self.count_pairs)
        if "replacement" in tests:
            add("replacement", every, self.count_tokens)
        if "adversarial" in tests:
            add("adversarial", self.choose_searched(), lambda batch: steps * self.count_tokens(batch))
        if "seeds" in tests and checkpoints:
            add("seeds", every, self.count_tokens)
        if "baseline" in tests and baseline is not None:
            planned["baseline"] = sum(self.count_tokens(b) for b in every if rows.missing("baseline", "", b))
        if "diagnostic" in tests and (len(self.examples) >= MIN_DIAGNOSTIC_EXAMPLES or training is not None):
            add("diagnostic", [range(len(self.examples))], lambda _: float(count_trainings(training is not None)))
        return planned

    def count_tokens(self, batch: Sequence[int]) -> float:
        return float(sum(self.examples.lengths[i] for i in batch))

    def count_pairs(self, batch: Sequence[int]) -> float:
        """Leaving out each token of an example reruns all of its tokens."""
        return float(sum(self.examples.lengths[i] ** 2 for i in batch))

    def _add_rows(
        self, rows: AuditRows, test: str, attention: str, batch: Sequence[int], found: Sequence[TestRow | None]
    ) -> None:
        """Add one row per example; None is an example for which the test is undefined."""
        rows.add(
            [
                {**({"undefined": True} if row is None else row), "test": test, "attention": attention, "example": i}
                for i, row in zip(batch, found, strict=True)
            ]
        )

    # --- tests on every example ---------------------------------------------------------------------------------------

    def run_batches(self, rows: AuditRows, progress: AuditProgress) -> None:
        """The predictions, and the tests that share one run of each batch."""
        tests = [test for test in ("agreement", "replacement", "shape") if test in self.settings.tests]
        blocks = [choice.blocks[0] for choice in self.choices]
        for batch in self.examples.make_batches():
            if self._is_incomplete(rows, tests, batch):
                replay = self.examples.replay(batch, blocks)
                self._add_rows(rows, "answer", "", batch, self.describe_predictions(replay, batch))
                for test in tests:
                    self.run_test(test, rows, replay, batch, progress)
                self.notes += replay.notes

    def _is_incomplete(self, rows: AuditRows, tests: Sequence[str], batch: Sequence[int]) -> bool:
        names = {test: [""] if test == "shape" else [choice.name for choice in self.choices] for test in tests}
        wanted = [("answer", ""), *((test, name) for test in tests for name in names[test])]
        return any(rows.missing(test, name, batch) for test, name in wanted)

    def describe_predictions(self, replay: AttentionReplay, batch: Sequence[int]) -> list[TestRow]:
        ordinary = (replay.layout.mask & ~replay.layout.special).sum(-1).tolist()
        return [
            {
                "name": self.data.examples[example].name,
                "predicted": replay.targets[place].index,
                "probability": replay.targets[place].probability,
                "label": self.examples.labels[example],
                "tokens": ordinary[place],
            }
            for place, example in enumerate(batch)
        ]

    def run_test(
        self, test: str, rows: AuditRows, replay: AttentionReplay, batch: Sequence[int], progress: AuditProgress
    ) -> None:
        if test == "shape":
            if rows.missing(test, "", batch):
                self._add_rows(rows, test, "", batch, measure_shapes(replay))
            return
        progress.begin(test)
        wanted = [choice for choice in self.choices if rows.missing(test, choice.name, batch)]
        if test == "agreement" and wanted:
            units = self.count_pairs(batch) * len(wanted)
            advance = lambda part: progress.advance(test, part * units)  # noqa: E731
            shared = importance.measure_shared_importance(replay, self.settings.methods, advance)
            for choice in wanted:
                self._add_rows(rows, test, choice.name, batch, self.run_agreement(replay, choice, shared))
        if test == "replacement":
            for choice in wanted:
                share = lambda part: progress.advance(test, part * self.count_tokens(batch))  # noqa: E731
                self._add_rows(rows, test, choice.name, batch, self.run_replacement(replay, choice, share))

    def run_agreement(
        self, replay: AttentionReplay, choice: AttentionChoice, shared: Mapping[str, Tensor]
    ) -> list[TestRow]:
        audited = AuditedAttention(replay, choice)
        attention = importance.take_units(replay, audited.distribution).double().cpu()
        measures = {**importance.measure_own_importance(replay, choice), **shared}
        real = importance.probe_replay(replay).real & importance.find_attended_units(replay, choice)
        found: list[TestRow] = []
        for i, at in enumerate(real):
            scores = {name: values[i].double().cpu()[at].tolist() for name, values in measures.items()}
            found.append({"pairs": correlate_attention(attention[i][at].tolist(), scores, top=self.settings.top)})
        return found

    def run_replacement(
        self, replay: AttentionReplay, choice: AttentionChoice, advance: Advance | None = None
    ) -> list[TestRow | None]:
        audited = AuditedAttention(replay, choice, words_only=self.settings.words_only)
        kinds = [kind for kind in self.settings.kinds if kind != "other" or replay.batch > 1]
        others = pair_attention(replay, choice)
        draws, seed = self.settings.draws, self.settings.seed
        changes = replace_attention(audited, others, kinds=kinds, draws=draws, seed=seed, advance=advance)
        return [
            None if change is None else {"largest": largest, "kinds": change}
            for change, largest in zip(changes, audited.largest_weights, strict=True)
        ]

    # --- the search ---------------------------------------------------------------------------------------------------

    def choose_searched(self) -> list[list[int]]:
        """A random part of the examples, in batches."""
        total, limit = len(self.examples), self.settings.search_limit
        count = total if limit is None else min(limit, total)
        return self.examples.make_batches(sorted(Random(self.settings.seed).sample(range(total), count)))

    def run_search(self, rows: AuditRows, progress: AuditProgress) -> None:
        """Search for other attention with the same output. Rows are kept part by part of a batch."""
        for batch in self.choose_searched():
            for choice in self.choices:
                if rows.missing("adversarial", choice.name, batch):
                    progress.begin("adversarial")
                    for part, found in self.search_batch(batch, choice, rows, progress):
                        self._add_rows(rows, "adversarial", choice.name, part, found)

    def search_batch(
        self, batch: Sequence[int], choice: AttentionChoice, rows: AuditRows, progress: AuditProgress
    ) -> Iterator[tuple[list[int], list[TestRow | None]]]:
        """The examples of each part that is missing, and their rows."""
        replay = self.examples.replay(batch, choice.blocks[:1])
        audited = AuditedAttention(replay, choice, words_only=self.settings.words_only)
        fixed = [place for place in range(len(batch)) if not audited.can_change(place)]
        if fixed:
            yield [batch[place] for place in fixed], [None] * len(fixed)
        for places in divide_examples(audited, self.settings.search):
            part = [batch[place] for place in places]
            units = self.count_tokens(part)
            if not rows.missing("adversarial", choice.name, part):
                progress.skip("adversarial", units * self.settings.search.steps)
                continue
            candidates = Candidates(audited, places, self.settings.search, self.settings.seed)
            results = list(candidates.search_all(lambda: progress.advance("adversarial", units)))  # noqa: B023
            kept = MOST_EXAMPLES - sum(1 for row in rows.of("adversarial", choice.name) if row.get("found"))
            found: list[TestRow | None] = []
            for place, result in zip(places, results, strict=True):
                weights = candidates.take_found(place) if kept > len(found) else None
                other = None if weights is None else keep_found(audited, place, weights)
                largest = {"largest": audited.largest_weights[place]}
                found.append({**result, **largest, **({} if other is None else {"found": other})})
            yield part, found

    # --- counter-tests ------------------------------------------------------------------------------------------------

    def run_seeds(self, rows: AuditRows, checkpoints: Sequence[Model], progress: AuditProgress) -> None:
        """Compare with the attention of the same model trained with other seeds."""
        progress.begin("seeds")
        for batch in self.examples.make_batches():
            wanted = [choice for choice in self.choices if rows.missing("seeds", choice.name, batch)]
            if wanted:
                first = self.examples.replay(batch)
                others = [self.examples.replay(batch, model=checkpoint) for checkpoint in checkpoints]
                for choice in wanted:
                    self._add_rows(rows, "seeds", choice.name, batch, compare_seeds(first, others, choice))
                    progress.advance("seeds", self.count_tokens(batch))

    def run_baseline(self, rows: AuditRows, baseline: Model, progress: AuditProgress) -> None:
        """Compare with the predictions of a model trained with uniform attention."""
        for batch in self.examples.make_batches():
            if rows.missing("baseline", "", batch):
                inputs = [self.examples.inputs[i] for i in batch]
                self._add_rows(rows, "baseline", "", batch, predict_baseline(baseline, inputs, self.classes))
                progress.advance("baseline", self.count_tokens(batch))

    def run_diagnostics(self, rows: AuditRows, training: Data | None, progress: AuditProgress) -> None:
        """Train small models that weight tokens by each audited attention."""
        count = len(self.examples)
        if count < MIN_DIAGNOSTIC_EXAMPLES and training is None:
            self.notes.append(
                f"The diagnostic model needs at least {MIN_DIAGNOSTIC_EXAMPLES} examples to learn from, got {count}. "
                "Pass more, or training=."
            )
            return
        progress.begin("diagnostic")
        for choice in self.choices:
            if rows.missing("diagnostic", choice.name, range(count)):
                samples = self.make_samples(self.examples, choice)
                known = [] if training is None else self.make_samples(self.load_training(training), choice)
                seed, advance = self.settings.seed, progress.count("diagnostic")
                correct = run_diagnostic(samples, known, classes=self.classes, seed=seed, advance=advance)
                found = [{"right": {guide: bool(flags[i]) for guide, flags in correct.items()}} for i in range(count)]
                self._add_rows(rows, "diagnostic", choice.name, range(count), found)

    def load_training(self, training: Data) -> AuditExamples:
        inputs = [example.load() for example in training.examples]
        labels = read_target_labels(self.model, training, self.classes, is_language=False)
        return AuditExamples(self.model, inputs, labels, count_tokens(self.model, inputs, self.default_length))

    def make_samples(self, examples: AuditExamples, choice: AttentionChoice) -> list[DiagnosticSample]:
        samples: dict[int, DiagnosticSample] = {}
        for batch in examples.make_batches():
            audited = AuditedAttention(examples.replay(batch), choice)
            made = make_diagnostic_samples(audited, [examples.labels[i] for i in batch])
            samples |= dict(zip(batch, made, strict=True))
        return [samples[i] for i in range(len(examples))]
