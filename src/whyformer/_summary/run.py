"""summarise_bulk(): from the folder of a bulk run to its summary."""

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whyformer._explain.explain import ModelLike
from whyformer._model import Model
from whyformer._model.loading import open as open_model
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import read_run_data
from whyformer._summary.clusters import (
    MAX_OUTLIERS,
    Outlier,
    SampledClass,
    find_clusters,
    find_outliers,
    make_sampled_class,
)
from whyformer._summary.examination import Examiner, examine_clusters
from whyformer._summary.inputs import InputReader
from whyformer._summary.result import BulkSummary
from whyformer._summary.rows import StoredRun, open_stored_run
from whyformer._summary.suspicion import Finding, correct_findings
from whyformer._summary.tally import Tally
from whyformer.data import Example
from whyformer.data.data_like import DataLike
from whyformer.data.folders import find_mask_paths
from whyformer.data.masks import MASK_VALUES
from whyformer.errors import InputError, WhyformerError
from whyformer.show.score_rows import as_utf8

PER_CLASS = 400  # items clustered per class
TESTED = 32  # items rerun per cluster
MIN_CLASS = 8  # items, to be clustered
WITH_MASKS = 200  # items per class of which the mask is read


@neutral_torch()
def summarise_bulk(
    folder: str | os.PathLike[str],
    model: ModelLike | None = None,
    *,
    data: DataLike | None = None,
    split: str | None = None,
    columns: Mapping[str, Hashable] | None = None,
    method: str | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_values: str | Mapping[int, int] = "binary",
    test: bool = True,
    class_limit: int = PER_CLASS,
    test_limit: int = TESTED,
    seed: int = 0,
) -> BulkSummary:
    """What the explanations of a bulk run have in common: per class, per cluster, with tests and suspicion.

    model: reruns the inputs to test each cluster; None opens the model that the run names. data, split, columns: the
    data of the run, needed for images that were not files, such as those of a DataFrame. method: the method whose
    scores are summarised; None is the first of the run. masks: a folder of masks, named like the images. test=False
    skips everything that needs the model. class_limit: at most this many items of each class are clustered.
    test_limit: at most this many items of each cluster are rerun.
    """
    check_summary_settings(class_limit, test_limit, seed, mask_values)
    run = open_stored_run(Path(folder))
    tally = Tally(choose_summarised_method(run, method), class_limit, seed)
    for rows in run.iterate_parts():
        tally.add_part(rows)
    notes = [*run.notes, *note_tally(tally)]
    classes = sample_classes(tally)
    held = {} if data is None else {as_utf8(one.name): one for one in read_run_data(data, split, columns).examples}
    examiner, reason = (
        make_examiner(run, classes, model, masks, mask_values, test_limit, seed, held) if test else (None, NOT_ASKED)
    )
    if test and examiner is None:
        notes.append(f"No cluster was tested: {reason}")
    findings = examine_all(classes, examiner, reason)
    if examiner is not None:
        add_masked_places(tally, classes, examiner)
        if examiner.reader.failed:
            name, reason = min(examiner.reader.failed.items())
            notes.append(f"{len(examiner.reader.failed)} inputs could not be read again, such as {name}: {reason}")
    return BulkSummary(
        folder=Path(folder),
        model=examiner.reader.model.name if examiner else run.model_name,
        data=run.find_name("data"),
        tally=tally,
        findings=tuple(findings),
        outliers=tuple(rank_outliers(classes)),
        notes=tuple(notes),
        settings={"per_class": tally.samples.per_class, "tested": test_limit, "seed": seed, "test": test},
        reader=examiner.reader if examiner else None,
        plan=run.plan,
    )


NOT_ASKED = "test=False was given"


