"""audit(): is attention an explanation here? All tests on one data set, row by row, resumable."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from whyformer._audit import diagnostic, importance
from whyformer._audit.adversarial import SearchSettings, choose_search, search_adversarial
from whyformer._audit.agreement import correlate_attention
from whyformer._audit.choice import AttentionChoice, AttentionLike, choose_attention
from whyformer._audit.distance import jsd, tvd
from whyformer._audit.question import AttentionQuestion
from whyformer._audit.replacement import REPLACEMENT_KINDS, replace_attention
from whyformer._audit.replay import AttentionReplay
from whyformer._audit.result import Audit
from whyformer._audit.rows import AuditRows
from whyformer._audit.shape import measure_shapes
from whyformer._engine.forward import run_plain
from whyformer._engine.shadow import make_shadow
from whyformer._engine.target import TargetNames, read_logits
from whyformer._judge.bench import find_class_index
from whyformer._model.model import Model
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Grid
from whyformer._plain.versions import collect_versions
from whyformer.data import Data, read
from whyformer.errors import InputError, MethodError, UnsupportedModel, suggest_nearest
from whyformer.results.comparison import label_methods
from whyformer.results.explanation import ModelLike, as_model

TESTS = ("agreement", "replacement", "adversarial", "shape", "diagnostic", "seeds", "baseline")
FEW_EXAMPLES = 20  # examples, below which figures are hardly worth the name
MIN_DIAGNOSTIC_EXAMPLES = 20  # examples for the small model to learn from
BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}  # of one batch


@dataclass(frozen=True)
class AuditPlan:
    """What is asked."""

    tests: tuple[str, ...]
    methods: tuple[Any, ...] | str  # "quick" and "all" stand for many
    draws: int
    kinds: tuple[str, ...]
    search: SearchSettings
    searched: int | None  # how many examples the search for other attention is made on
    words_only: bool
    top: float
    seed: int

    def check(self) -> None:
        for given, known, what in ((self.tests, TESTS, "test"), (self.kinds, REPLACEMENT_KINDS, "replacement")):
            for one in given:
                if one not in known:
                    raise MethodError(
                        f"There is no {what} {one!r}.{suggest_nearest(one, known)} There are: {', '.join(known)}."
                    )
        if self.draws < 1 or (self.searched is not None and self.searched < 1):
            raise MethodError("Give 1 or more draws, and 1 or more examples to search on.")
        if not 0 < self.top <= 1:
            raise MethodError(f"top={self.top} is no share of the tokens. Give a number above 0, up to 1.")
        if not isinstance(self.methods, str):
            label_methods(self.methods)


def audit(
    model: ModelLike,
    data: Any,
    attention: AttentionLike = "last",
    *,
    tests: Sequence[str] | None = None,
    methods: Any = (),
    limit: int | None = None,
    draws: int = 100,
    kinds: Sequence[str] = REPLACEMENT_KINDS,
    preset: str = "paper",
    searched: int | None = 100,
    steps: int | None = None,
    checkpoints: Sequence[ModelLike] = (),
    baseline: ModelLike | None = None,
    training: Any = None,
    words_only: bool = False,
    top: float = 0.2,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> Audit:
    """Whether the attention of a model explains its answers on this data; a report, with the limits of each test.

    data: a list of inputs or of (input, label), or a folder or file that `whyformer.data.read` takes.
    attention: which one is questioned: a block, (block, head), "last", "3:2", "3:each", "each", "rollout", or a list.
    tests: some of "agreement", "replacement", "adversarial", "shape", "diagnostic", "seeds", "baseline"; if left out,
    all that can be made. methods: of explanation, compared with attention besides gradients and leaving tokens out.
    searched: on how many examples other attention is searched for, which takes long; None for all. steps: of that.
    checkpoints: the same model trained with other seeds. baseline: the same model trained with equal weights in place
    of attention. training: examples with labels for the small diagnostic model.
    out: a folder where rows go as they are found, and from which an audit that was stopped goes on.
    """
    plan = AuditPlan(
        tuple(tests if tests is not None else TESTS), normalise_methods(methods), draws, tuple(kinds),
        choose_search(preset, steps=steps), searched, words_only, top, seed,
    )  # fmt: skip
    plan.check()
    return Auditor(as_model(model), read(data, limit=limit, seed=seed), attention, plan).audit(
        [as_model(one) for one in checkpoints],
        None if baseline is None else as_model(baseline),
        None if training is None else read(training),
        out,
    )


def normalise_methods(methods: Any) -> tuple[Any, ...] | str:
    """The methods meant: one, several, or the word for many."""
    if isinstance(methods, str) and methods in ("quick", "all"):
        return methods
    return tuple(methods) if isinstance(methods, list | tuple) else (methods,)


class Auditor:
    """One audit while it is made."""

    def __init__(self, model: Model, data: Data, attention: AttentionLike, plan: AuditPlan) -> None:
        self.model, self.data, self.plan = model, data, plan
        self.inputs = [example.load() for example in data.examples]
        first = AttentionReplay(model, model.encode(self.inputs[:1]))
        self.choices = choose_attention(attention, first.heads)
        self.heads = first.heads
        self.classes = first.logits.size(1)
        for choice in self.choices:
            AttentionQuestion(first, choice)  # refuses what cannot be audited before the work begins
        self.tokens = first.layout.length
        self.notes: list[str] = [f"{problem} (left out)" for problem in data.problems[:5]]
        if len(self.inputs) < FEW_EXAMPLES:
            self.notes.append(
                f"{len(self.inputs)} examples are few: below {FEW_EXAMPLES}, medians and intervals say little."
            )
        self.labels = self._labels(first)
        self.lengths = self._lengths(self.inputs)

    def audit(self, checkpoints: Sequence[Model], baseline: Model | None, training: Data | None, out: Any) -> Audit:
        rows = AuditRows(out, self._describe_plan(checkpoints, baseline, training))
        self._run_batches(rows)
        if "adversarial" in self.plan.tests:
            self._search(rows)
        if "seeds" in self.plan.tests and checkpoints:
            self._seeds(rows, checkpoints)
        if "baseline" in self.plan.tests and baseline is not None:
            self._compare(rows, baseline)
        if "diagnostic" in self.plan.tests:
            self._diagnose(rows, training)
        made = Audit(
            rows=tuple(rows.held.values()),
            attention=tuple(choice.name for choice in self.choices),
            said=tuple(choice.said for choice in self.choices),
            model=self.model.name,
            data=self.data.name,
            labels=self.model.labels,
            settings=self._settings(),
            versions=collect_versions(self.model.module),
            notes=tuple(dict.fromkeys(self.notes)),
        )
        if out is not None:
            for name in ("audit.html", "audit.json"):
                made.save(os.path.join(out, name))
        return made

    # --- the data -----------------------------------------------------------------------------------------------------

    def _labels(self, first: AttentionReplay) -> list[int | None]:
        """The true class of each example, None where it is not known or none of the model's."""
        if first.targets[0].position is not None:
            names = TargetNames(self.model, self.classes, is_language=True)
            return [None if example.label is None else names.index(example.label) for example in self.data.examples]
        found = [find_class_index(self.model, example, {}) for example in self.data.examples]
        strange = [e.label for e, i in zip(self.data.examples, found, strict=True) if i < 0 and e.label is not None]
        if strange:
            said = f"{len(strange)} of {len(found)} labels name no class of the model"
            self.notes.append(f"{said}, such as {strange[0]!r}.")
        return [None if not 0 <= i < self.classes else i for i in found]

    def _lengths(self, inputs: Sequence[Any]) -> list[int]:
        """Tokens of each text, so that texts of like length go together; others are taken to be all alike."""
        if self.model.kind != "text":
            return [self.tokens] * len(inputs)
        found: list[int] = []
        for start in range(0, len(inputs), 256):
            mask = self.model.encode(list(inputs[start : start + 256])).token_mask
            assert mask is not None
            found += mask.sum(-1).tolist()
        return found

    def _batches(self, lengths: Sequence[int], inputs: Sequence[Any]) -> list[list[int]]:
        """Examples of like length together, no batch of one alone: an example needs another beside it."""
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
        tokens = BATCH_TOKENS.get(self.model.device.type, BATCH_TOKENS["cpu"])
        made: list[list[int]] = []
        for i in order:
            if made and (len(made[-1]) + 1) * max(lengths[i], 16) <= tokens and len(made[-1]) < 64:
                made[-1].append(i)
            else:
                made.append([i])
        if len(made) > 1 and len(made[-1]) == 1:
            made[-2] += made.pop()
        return made

    def _replay(self, batch: Sequence[int], blocks: Sequence[int] = ()) -> AttentionReplay:
        return AttentionReplay(self.model, self.model.encode([self.inputs[i] for i in batch]), blocks)

    # --- tests on every example ---------------------------------------------------------------------------------------

    def _run_batches(self, rows: AuditRows) -> None:
        tests = [test for test in ("agreement", "replacement", "shape") if test in self.plan.tests]
        blocks = [choice.blocks[0] for choice in self.choices]
        with show_progress(len(self.inputs), "audit") as progress:
            for batch in self._batches(self.lengths, self.inputs):
                names = [("answer", ""), *((test, name) for test in tests for name in self._attention_names(test))]
                if any(rows.missing(test, name, batch) for test, name in names):
                    replay = self._replay(batch, blocks)
                    self._keep(rows, "answer", "", batch, [self._answer(replay, i, at) for at, i in enumerate(batch)])
                    for test in tests:
                        self._test(test, rows, replay, batch)
                    self.notes += replay.notes
                progress.advance(len(batch))

    def _attention_names(self, test: str) -> list[str]:
        return [""] if test == "shape" else [choice.name for choice in self.choices]

    def _keep(self, rows: AuditRows, test: str, attention: str, batch: Sequence[int], found: Sequence[Any]) -> None:
        rows.add(
            [
                {**({"undefined": True} if one is None else one), "test": test, "attention": attention, "example": i}
                for i, one in zip(batch, found, strict=True)
            ]
        )

    def _answer(self, replay: AttentionReplay, example: int, at: int) -> dict[str, Any]:
        target = replay.targets[at]
        ordinary = int((replay.layout.mask & ~replay.layout.special)[at].sum())
        return {
            "name": self.data.examples[example].name,
            "predicted": target.index,
            "probability": target.probability,
            "label": self.labels[example],
            "tokens": ordinary,
        }

    def _test(self, test: str, rows: AuditRows, replay: AttentionReplay, batch: Sequence[int]) -> None:
        if test == "shape":
            if rows.missing(test, "", batch):
                self._keep(rows, test, "", batch, measure_shapes(replay))
            return
        wanted = [choice for choice in self.choices if rows.missing(test, choice.name, batch)]
        if test == "agreement" and wanted:
            shared = importance.measure_shared_importance(replay, self.plan.methods)
            for choice in wanted:
                self._keep(rows, test, choice.name, batch, self._agreement(replay, choice, shared))
        if test == "replacement":
            for choice in wanted:
                self._keep(rows, test, choice.name, batch, self._replacement(replay, choice))

    def _agreement(
        self, replay: AttentionReplay, choice: AttentionChoice, shared: Mapping[str, Tensor]
    ) -> list[dict[str, Any]]:
        question = AttentionQuestion(replay, choice)
        alpha = importance.take_units(replay, question.distribution).double().cpu()
        measures = {**importance.measure_own_importance(replay, choice), **shared}
        real = importance.probe_replay(replay).real
        found = []
        for i in range(replay.batch):
            at = real[i]
            scores = {name: values[i].double().cpu()[at].tolist() for name, values in measures.items()}
            found.append({"pairs": correlate_attention(alpha[i][at].tolist(), scores, top=self.plan.top)})
        return found

    def _replacement(self, replay: AttentionReplay, choice: AttentionChoice) -> list[dict[str, Any] | None]:
        question = AttentionQuestion(replay, choice, words_only=self.plan.words_only)
        kinds = [kind for kind in self.plan.kinds if kind != "other" or replay.batch > 1]
        found = replace_attention(
            question, pair_attention(replay, choice), kinds=kinds, draws=self.plan.draws, seed=self.plan.seed
        )
        largest = question.distribution.amax(-1)
        return [None if one is None else {"largest": float(largest[i]), "kinds": one} for i, one in enumerate(found)]

    # --- tests on some examples ---------------------------------------------------------------------------------------

    def _search(self, rows: AuditRows) -> None:
        """Other attention with the same answer, on a random part of the examples."""
        count = len(self.inputs) if self.plan.searched is None else min(self.plan.searched, len(self.inputs))
        chosen = sorted(Random(self.plan.seed).sample(range(len(self.inputs)), count))
        lengths = [self.lengths[i] for i in chosen]
        with show_progress(count * len(self.choices), "searching") as progress:
            for places in self._batches(lengths, chosen):
                batch = [chosen[place] for place in places]
                for choice in self.choices:
                    if rows.missing("adversarial", choice.name, batch):
                        question = AttentionQuestion(
                            self._replay(batch, choice.blocks[:1]), choice, words_only=self.plan.words_only
                        )
                        largest = question.distribution.amax(-1)
                        found = [
                            None if one is None else {**one, "largest": float(largest[i])}
                            for i, one in enumerate(search_adversarial(question, self.plan.search, self.plan.seed))
                        ]
                        self._keep(rows, "adversarial", choice.name, batch, found)
                    progress.advance(len(batch))

    def _seeds(self, rows: AuditRows, checkpoints: Sequence[Model]) -> None:
        """How far the attention of the same model under other seeds is from this one's."""
        with show_progress(len(self.inputs), "seeds") as progress:
            for batch in self._batches(self.lengths, self.inputs):
                if any(rows.missing("seeds", choice.name, batch) for choice in self.choices):
                    first = self._replay(batch)
                    others = [AttentionReplay(one, one.encode([self.inputs[i] for i in batch])) for one in checkpoints]
                    for choice in self.choices:
                        self._keep(rows, "seeds", choice.name, batch, self._compare_seeds(first, others, choice))
                progress.advance(len(batch))

    def _compare(self, rows: AuditRows, baseline: Model) -> None:
        """What a model answers that was trained with equal weights in place of attention."""
        shadow = make_shadow(baseline.module)
        for batch in self._batches(self.lengths, self.inputs):
            if rows.missing("baseline", "", batch):
                encoded = baseline.encode([self.inputs[i] for i in batch])
                answers = read_logits(encoded, run_plain(shadow, encoded))[0]
                if answers.size(1) != self.classes:
                    raise InputError(f"The baseline knows {answers.size(1)} classes, the model {self.classes}.")
                found = [{"predicted": index} for index in answers.argmax(-1).tolist()]
                self._keep(rows, "baseline", "", batch, found)

    def _compare_seeds(
        self, first: AttentionReplay, others: Sequence[AttentionReplay], choice: AttentionChoice
    ) -> list[dict[str, Any]]:
        own = AttentionQuestion(first, choice).distribution.double()
        found: list[dict[str, Any]] = [{"jsd": [], "tvd": []} for _ in range(first.batch)]
        for other in others:
            if other.heads != first.heads or other.layout.tokens != first.layout.tokens:
                raise InputError("The checkpoints are not of one model: blocks, heads and tokens must be the same.")
            apart = jsd(own, AttentionQuestion(other, choice).distribution.double())
            moved = tvd(first.probabilities, other.probabilities)
            for i, example in enumerate(found):
                example["jsd"].append(float(apart[i]))
                example["tvd"].append(float(moved[i]))
        return found

    # --- the small model ----------------------------------------------------------------------------------------------

    def _diagnose(self, rows: AuditRows, training: Data | None) -> None:
        count = len(self.inputs)
        if count < MIN_DIAGNOSTIC_EXAMPLES and training is None:
            self.notes.append(
                f"The small diagnostic model needs {MIN_DIAGNOSTIC_EXAMPLES} examples to learn from; there are {count}."
            )
            return
        for choice in self.choices:
            if not rows.missing("diagnostic", choice.name, range(count)):
                continue
            samples = self._samples(self.inputs, self.labels, choice)
            known = []
            if training is not None:
                inputs = [example.load() for example in training.examples]
                names = TargetNames(self.model, self.classes, is_language=False)
                labels = [None if one.label is None else names.index(one.label) for one in training.examples]
                known = self._samples(inputs, labels, choice)
            right = diagnostic.run_diagnostic(samples, known, classes=self.classes, seed=self.plan.seed)
            self._keep(
                rows, "diagnostic", choice.name, range(count),
                [{"right": {guide: bool(found[i]) for guide, found in right.items()}} for i in range(count)],
            )  # fmt: skip

    def _samples(
        self, inputs: Sequence[Any], labels: Sequence[int | None], choice: AttentionChoice
    ) -> list[diagnostic.DiagnosticSample]:
        made: dict[int, diagnostic.DiagnosticSample] = {}
        for batch in self._batches(self._lengths(inputs), inputs):
            replay = AttentionReplay(self.model, self.model.encode([inputs[i] for i in batch]))
            alpha = importance.take_units(replay, AttentionQuestion(replay, choice).distribution).cpu()
            real = importance.probe_replay(replay).real
            for at, i in enumerate(batch):
                weights = alpha[at][real[at]]
                total = float(weights.sum())
                label = labels[i]
                made[i] = diagnostic.DiagnosticSample(
                    take_diagnostic_tokens(replay, at)[real[at]],
                    weights / total if total > 0 else torch.full_like(weights, 1 / max(len(weights), 1)),
                    replay.targets[at].index if label is None else label,
                )
        return [made[i] for i in range(len(inputs))]

    # --- the plan in words --------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "attention": [choice.name for choice in self.choices],
            "tests": list(plan.tests),
            "methods": plan.methods if isinstance(plan.methods, str) else [str(one) for one in plan.methods],
            "draws": plan.draws,
            "kinds": list(plan.kinds),
            "search": asdict(plan.search),
            "searched": plan.searched,
            "words_only": plan.words_only,
            "top": plan.top,
            "seed": plan.seed,
        }

    def _describe_plan(
        self, checkpoints: Sequence[Model], baseline: Model | None, training: Data | None
    ) -> dict[str, Any]:
        return {
            **self._settings(),
            "model": fingerprint_weights(self.model),
            "data": self.data.fingerprint(),
            "checkpoints": [fingerprint_weights(one) for one in checkpoints],
            "baseline": None if baseline is None else fingerprint_weights(baseline),
            "training": None if training is None else training.fingerprint(),
            "device": self.model.device.type,
        }


