"""What a cited log says as a whole: sentences that no source supports, documents that are never used, errors."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.text import Text

from whyformer._plain import archive
from whyformer.results.result import Result, choose_formats
from whyformer.show import report, terminal
from whyformer.show.html import Content
from whyformer.show.score_rows import CellValue
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import shorten_text

SUPPORTED = "supported"
SHOWN_LINES = 20  # of a table in a terminal
MOST_LINES = 1_000  # of a table on the page and in the file


@dataclass(frozen=True)
class UnsupportedSentence:
    """A sentence of an answer that no source supports."""

    id: str  # of the record
    line: int
    text: str
    verdict: str


@dataclass
class DocumentUse:
    """How often a document was offered, and how often an answer needed it."""

    key: str  # its id, or a hash of its text
    text: str
    offered: int = 0
    used: int = 0


@dataclass
class LogErrors:
    """Records that ended with the same code."""

    code: str
    count: int = 0
    line: int = 0  # of the first
    message: str = ""  # of the first


@dataclass(frozen=True, eq=False, repr=False)
class LogSummary(Result):
    """What the citations of a log say as a whole.

    Files: .json has everything; .html, .txt show tables; .csv has a row for each document.
    """

    formats = choose_formats(".json .html .csv .txt")
    csv_columns = ("key", "offered", "used", "text")

    count: int  # of records
    cited: int
    answers: Mapping[str, int] = field(default_factory=dict)  # verdict -> whole answers
    sentences: Mapping[str, int] = field(default_factory=dict)  # verdict -> sentences
    unsupported: Sequence[UnsupportedSentence] = ()  # the first thousand
    documents: Sequence[DocumentUse] = ()  # by how often they are offered
    errors: Sequence[LogErrors] = ()  # most frequent first

    def __repr__(self) -> str:
        return f"<LogSummary of {self.count:,} records, {self.cited:,} cited>"

    @property
    def never_used(self) -> list[DocumentUse]:
        """Documents that were offered and that no answer needed, the most offered first."""
        return [one for one in self.documents if not one.used]

    def describe(self) -> list[str]:
        failed = self.count - self.cited
        lines = [f"{self.count:,} records: {self.cited:,} cited, {failed:,} with an error."]
        lines += [f"Answers: {list_counts(self.answers)}."] if self.answers else []
        lines += [f"Sentences: {list_counts(self.sentences)}."] if self.sentences else []
        if self.documents:
            lines.append(
                f"Documents: {len(self.documents):,}, of which {len(self.never_used):,} were never needed by an answer."
            )
        return lines

    # --- displaying ---

    def _list_parts(self, screen: Screen) -> Iterator[RenderableType]:
        yield from (Text(line) for line in self.describe())
        for title, head, rows, total in self.list_tables(SHOWN_LINES, max(screen.width - 40, 20)):
            yield from ("", Text(name_table(title, len(rows), total), "bold"))
            cells = [[str(cell) for cell in row] for row in rows]
            yield terminal.render_table(head, cells, right=("line", "offered", "records"), wrapped=(head[-1],))

    def list_tables(self, most: int, width: int) -> Iterator[tuple[str, Sequence[str], list[Sequence[Content]], int]]:
        """Title, heading, the first rows, and how many there are; those that are empty are left out."""

        def cut(text: str) -> str:
            return make_visible(shorten_text(" ".join(text.split()), width))

        told = [(cut(one.id), one.line, one.verdict, cut(one.text)) for one in self.unsupported[:most]]
        unused = [(cut(one.key), one.offered, cut(one.text)) for one in self.never_used]
        errors = [(one.code, one.count, one.line, cut(one.message)) for one in self.errors]
        total = sum(count for verdict, count in self.sentences.items() if verdict != SUPPORTED)
        for title, head, rows, count in (
            ("Sentences without support", ("record", "line", "verdict", "sentence"), told, total),
            ("Documents never used", ("document", "offered", "text"), unused[:most], len(unused)),
            ("Errors", ("code", "records", "line", "first message"), errors[:most], len(errors)),
        ):
            if rows:
                yield title, head, list(rows), count

    def to_html(self) -> str:
        return report.make_fragment(*self._make_sections(SHOWN_LINES))

    def _make_sections(self, most: int) -> list[Content]:
        prose = [report.make_element("p", line) for line in self.describe()]
        tables = [
            report.make_section(
                name_table(title, len(rows), total),
                report.make_table(
                    head, [[make_visible(str(c)) if isinstance(c, str) else c for c in row] for row in rows]
                ),
            )
            for title, head, rows, total in self.list_tables(most, 300)
        ]
        return [*prose, *tables]

    def _make_page(self) -> str:
        sections = [one for one in self._make_sections(MOST_LINES) if isinstance(one, report.Html)]
        return report.make_page("What the answers rest on", sections)

    # --- files ---

    def to_fields(self) -> archive.WrittenFields:
        fields = {"records" if name == "count" else name: value for name, value in vars(self).items()}
        return {**fields, "never_used": [one.key for one in self.never_used]}

    def _list_rows(self) -> Iterator[tuple[CellValue, ...]]:
        yield from ((one.key, one.offered, one.used, one.text) for one in self.documents)


def list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())


def name_table(title: str, shown: int, total: int) -> str:
    return f"{title} ({total:,})" if shown == total else f"{title} (the first {shown:,} of {total:,})"


# --- counting ---------------------------------------------------------------------------------------------------------


def summarise_rows(rows: Iterable[archive.Fields]) -> LogSummary:
    """Counts over the rows of a cited log, read once."""
    records = cited = 0
    answers: Counter[str] = Counter()
    sentences: Counter[str] = Counter()
    unsupported: list[UnsupportedSentence] = []
    documents: dict[str, DocumentUse] = {}
    errors: dict[str, LogErrors] = {}
    for row in rows:
        records += 1
        if row["error"] is not None:
            own = errors.setdefault(row["error"], LogErrors(row["error"], 0, row["line"], row["message"] or ""))
            own.count += 1
            continue
        cited += 1
        answers.update([row["verdict"]] if row["verdict"] else [])
        told = json.loads(row["sentences"] or "[]")
        for one in told:
            sentences[one["verdict"]] += 1
            if one["verdict"] != SUPPORTED and len(unsupported) < MOST_LINES:
                unsupported.append(UnsupportedSentence(row["id"], row["line"], one["text"], one["verdict"]))
        needed = {name for one in told if one["verdict"] == SUPPORTED for name in one["sources"]}
        for source in json.loads(row["citations"] or "[]"):
            own_use = documents.setdefault(source["key"], DocumentUse(source["key"], source["text"]))
            own_use.offered += 1
            own_use.used += source["name"] in needed or source["verdict"] == SUPPORTED
    return LogSummary(
        records, cited, dict(answers.most_common()), dict(sentences.most_common()), tuple(unsupported),
        tuple(sorted(documents.values(), key=lambda one: -one.offered)),
        tuple(sorted(errors.values(), key=lambda one: -one.count)),
    )  # fmt: skip
