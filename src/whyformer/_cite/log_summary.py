"""What a cited log says as a whole: what answers rest on, documents that are never used, abstentions, errors."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields

from whyformer._plain import archive
from whyformer.errors import InputError, suggest_nearest
from whyformer.results.result import Result, choose_formats
from whyformer.show.blocks import Block, DataTable, PageSection, Report
from whyformer.show.score_rows import CellValue
from whyformer.show.wording import shorten_text

SHOWN_LINES = 20  # of a table in a terminal
MOST_LINES = 1_000  # of a table on the page and in the file
LONGEST_TEXT = 300  # characters in a table
NO_SOURCE = ("hardly any", "against")
CONDITION = re.compile(r"\s*(\w+)\s*(>=|>)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


@dataclass(frozen=True)
class UnsourcedSentence:
    """A sentence of an answer that hardly rests on any source, or that the sources make less likely."""

    id: str  # of the record
    line: int
    how: str
    text: str


@dataclass
class DocumentUse:
    """How often a document was offered, left out to try it, and rested on."""

    key: str  # its id, or a hash of its text
    offered: int = 0
    tried: int = 0  # in records in which sources were left out
    used: int = 0  # a sentence rests on it, alone or with others
    beside: int = 0  # it is named as also, or as speaking against a sentence
    text: str = ""


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

    Files: .json has everything; .html, .txt, .md show tables; .csv has a row for each document.
    """

    formats = choose_formats(".json .html .csv .txt .md")
    csv_columns = tuple(one.name for one in fields(DocumentUse))

    count: int  # of records
    cited: int
    answers: Mapping[str, int] = field(default_factory=dict)  # how they depend on sources -> whole answers
    sentences: Mapping[str, int] = field(default_factory=dict)  # the same of sentences that are claims
    abstentions: int = 0  # answers that make no claim, but say that they cannot
    borderline: int = 0  # sentences
    marks: Mapping[str, int] = field(default_factory=dict)  # what was found of marks such as [1] -> their number
    unsourced: Sequence[UnsourcedSentence] = ()  # the first thousand
    documents: Sequence[DocumentUse] = ()  # by how often they are offered
    errors: Sequence[LogErrors] = ()  # most frequent first

    def __repr__(self) -> str:
        return f"<LogSummary of {self.count:,} records, {self.cited:,} cited>"

    @property
    def never_used(self) -> list[DocumentUse]:
        """Documents that were left out to try them and that no answer rested on, the most offered first."""
        return [one for one in self.documents if one.tried and not one.used]

    @property
    def rates(self) -> dict[str, tuple[int, int]]:
        """What a gate can ask for: how many, of how many."""
        claims, marks = sum(self.sentences.values()), sum(self.marks.values())
        return {
            "no_source": (sum(self.sentences.get(how, 0) for how in NO_SOURCE), claims),
            "borderline": (self.borderline, claims),
            "abstentions": (self.abstentions, self.cited),
            "wrong_marks": (marks - self.marks.get("right", 0), marks),
            "missing_marks": (self.marks.get("no such number", 0), marks),
            "errors": (self.count - self.cited, self.count),
        }

    def fails(self, condition: str) -> bool:
        """Whether a condition such as "no_source > 5%" or "errors >= 1" holds; of nothing, the share is 0."""
        found = CONDITION.fullmatch(condition)
        if found is None or found[1] not in self.rates:
            hint = suggest_nearest(found[1], tuple(self.rates)) if found else ""
            raise InputError(
                f'{condition!r} is no condition, such as "no_source > 5%" or "errors >= 1".{hint} Rates: '
                f"{', '.join(self.rates)}.",
                code="E_OPTION",
            )
        count, total = self.rates[found[1]]
        value = (100 * count / total if total else 0.0) if found[4] else float(count)
        return value > float(found[3]) or (found[2] == ">=" and value == float(found[3]))

    def describe(self) -> list[str]:
        lines = [f"{self.count:,} records: {self.cited:,} cited, {self.count - self.cited:,} with an error."]
        lines += [f"Answers: {list_counts(self.answers)}."] if self.answers else []
        lines += [f"Sentences that claim something: {list_counts(self.sentences)}."] if self.sentences else []
        lines += [f"{self.abstentions:,} answers are abstentions, which claim nothing."] if self.abstentions else []
        lines += [f"{self.borderline:,} of these sentences are borderline."] if self.borderline else []
        lines += [f"Marks in the answers: {list_counts(self.marks)}."] if self.marks else []
        tried = [one for one in self.documents if one.tried]
        if tried:
            lines.append(f"Documents left out: {len(tried):,}; no answer rests on {len(self.never_used):,} of them.")
        elif self.documents:
            lines.append(f"Documents: {len(self.documents):,}. None was left out, so which are used is not known.")
        return lines

    # --- displaying ---

    def _report(self) -> Report:
        whole: list[Block] = [*self.describe(), *self.list_tables(MOST_LINES)]
        brief: list[Block] = [*self.describe(), *self.list_tables(SHOWN_LINES)]
        return Report("What the answers rest on", whole, is_titled=False, brief=brief)

    def list_tables(self, most: int) -> Iterator[PageSection]:
        """The first rows, and how many there are; tables that are empty are left out."""
        for title, rows, total in (
            ("Sentences that rest on no source", self.unsourced, self.rates["no_source"][0]),
            ("Documents never used", self.never_used, len(self.never_used)),
            ("Errors", self.errors, len(self.errors)),
        ):
            if rows:
                first = f"{total:,}" if min(most, len(rows)) == total else f"the first {most:,} of {total:,}"
                cells = [tuple(map(fit_cell, astuple(row))) for row in rows[:most]]
                yield PageSection(f"{title} ({first})", [DataTable([one.name for one in fields(rows[0])], cells)])

    # --- files ---

    def to_fields(self) -> archive.WrittenFields:
        own = {"records" if name == "count" else name: value for name, value in vars(self).items()}
        return {**own, "never_used": [one.key for one in self.never_used]}

    def _list_rows(self) -> Iterator[tuple[CellValue, ...]]:
        yield from map(astuple, self.documents)