def pair_attention(replay: AttentionReplay, choice: AttentionChoice) -> list[dict[int, Tensor]]:
    """For each example the attention of the next in the batch (for the last, of the one before), without padding."""
    found = []
    for i in range(replay.batch):
        other = i + 1 if i + 1 < replay.batch else max(i - 1, 0)
        real = replay.layout.mask[other]
        cut = {}
        for block in choice.blocks:
            weights = replay.attention[block][other]
            cut[block] = weights[..., real] if weights.size(1) == 1 else weights[:, real][..., real]
        found.append(cut)
    return found


def take_diagnostic_tokens(replay: AttentionReplay, example: int) -> Tensor:
    """What the small model is shown of an example: token ids, or the pixels of each patch."""
    given, grid = replay.encoded.inputs[replay.encoded.main], replay.layout.tokens[example]
    if isinstance(grid, Grid):
        channels, height, width = given.shape[1:]
        tiles = given[example].reshape(channels, grid.rows, height // grid.rows, grid.columns, width // grid.columns)
        return tiles.permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1).float().cpu()
    if given.dim() == 2 and not given.is_floating_point():
        return given[example].cpu()
    if given.dim() == 3:
        return given.select(replay.encoded.batch_axis, example).float().cpu()
    raise UnsupportedModel("What the tokens are cannot be seen, so no small model can be trained on them.")


def fingerprint_weights(model: Model) -> str:
    """A hash that changes with the weights: the sums and shapes of all of them."""
    digest = hashlib.sha256(model.name.encode())
    for name, weight in model.module.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {float(weight.detach().double().sum()):.12e}".encode())
    return digest.hexdigest()
