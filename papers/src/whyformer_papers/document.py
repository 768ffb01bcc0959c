"""Document: a paper that can be rerun here, with what it runs and what it printed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from rich.text import Text

from whyformer._judge.judgement import encode_utf8
from whyformer._model import Model
from whyformer._model.loading import open as open_model
from whyformer._plain.versions import collect_library_versions
from whyformer.data import Data
from whyformer.errors import InputError
from whyformer.results.result import Result
from whyformer.show import report, terminal
from whyformer.show.page_facts import list_facts
from whyformer.show.report import make_element
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer_papers.published_table import PublishedTable

FULL = 10  # times the examples of a short run


@dataclass(frozen=True)
class Request:
    """What to rerun a document on. Without data and model it takes what is bundled."""

    data: Data | None = None
    model: Model | None = None
    out: Path | None = None  # a folder for rows, tables and figures
    batch_size: int | None = None
    limit: int | None = None
    full: bool = False  # ten times the generated examples
    segmented: Data | None = None  # images with outlines, where they are not those of `data`
    device: str | None = None  # where bundled models run

    def folder(self, name: str) -> Path | None:
        """The folder for one section."""
        return None if self.out is None else self.out / name

    def take_bundled(self, model: str, make_examples: Callable[[int], Data], count: int) -> "Request":
        """The same with a bundled model and as many generated examples as the limit says, by default `count`."""
        opened = open_model(model, device=self.device)
        return replace(self, data=make_examples(self.choose_count(count)), model=opened, limit=None)

    def choose_count(self, few: int) -> int:
        """How many generated examples to take where a short run takes `few`."""
        return self.limit or (few * FULL if self.full else few)

    def check_complete(self, paper_model: str) -> None:
        """Refuse data without a model, and a model without data: the bundled ones fit only each other."""
        if self.data is not None and self.model is None:
            raise InputError(f"Name a model with -M (model=). The paper used {paper_model}.", code="E_OPTION")
        if self.model is not None and self.data is None:
            raise InputError(
                f"Name DATA for {self.model.name} as well. Without data, leave out -M too: the bundled model is used.",
                code="E_OPTION",
            )


@dataclass(frozen=True)
class Section:
    """One part of a rerun: a table or a figure. Its name is that of its files."""

    name: str
    result: Result


@dataclass(frozen=True)
class Document:
    """A paper, or a text about one."""

    name: str  # what to type
    title: str
    runs: str  # what a rerun without arguments does, as one sentence
    run: Callable[[Request], Iterator[Section]]
    published: Sequence[PublishedTable] = ()
    tables: Mapping[str, Callable[[Request], Iterator[Section]]] = field(default_factory=dict)  # single ones, by name
    remark: str = ""  # about the published numbers, or why there are none

    def count_numbers(self) -> int:
        return sum(1 for table in self.published for _ in table.numbers())


@dataclass(frozen=True, eq=False)
class DocumentReproduction(Result):
    """The tables and figures of a document, measured here."""

    document: Document
    sections: Sequence[Section]
    formats: ClassVar[Mapping[str, Callable[..., bytes]]] = {
        ".html": lambda made: encode_utf8(made.to_page()),
        ".txt": lambda made: encode_utf8(made.render(Screen(width=140, colours=None)) + "\n"),
    }

    def records(self) -> list[dict[str, object]]:
        """The rows of all tables, each with the name of its table."""
        tables = [section for section in self.sections if ".csv" in section.result.formats]
        return [{"table": one.name, **row} for one in tables for row in one.result.records()]

    def render(self, screen: Screen | None = None) -> str:
        screen = screen or Screen.from_stdout()
        lines = [Text(make_visible(self.document.title), "bold")]
        lines += [Text(make_visible(self.document.remark), "dim")] if self.document.remark else []
        head = terminal.render_parts(lines, screen)
        return "\n\n".join([head, *(section.result.render(screen) for section in self.sections)])

    def to_html(self) -> str:
        parts = (section.result.to_html() for section in self.sections)
        return report.make_fragment(make_element("h2", self.document.title)) + "".join(parts)

    def to_page(self) -> str:
        """A page with one part for each section."""
        anchors = report.make_anchors(section.name for section in self.sections)
        parts = [
            report.make_section(section.name, embed_result(section.result), anchor=anchor)
            for section, anchor in zip(self.sections, anchors, strict=True)
        ]
        about = list_facts("", {}, collect_library_versions())
        return report.make_page(self.document.title, parts, lead=self.document.remark, about=about, contents=anchors)

    @property
    def failed(self) -> int:
        """The number of rows without a value because something failed."""
        return sum(getattr(section.result, "failed", 0) for section in self.sections)


def embed_result(result: Result) -> report.Html:
    """A result on a page: its table, or its figure if it is no table."""
    draw = None if ".csv" in result.formats else getattr(result, "draw", None)
    return report.embed_drawing(draw()) if draw is not None else report.Html(result.to_html())


SAVED_AS = (".csv", ".md", ".png", ".svg")  # of each section, if it has the format


def run_document(document: Document, request: Request) -> DocumentReproduction:
    """Rerun a document; every section is saved as soon as it is there."""
    sections = []
    for section in document.run(request):
        sections.append(section)
        if request.out is not None:
            request.out.mkdir(parents=True, exist_ok=True)
            for suffix in SAVED_AS:
                if suffix in section.result.formats:
                    section.result.save(request.out / f"{section.name}{suffix}")
    made = DocumentReproduction(document, tuple(sections))
    if request.out is not None:
        made.save(request.out / "report.html")
    return made
