"""bulk(): explain a whole data set, in shards that are complete or missing, and resume where it stopped."""

import os
from collections.abc import Sequence

import torch

from whyformer._bulk.items import ItemList
from whyformer._bulk.job import BulkJob, run_missing
from whyformer._bulk.plan import make_bulk_plan, order_methods, read_stored_methods, read_stored_settings
from whyformer._bulk.result import BulkRun
from whyformer._bulk.settings import BulkSettings
from whyformer._bulk.site import choose_engine, choose_site, count_loaders, open_here, uses_loader_processes
from whyformer._bulk.stopping import listen_for_stop
from whyformer._bulk.trial import TrialRun, choose_batches
from whyformer._bulk.worker import WorkerSetup
from whyformer._engine import TargetLike
from whyformer._explain.default_method import DEFAULT_METHODS
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike, label_methods
from whyformer._model import Model
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import ColumnNames, as_argument_list, check_run_data, check_run_folder, read_run_data
from whyformer._runs.choice import read_run_target
from whyformer._runs.lock import lock_folder
from whyformer._runs.model_folder import write_model_folder
from whyformer._runs.preparation import find_kind_of_input
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames
from whyformer.errors import MethodError, OutputError


@neutral_torch()
def bulk(
    model: ModelLike,
    data: DataLike,
    methods: MethodLike | Sequence[MethodLike] | None = None,
    *,
    out: str | os.PathLike[str],
    target: TargetLike = None,
    device: str | torch.device | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    shard: int | None = None,
    threads: int | None = None,
    loaders: int | None = None,
    limit: int | None = None,
    split: str | None = None,
    columns: ColumnNames | None = None,
    classes: ClassNames | None = None,
    truncate: bool = False,
    windows: bool | int = False,
    maps: bool = False,
    check: bool = False,
    retry_failed: bool = False,
    grow: bool = False,
) -> BulkRun:
    """Explain every item of a data set and write one row per item and method to Parquet files in a folder.

    The same call resumes a run that was stopped, by whatever: finished parts are checked and kept. An item that cannot
    be explained becomes an error record and never stops the run.

    model: best a name or folder, which other processes can open; a Model or nn.Module runs in this process.
    methods: names, functions or partials of them; by default the default method for images or for texts.
    data: anything that `whyformer.data.read` accepts, or its result. limit: a random sample of so many items.
    split, columns, classes: which part of the data, its columns by role, and what the model calls its labels, as for
        `whyformer.data.read`; columns={"name": ...} chooses the ids.
    target: the class to explain: by default the predicted one; "label" (the true class), one class for all items, or
        one of whyformer.targets, also as text ("group:cat,dog").
    engine: where the workers run, "local" or "ray". address: the Ray cluster to join; without it Ray runs on this
    machine only. workers: worker processes; by default one per GPU or core.
    batch_size: items per pass; by default found on a GPU, or under a budget of `memory` bytes per worker. shard: items
    per file. threads: threads of each worker on the processor; by default 1. loaders: threads of each worker that read
    and decode ahead; next to a GPU, each has a process.
    truncate: cut texts that are too long for the model instead of recording an error. windows: explain them in
    overlapping windows, as `explain` does; a number says how many tokens windows share. maps: also store each map as a
    PNG.
    check: also ask the model with the highest words or patches hidden, and with everything hidden, as `explain` does;
    the answers are in the columns `top_hidden` and `all_hidden`.
    retry_failed: try the items that failed, and only them, again. grow: add to the run in the folder the items and
    methods of this call that it has not. This call must have all of its.
    """
    folder = check_run_folder(out)
    if folder is None:
        raise OutputError("out must be the path of a folder.")
    check_run_data(data)
    settings = BulkSettings(
        device=device, engine=engine, workers=workers, address=address, batch_size=batch_size, memory=memory,
        shard=shard, threads=threads, loaders=loaders, limit=limit, truncate=truncate, windows=windows, maps=maps,
        check=check, retry_failed=retry_failed, grow=grow,
    )  # fmt: skip
    wanted = [] if methods is None else as_argument_list(methods)
    if methods is not None and not wanted:
        raise MethodError("There are no methods. Name at least one.")
    label_methods(wanted)  # misspelt names, before a model is opened
    if not isinstance(model, str | os.PathLike | Model | torch.nn.Module):  # a pipeline: open what it holds, once
        model = as_model(model)
    site = choose_site(model, settings)
    opened = open_here(model, site)
    source = read_run_data(data, split, columns, classes)
    if methods is None:
        wanted = [DEFAULT_METHODS[find_kind_of_input(opened, source) or "texts"]]
    items = ItemList(source, limit)
    items.check_ids()
    target = read_run_target(as_class_number(target, opened), opened)
    with lock_folder(folder), listen_for_stop() as stop:
        stored = read_stored_settings(folder)
        wanted = order_methods(wanted, read_stored_methods(folder))
        setup = WorkerSetup(
            os.fspath(model) if isinstance(model, str | os.PathLike) else opened,
            methods=tuple(wanted),
            target=target,
            truncate=settings.truncate,
            maps=settings.maps,
            loaders=settings.loaders or count_loaders(site),
            loads_in_processes=uses_loader_processes(site),
            windows=settings.windows,
            check=settings.check,
        )
        trial = None if stored and not grow else TrialRun(setup, opened, items)
        batches = choose_batches(stored, trial, site.device, settings)
        plan = make_bulk_plan(opened, items, setup, site.device, batches)
        job = BulkJob.begin(folder, plan, items, opened.kind, settings)
        if opened.opened_by_path is not None:
            write_model_folder(opened.opened_by_path, folder)
        if trial is not None:
            job.check_space(trial.bytes_per_item)
        if job.missing:
            run_missing(job, choose_engine(site, setup.follow_plan(job.plan), opened, len(job.missing)), stop)
        return BulkRun(folder, len(items), job.failed, job.computed, job.methods, source.notes)


def as_class_number(target: TargetLike, opened: Model) -> TargetLike:
    """A target like "7" is a class number, unless it is the name of a class."""
    if isinstance(target, str) and target.isascii() and target.isdecimal() and target not in (opened.labels or ()):
        return int(target)
    return target
