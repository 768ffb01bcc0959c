"""An answer with a mark for each source that a sentence of it rests on: [1] in a terminal, a footnote in Markdown.

The Aurora carries tea.[^1]

[^1]: **document 1**, `d0`: The Aurora sails under captain Anna. ...
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whyformer._plain.json_value import JsonValue
from whyformer.show.markdown import escape_markdown
from whyformer.show.wording import shorten_text

NOTED_TEXT = 300  # characters of a source in a footnote


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence of an answer, and the sources that it rests on, by their numbers."""

    text: str
    remark: str = ""  # what is said beside it, such as "hardly any"
    marks: tuple[int, ...] = ()


@dataclass(frozen=True)
class NotedSource:
    """What a footnote says about a source."""

    name: str
    text: str
    role: str = ""
    share: float = 0.0
    probabilities: tuple[str, str, str, str] = ("", "", "", "")  # with all, without it, it alone, with none
    id: str | None = None
    metadata: Mapping[str, JsonValue] | None = None

    @property
    def facts(self) -> dict[str, str]:
        """Metadata in one line each."""
        return {name: " ".join(str(value).split()) for name, value in (self.metadata or {}).items()}


def number_sources(
    sentences: Sequence[tuple[str, str, Sequence[str]]],
) -> tuple[list[MarkedSentence], list[str]]:
    """Sentences (text, remark, names of sources) with marks from 1 on, and the name of each mark."""
    names = list(dict.fromkeys(name for _, _, sources in sentences for name in sources))
    numbers = {name: number for number, name in enumerate(names, 1)}
    marked = [
        MarkedSentence(" ".join(text.split()), remark, tuple(sorted(numbers[name] for name in sources)))
        for text, remark, sources in sentences
    ]
    return marked, names


def write_marked_text(sentences: Sequence[MarkedSentence]) -> str:
    """The answer in one line: 'The Aurora carries tea. [1]'."""
    return " ".join(
        one.text + "".join(f" [{mark}]" for mark in one.marks) + (f" ({one.remark})" if one.remark else "")
        for one in sentences
    )


def write_markdown(
    headline: str,
    sentences: Sequence[MarkedSentence],
    sources: Sequence[NotedSource],
    marks: Sequence[str],
    remarks: Sequence[str] = (),
) -> str:
    """The answer with footnotes, all sources in a table, and remarks. sources: highest score first; marks: by name."""
    by_name = {one.name: one for one in sources}
    lines = [f"# {escape_line(headline)}", "", " ".join(map(mark_sentence, sentences)), ""]
    lines += ["| source | id | share | role | p with all | without it | it alone | with none | text |"]
    lines += ["|---|---|---:|---|---:|---:|---:|---:|---|"]
    lines += map(write_source_row, sources)
    lines += ["", *(f"- {escape_line(remark)}" for remark in remarks)]
    lines += ["", *(f"[^{n}]: {write_note(by_name[name])}" for n, name in enumerate(marks, 1) if name in by_name)]
    return "\n".join(lines).rstrip() + "\n"


def mark_sentence(one: MarkedSentence) -> str:
    remark = f" *({escape_line(one.remark)})*" if one.remark else ""
    return escape_line(one.text) + "".join(f"[^{mark}]" for mark in one.marks) + remark


def write_source_row(one: NotedSource) -> str:
    share, text = f"{100 * one.share:+.0f} %", shorten_text(one.text, 80)
    cells = (one.name, one.id or "", share, one.role, *one.probabilities, text)
    return f"| {' | '.join(map(escape_line, cells))} |"


def write_note(one: NotedSource) -> str:
    return "; ".join(list_note_parts(one))


def list_note_parts(one: NotedSource) -> Iterator[str]:
    own = f"**{escape_line(one.name)}**" + (f", {escape_line(one.id)}" if one.id else "")
    yield f"{own}: {escape_line(shorten_text(one.text, NOTED_TEXT))}"
    yield from (f"{escape_line(name)}: {escape_line(shorten_text(value, 80))}" for name, value in one.facts.items())


def escape_line(text: str) -> str:
    return escape_markdown(" ".join(text.split()))
