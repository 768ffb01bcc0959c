"""summarise_bulk(): from the folder of a bulk run to its summary."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from whyformer._explain.explain import ModelLike
from whyformer._model import Model
from whyformer._model.loading import open as open_model
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import ColumnNames, read_run_data
from whyformer._runs.model_folder import read_model_folder
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import MIN_CLASS, judge_findings
from whyformer._summary.global_changes import find_global_changes
from whyformer._summary.image_evidence import ImageEvidence, collect_image_evidence
from whyformer._summary.inputs import InputReader
from whyformer._summary.links import MetadataLike, add_links, read_item_metadata
from whyformer._summary.outliers import MAX_OUTLIERS, find_confusions
from whyformer._summary.result import BulkSummary
from whyformer._summary.rows import StoredRun, open_stored_run
from whyformer._summary.shares import resample_map, take_positive_shares
from whyformer._summary.tally import Tally
from whyformer._summary.text_evidence import TextEvidence, collect_text_evidence
from whyformer.data.data_like import DataLike
from whyformer.data.folders import find_mask_paths
from whyformer.data.masks import MASK_VALUES
from whyformer.errors import InputError, WhyformerError
from whyformer.show.score_rows import as_utf8

PER_CLASS = 400  # items clustered per class
TESTED = 32  # items rerun per cluster
WITH_MASKS = 200  # items per class of which the mask is read


@neutral_torch()
def summarise_bulk(
    folder: str | os.PathLike[str],
    model: ModelLike | None = None,
    *,
    data: DataLike | None = None,
    split: str | None = None,
    columns: ColumnNames | None = None,
    method: str | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_values: str | Mapping[int, int] = "binary",
    metadata: MetadataLike | None = None,
    test: bool = True,
    class_limit: int = PER_CLASS,
    test_limit: int = TESTED,
    seed: int = 0,
) -> BulkSummary:
    """What the explanations of a bulk run have in common: per class, per cluster, with tests and suspicion.

    model: reruns the inputs to test each cluster; None opens the model that the run names. data, split, columns: the
    data of the run, needed for images that were not files, such as those of a DataFrame. method: the method whose
    scores are summarised; None is the first of the run. masks: a folder of masks, named like the images. metadata: what
    else is known about the items, in which a finding may be concentrated: a CSV file with a column id, or a mapping
    from ids to values by column. test: rerun the model to find and test what it looks at. class_limit: at most this
    many items of each class are clustered. test_limit: at most this many items of each cluster are rerun.
    """
    check_summary_settings(class_limit, test_limit, seed, mask_values)
    columns_of_items = read_item_metadata(metadata)
    run = open_stored_run(Path(folder))
    tally = Tally(choose_summarised_method(run, method), class_limit, seed)
    for rows in run.iterate_parts():
        tally.add_part(rows)
    notes = [*run.notes, *note_tally(tally)]
    classes = sample_classes(tally)
    given = {} if data is None else {as_utf8(one.name): one for one in read_run_data(data, split, columns).examples}
    found_masks = find_mask_paths(Path(masks)) if masks is not None and test else {}
    reader, untested = None, "test=False was given"
    if test:
        try:
            reader = InputReader(open_tested_model(run, model), found_masks, mask_values, given)
            reader.check_predictions([row for rows in classes.values() for row in rows[:4]])
        except WhyformerError as error:
            if model is not None:  # a model that was passed must work; that of the plan may be gone
                raise
            reader, untested = None, f"{error} Pass model= to test what was found."
            notes.append(f"Nothing was tested: {untested}")
    evidence = collect_evidence(classes, reader, test_limit, seed, untested)
    found = list(evidence.find()) if evidence is not None else []
    if reader is not None:
        found += find_global_changes(classes, reader, test_limit, seed)
    findings = judge_findings(add_links(found, classes, columns_of_items))
    if reader is not None:
        add_masked_places(tally, classes, reader)
        if evidence is None:
            notes.append("The model has no hidden state for each patch, so images could not be compared.")
        if reader.failed:
            name, reason = min(reader.failed.items())
            notes.append(f"{len(reader.failed)} inputs could not be read again, such as {name}: {reason}")
    outliers = evidence.list_outliers() if evidence is not None else []
    return BulkSummary(
        folder=Path(folder),
        model=reader.model.name if reader else run.model_name,
        data=run.find_name("data"),
        tally=tally,
        findings=tuple(findings),
        outliers=tuple(sorted(outliers, key=lambda one: (-one.score, one.id))[:MAX_OUTLIERS]),
        confusions=tuple(find_confusions([row for rows in classes.values() for row in rows], findings)),
        notes=tuple(notes),
        settings={"per_class": tally.samples.per_class, "tested": test_limit, "seed": seed, "test": test},
        reader=reader,
        plan=run.plan,
    )


def collect_evidence(
    classes: Mapping[str, Sequence[BulkRow]], reader: InputReader | None, tested: int, seed: int, untested: str
) -> ImageEvidence | TextEvidence | None:
    """The evidence of the kind of input that most items are of; None if there is none, or images cannot be seen."""
    kinds = [rows[0].kind for rows in classes.values()]
    if not kinds:
        return None
    kind = max(sorted(set(kinds)), key=kinds.count)
    same = {name: rows for name, rows in classes.items() if rows[0].kind == kind}
    if kind == "text":
        return collect_text_evidence(same, reader, tested, seed, untested)
    return None if reader is None else collect_image_evidence(same, reader, tested, seed)


def check_summary_settings(class_limit: int, test_limit: int, seed: int, mask_values: str | Mapping[int, int]) -> None:
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


def sample_classes(tally: Tally) -> dict[str, list[BulkRow]]:
    """The classes with enough items to be examined, with the kind of input that most of their items have."""
    classes = {}
    for name, rows in tally.samples.rows.items():
        kinds = [row.kind for row in rows]
        kind = max(sorted(set(kinds)), key=kinds.count)
        same = [row for row in rows if row.kind == kind and row.target == rows[0].target]
        if len(same) >= MIN_CLASS:
            classes[name] = same
    return classes


def open_tested_model(run: StoredRun, model: ModelLike | None) -> Model:
    """The model that was passed, or that of the run: its folder seen from here, or its name."""
    wanted = read_model_folder(run.folder) or run.find_name("model") if model is None else model
    if wanted is None:
        raise InputError("plan.json does not name a model.")
    planned = run.plan.get("model")
    if model is None and isinstance(planned, Mapping) and wanted == planned.get("class"):
        raise InputError(f"The run explained a model in memory, a {wanted}, which cannot be opened again.")
    return wanted if isinstance(wanted, Model) else open_model(wanted)


def add_masked_places(tally: Tally, classes: Mapping[str, Sequence[BulkRow]], reader: InputReader) -> None:
    """How much of the relevance is on the object, over the sampled items with a mask."""
    if not reader.masks:
        return
    place = tally.places[tally.method]
    for rows in classes.values():
        for row in rows[:WITH_MASKS]:
            mask = reader.load_mask(row)
            share = None if mask is None else share_on_object(row.scores, row.grid, mask)
            if mask is not None and share is not None:
                area = float((mask == 1).sum() / (mask >= 0).sum())
                place.add("the object", share, area)
                place.add("the background", 1 - share, 1 - area)


def share_on_object(scores: np.ndarray | None, grid: tuple[int, int] | None, mask: np.ndarray) -> float | None:
    """The share of positive relevance on the object; ignored pixels count neither way."""
    shares = take_positive_shares(scores) if scores is not None and grid is not None else None
    if shares is None or grid is None:
        return None
    spread = resample_map(shares.reshape(grid), (mask.shape[0], mask.shape[1]))
    total = float(spread[mask >= 0].sum())
    return float(spread[mask == 1].sum()) / total if total else None