def check_summary_settings(class_limit: Any, test_limit: Any, seed: Any, mask_values: Any) -> None:
    for name, value, least in (
        ("class_limit", class_limit, MIN_CLASS),
        ("test_limit", test_limit, 2),
        ("seed", seed, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} must be a whole number >= {least}, got {value!r}.", code="E_OPTION")
    if not isinstance(mask_values, Mapping) and mask_values not in MASK_VALUES:
        raise InputError(
            f"There is no mask_values={mask_values!r}. Available: {', '.join(MASK_VALUES)}, or a mapping.",
            code="E_OPTION",
        )


def choose_summarised_method(run: StoredRun, method: str | None) -> str:
    """The method to summarise: the one asked for, or the first of the plan that has rows."""
    first = min(run.parts)
    present = {row.method for row in run.iterate_rows(first)}
    known = [name for name in run.plan.get("methods", ()) if name in present] + sorted(present)
    if not known:
        raise InputError(f"{run.parts[first]} has no rows.", code="E_DATA")
    if method is None:
        return known[0]
    if method not in present:
        raise InputError(
            f"The run has no method {method!r}. Available: {', '.join(dict.fromkeys(known))}.", code="E_METHOD"
        )
    return method


def note_tally(tally: Tally) -> list[str]:
    """What to know about the numbers."""
    notes = []
    if tally.without_positive:
        notes.append(f"{tally.without_positive} items have no positive score by {tally.method} and are left out.")
    if tally.unnamed:
        notes.append(f"{tally.unnamed} rows are of tensors, or explain no class; they are counted, but not summarised.")
    if tally.dropped_words:
        notes.append("There are more words than can be counted at once; counts of rare words are too low.")
    sampled = sum(len(rows) for rows in tally.samples.rows.values())
    known = sum(one.mapped for one in tally.classes.values())
    if sampled < known:
        notes.append(
            f"Clusters and outliers are found in a random sample of {sampled} of {known} items, at most "
            f"{tally.samples.per_class} per class."
        )
    return notes


def sample_classes(tally: Tally) -> list[SampledClass]:
    """The classes with enough items to be clustered, with the kind of input that most of their items have."""
    classes = []
    for name, rows in tally.samples.rows.items():
        kinds = [row.kind for row in rows]
        kind = max(sorted(set(kinds)), key=kinds.count)
        same = [row for row in rows if row.kind == kind and row.target == rows[0].target]
        if len(same) >= MIN_CLASS:
            classes.append(make_sampled_class(name, same, tally))
    return classes


def make_examiner(
    run: StoredRun,
    classes: Sequence[SampledClass],
    model: ModelLike | None,
    masks: str | os.PathLike[str] | None,
    mask_values: str | Mapping[int, int],
    tested: int,
    seed: int,
    held: Mapping[str, Example],
) -> tuple[Examiner | None, str]:
    """What runs the tests; or None, and why. A model that was passed must work; that of the plan may be gone."""
    found = find_mask_paths(Path(masks)) if masks is not None else {}
    wanted = run.model_source if model is None else model
    if wanted is None:
        return None, "plan.json does not name a model. Pass model=."
    try:
        opened = wanted if isinstance(wanted, Model) else open_model(wanted)
        reader = InputReader(opened, found, mask_values, held)
        reader.check_predictions([row for one in classes for row in one.rows[:4]])
    except WhyformerError as error:
        if model is not None:
            raise
        return None, str(error)
    return Examiner(reader, tested, seed), ""


def examine_all(classes: Sequence[SampledClass], examiner: Examiner | None, untested: str) -> list[Finding]:
    """The findings of all clusters, the most suspicious first, with what happens when a suspicious region is hidden."""
    clusters = [cluster for sampled in classes for cluster in find_clusters(sampled)]
    findings = correct_findings(examine_clusters(clusters, classes, examiner, untested))
    if examiner is None:
        return findings
    return [finish_suspicious(one, examiner) if one.is_suspicious else one for one in findings]


def finish_suspicious(finding: Finding, examiner: Examiner) -> Finding:
    """A suspicious cluster without the items that show something else, and what happens when its region is hidden."""
    alike = examiner.keep_alike(finding)
    return replace(alike, recovery=examiner.measure_recovery(alike))


def add_masked_places(tally: Tally, classes: Sequence[SampledClass], examiner: Examiner) -> None:
    """How much of the relevance is on the object, over the sampled items with a mask."""
    if not examiner.reader.masks:
        return
    place = tally.places[tally.method]
    for sampled in classes:
        for share, area in examiner.measure_on_object(sampled.rows, WITH_MASKS):
            place.add("the object", share, area)
            place.add("the background", 1 - share, 1 - area)


def rank_outliers(classes: Sequence[SampledClass]) -> list[Outlier]:
    """The farthest outliers of all classes."""
    found = [outlier for sampled in classes for outlier in find_outliers(sampled)]
    return sorted(found, key=lambda one: (-one.score, one.id))[:MAX_OUTLIERS]
