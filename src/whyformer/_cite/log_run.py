"""cite_log: cite the sources of every record of a log, in shards that are complete or missing, as `bulk` does.

    run = cite_log("my/model", "log.jsonl", out="runs/log", effort="fast", workers=2)
    print(run.summarise())

The engines, the files and the resuming are those of `bulk`; only the worker is another one: it cites a record where
theirs explains an item.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import torch

from whyformer._bulk.items import Item, ItemList
from whyformer._bulk.job import BulkJob, run_missing
from whyformer._bulk.plan import BatchSettings, BulkPlan, hash_text, list_run_fields, read_stored_settings
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.result import FinishedRun
from whyformer._bulk.settings import BulkSettings
from whyformer._bulk.site import choose_engine, choose_site, open_here
from whyformer._bulk.stopping import listen_for_stop
from whyformer._bulk.trial import TRIED, UNUSABLE
from whyformer._bulk.worker import ModelSetup
from whyformer._cite.log import parse_log_line, read_log
from whyformer._cite.log_rows import LOG_COLUMNS, LogRow, make_log_error, make_log_row
from whyformer._cite.log_summary import LogSummary, summarise_rows
from whyformer._cite.run import cite
from whyformer._explain.explain import ModelLike
from whyformer._model import Model
from whyformer._plain import archive
from whyformer._plain.json_value import JsonValue
from whyformer._plain.progress import show_progress
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import check_run_folder
from whyformer._runs.lock import lock_folder
from whyformer._runs.parts import encode_part, read_part
from whyformer._runs.repeatable import repeatable_engine
from whyformer.errors import OutputError, WhyformerError
from whyformer.methods._registry import Setting

CITED = "cite"  # what takes the place of a method in the plan
RECORDS_OF_A_SHARD = 16  # few, so that progress is seen soon and little is lost


@dataclass(frozen=True)
class CiteSetup(ModelSetup):
    """Everything that a worker needs to cite records."""

    settings: archive.Fields = field(default_factory=dict)  # of cite()

    def make_worker(self, model: Model) -> "CiteWorker":
        return CiteWorker(self, model)


class CiteWorker:
    """An open model that cites the records of a shard."""

    def __init__(self, setup: CiteSetup, model: Model) -> None:
        self.setup, self.model = setup, model
        self.check_stop: Callable[[], None] = lambda: None  # called between records; raises to give up

    @repeatable_engine()
    def run(self, task: ShardTask, upcoming: ShardTask | None = None) -> bytes:
        rows = []
        with show_progress(len(task.items), "records") as progress:
            for item in task.items:
                self.check_stop()
                rows.append(self.cite_item(item))
                progress.advance()
        return encode_part(rows, task.number, self.setup.fingerprint, LOG_COLUMNS)

    def cite_item(self, item: Item) -> LogRow:
        """The row of a record, or the error that it ends in."""
        try:
            return make_log_row(item, cite(self.model, parse_log_line(item.content), **self.setup.settings))
        except Exception as error:
            return make_log_error(item, error)

    def close(self) -> None:
        pass


class CiteJob(BulkJob):
    """The parts of a cited log."""

    label = "cite"
    growing = ("data",)

    def make_error_part(self, task: ShardTask, error: Exception) -> bytes:
        rows = [make_log_error(item, error) for item in task.items]
        return encode_part(rows, task.number, self.store.fingerprint, LOG_COLUMNS)


class CitedLog(FinishedRun):
    """A finished run. The rows are Parquet files: pandas.read_parquet(run.parts)."""

    def rows(self) -> Iterator[dict[str, JsonValue]]:
        """Every row as a dictionary, in the order of the log. A part that is damaged is refused."""
        for path in sorted(self.parts.glob("*.parquet")):
            yield from read_part(path).to_pylist()

    def summarise(self) -> LogSummary:
        """What answers rest on, sentences that rest on no source, documents that were never used, and errors."""
        return summarise_rows(self.rows())


@neutral_torch()
def cite_log(
    model: ModelLike,
    records: str | os.PathLike[str] | Iterable[Mapping[str, JsonValue]],
    *,
    out: str | os.PathLike[str],
    by: str | None = None,
    device: str | torch.device | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    shard: int | None = None,
    threads: int | None = None,
    limit: int | None = None,
    retry_failed: bool = False,
    grow: bool = False,
    **settings: Setting,
) -> CitedLog:
    """Cite the sources of every record of a log, and write one row per record to Parquet files in a folder.

    The same call resumes a run that was stopped, by whatever: finished parts are checked and kept. A record that cannot
    be read or cited becomes an error record and never stops the run.

    records: a file of JSON lines, or dictionaries. Each has "messages", "prompt" or a "request" and its "response", and
    perhaps "id", "documents" and "answer"; docs/logs.md has them all.
    by, settings: as for cite(), for every record.
    engine, address, workers, device, threads, limit: as for bulk(). shard: records per file.
    retry_failed: try records that failed again.
    grow: the log has more records than when the folder was filled; only those are cited.
    """
    folder = check_run_folder(out)
    if folder is None:
        raise OutputError("out must be the path of a folder.")
    asked = BulkSettings(
        device=device, engine=engine, workers=workers, address=address, shard=shard, threads=threads, limit=limit,
        retry_failed=retry_failed, grow=grow,
    )  # fmt: skip
    log = read_log(records)
    site = choose_site(model, asked)
    opened = open_here(model, site)
    items = ItemList(log, limit)
    chosen = {"by": by, **settings}
    setup = CiteSetup(os.fspath(model) if isinstance(model, str | os.PathLike) else opened, settings=chosen)
    with lock_folder(folder), listen_for_stop() as stop:
        stored = read_stored_settings(folder)
        if not stored:
            try_records(setup.make_worker(opened), items)
        size = int(shard or stored.get("shard") or RECORDS_OF_A_SHARD)
        batches = BatchSettings(size, 1, int(threads or stored.get("threads") or 1))
        template = hash_text(str(getattr(opened.tokenizer, "chat_template", None)))
        fields = {"layout": 3, **list_run_fields(opened, items, "text", site.device, batches), "template": template}
        plan = BulkPlan(archive.as_json_value({**fields, "methods": {CITED: chosen}}), kind="cited log")
        job = CiteJob.begin(folder, plan, items, "text", asked)
        if job.missing:
            run_missing(job, choose_engine(site, setup.follow_plan(job.plan), opened, len(job.missing)), stop)
        run = CitedLog(folder, len(items), job.failed, job.computed)
        summary = run.summarise()
        for name in ("summary.json", "summary.html"):
            summary.save(folder / name)
        return run


def try_records(worker: CiteWorker, items: ItemList) -> None:
    """Raise what every record would fail with, before anything is written."""
    for item in islice(items, TRIED):
        try:
            cite(worker.model, parse_log_line(item.content), **worker.setup.settings)
        except UNUSABLE:
            raise
        except WhyformerError as error:
            if error.code == "E_OPTION":
                raise
        else:
            return
