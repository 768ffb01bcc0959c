"""audit(): is attention an explanation here? All tests on one data set, resumable."""

import os
from collections.abc import Hashable, Mapping, Sequence

from whyformer._audit.auditor import AuditExtras, Auditor
from whyformer._audit.checks import REPLACEMENT_KINDS, AttentionLike
from whyformer._audit.result import Audit
from whyformer._audit.rows import AuditRows
from whyformer._audit.settings import choose_audit_settings
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike
from whyformer._plain.progress import Wait, show_activity
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import (
    as_argument_list,
    check_run_data,
    check_run_folder,
    check_run_number,
    read_run_data,
)
from whyformer.data import Data
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames


@neutral_torch()
def audit(
    model: ModelLike,
    data: DataLike,
    attention: AttentionLike = "last",
    *,
    tests: Sequence[str] | None = None,
    methods: MethodLike | Sequence[MethodLike] = (),
    limit: int | None = None,
    split: str | None = None,
    columns: Mapping[str, Hashable] | None = None,
    classes: ClassNames | None = None,
    samples: int = 100,
    kinds: Sequence[str] = REPLACEMENT_KINDS,
    preset: str = "paper",
    search_limit: int | None = 100,
    steps: int | None = None,
    checkpoints: Sequence[ModelLike] = (),
    baseline: ModelLike | None = None,
    training: DataLike | None = None,
    adversary_epochs: int = 0,
    words_only: bool = False,
    top: float = 0.2,
    target: int | str | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> Audit:
    """Measure whether the attention of a model explains its predictions on this data.

    data: anything that `whyformer.data.read` accepts, or its result. split, columns, classes: which part of it, its
    columns by role, and what the model calls its labels.
    attention: which attention to audit: a block, (block, head), "last", "3:2", "3:each", "each", "rollout", or a list.
    tests: some of "agreement", "replacement", "adversarial", "adversary", "shape", "diagnostic", "seeds", "baseline";
    all that are possible. methods: explanation methods to compare with attention, besides gradients and leave-one-out.
    limit: use at most this many examples. samples: random permutations per example. kinds: of replacement.
    preset: settings of the adversarial search, "paper" or "released". search_limit: the number of examples to search
    on, which is slow; None for all. steps: of the search.
    checkpoints: the same model trained with other seeds. baseline: the same model trained with uniform attention.
    training: labelled examples for the small diagnostic model, with the same columns and classes.
    adversary_epochs: train one model for each attention, for so many epochs, to give the same answers with other
    attention; on `training`, or on half of the examples, and measured on the others. 0 for none.
    words_only: leave the weights on special tokens as they are. top: share of the tokens compared by overlap.
    target: the class, or next token, that gradients, leave-one-out and methods explain; by default the predicted one.
    Changes of the output are measured on all classes.
    out: a folder for the rows and the report; an interrupted audit continues from it.
    """
    folder = check_run_folder(out)
    check_run_data(data)
    if limit is not None:
        check_run_number("limit", limit, least=1)
    settings = choose_audit_settings(
        tests=tests, methods=methods, kinds=kinds, preset=preset, steps=steps, samples=samples,
        search_limit=search_limit, words_only=words_only, top=top, target=target, seed=seed,
        adversary_epochs=adversary_epochs,
    )  # fmt: skip
    if training is not None:
        check_run_data(training)
    named = None if isinstance(training, Data) else columns
    examples = read_run_data(data, split, columns, classes, limit=limit, seed=settings.seed)
    auditor = Auditor(as_model(model), examples, attention, settings)
    extras = AuditExtras(
        [auditor.open_twin(checkpoint) for checkpoint in as_argument_list(checkpoints)],
        None if baseline is None else auditor.open_twin(baseline),
        None if training is None else read_run_data(training, None, named, classes),
    )
    with AuditRows(folder, auditor.describe_plan(extras)) as rows:
        auditor.run(rows, extras)
        result = make_audit(auditor, rows)
    if folder is not None:
        with show_activity(Wait("writing the report")):
            for file in ("audit.html", "audit.json"):
                result.save(folder / file)
    return result


def make_audit(auditor: Auditor, rows: AuditRows) -> Audit:
    """The result, from the rows of all tests."""
    names = tuple(choice.name for choice in auditor.choices)
    return Audit(
        rows=tuple(rows.stored.values()),
        attention=names,
        descriptions=tuple(choice.description for choice in auditor.choices),
        model=auditor.model.name,
        data=auditor.data.name,
        labels=auditor.model.labels,
        settings=auditor.describe_settings(),
        versions=auditor.model.describe_versions(),
        notes=tuple(dict.fromkeys(auditor.notes)),
    )