def fit_cell(value: CellValue) -> CellValue:
    return shorten_text(" ".join(value.split()), LONGEST_TEXT) if isinstance(value, str) else value


def list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {how}" for how, count in counts.items())


# --- counting ---------------------------------------------------------------------------------------------------------


def summarise_rows(rows: Iterable[archive.Fields]) -> LogSummary:
    """Counts over the rows of a cited log, read once."""
    counts: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    sentences: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    unsourced: list[UnsourcedSentence] = []
    documents: dict[str, DocumentUse] = {}
    errors: dict[str, LogErrors] = {}
    for row in rows:
        counts["records"] += 1
        if row["error"] is not None:
            own = errors.setdefault(row["error"], LogErrors(row["error"], 0, row["line"], row["message"] or ""))
            own.count += 1
            continue
        counts["cited"] += 1
        counts["abstentions"] += row["kind"] == "abstention"
        answers.update([row["how"]] if row["how"] else [])
        told = [one for one in json.loads(row["sentences"] or "[]") if one["kind"] == "claim" and one["how"]]
        for one in told:
            sentences[one["how"]] += 1
            counts["borderline"] += bool(one["around"])
            marks.update(mark["finding"] for mark in one["marks"] if mark["finding"])
            if one["how"] in NO_SOURCE and len(unsourced) < MOST_LINES:
                unsourced.append(UnsourcedSentence(row["id"], row["line"], one["how"], one["text"]))
        needed = {name for one in [row, *told] for name in one["rests_on"]}
        for source in json.loads(row["citations"] or "[]"):
            use = documents.setdefault(source["key"], DocumentUse(source["key"], text=source["text"]))
            use.offered += 1
            use.tried += bool(row["how"])
            use.used += source["name"] in needed
            use.beside += bool(source["role"]) and source["name"] not in needed
    return LogSummary(
        counts["records"], counts["cited"], dict(answers.most_common()), dict(sentences.most_common()),
        counts["abstentions"], counts["borderline"], dict(marks.most_common()), tuple(unsourced),
        tuple(sorted(documents.values(), key=lambda one: -one.offered)),
        tuple(sorted(errors.values(), key=lambda one: -one.count)),
    )  # fmt: skip
