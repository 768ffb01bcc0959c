"""The rows of a cited log: one for each record, errors included. Lists are JSON, so that any reader of Parquet can.

pandas.read_parquet("runs/log/parts")
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from whyformer._bulk.items import Item, mark_content
from whyformer._cite.log import LogLine
from whyformer._plain.failure import describe_failure
from whyformer.results.citations import Citation, Citations, write_claim
from whyformer.show.wording import shorten_text

KEPT_TEXT = 200  # characters of a source


@dataclass(frozen=True, slots=True)
class LogRow:
    """The citations of one record, or the error that took their place."""

    id: str
    position: int  # among the records
    line: int
    error: str | None = None  # a code
    message: str | None = None
    answer: str | None = None
    kind: str | None = None  # claim, abstention, greeting or unfinished
    how: str | None = None  # it depends on its sources
    rests_on: tuple[str, ...] = ()  # names of sources
    log_probability: float | None = None
    log_odds: float | None = None
    sentences: str | None = None  # JSON: each sentence of the answer as in the file of a result
    citations: str | None = None  # JSON: the sources, highest score first
    notes: tuple[str, ...] = ()
    content: str | None = None  # a hash of the record


# The columns of a part in order, with their types as pyarrow names them.
ARROW_TYPES: dict[Any, str] = {int: "int64", float | None: "double", tuple[str, ...]: "[string]"}
LOG_COLUMNS = {one.name: ARROW_TYPES.get(one.type, "string") for one in fields(LogRow)}


def make_log_row(item: Item, cited: Citations) -> LogRow:
    return LogRow(
        item.id, item.position, find_line(item),
        answer=cited.prompt.answer_text,
        kind=cited.claim.kind,
        how=cited.claim.how,
        rests_on=cited.claim.rests_on,
        log_probability=cited.log_probability,
        log_odds=cited.log_odds,
        sentences=write_list([write_claim(one) for one in cited.sentences]),
        citations=write_list([describe_source(one) for one in cited]),
        notes=cited.notes,
        content=mark_content(item.content, "text"),
    )  # fmt: skip


def make_log_error(item: Item, error: Exception) -> LogRow:
    code, message = describe_failure(error)
    return LogRow(item.id, item.position, find_line(item), error=code, message=message)


def find_line(item: Item) -> int:
    return item.content.number if isinstance(item.content, LogLine) else item.position + 1


def describe_source(one: Citation) -> dict[str, object]:
    """A source as it is stored. key: what tells documents apart across records, the id or a hash of the text."""
    digest = hashlib.sha256(one.text.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    fields = {name: getattr(one, name) for name in ("name", "id", "score", "share", "role", "copies", "metadata")}
    return {**fields, "key": digest if one.id is None else one.id, "text": shorten_text(one.text, KEPT_TEXT)}


def write_list(values: Sequence[object]) -> str:
    return json.dumps(values, ensure_ascii=True, default=list)
