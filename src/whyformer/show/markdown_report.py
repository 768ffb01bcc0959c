"""Blocks as Markdown: paragraphs, tables and footnotes; of an example the strongest words or patches.

Untrusted text stays text, in a table cell or between two asterisks. A name must not end its cell (`|`, a line break),
be emphasised, start code, a formula, a link or an HTML element. What a backslash protects gets a backslash; what it
does not protect everywhere becomes an HTML entity. A plain web address would become a link too, so its colon or dot is
escaped.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from whyformer.show import blocks as b
from whyformer.show.footnotes import MarkedSentence
from whyformer.show.page_tables import classify_column
from whyformer.show.panel_images import list_strongest_patches
from whyformer.show.prompt_view import CitationRow
from whyformer.show.terminal_report import write_plain
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_considered, describe_sum, format_headline, format_score, shorten_text

NOTED_TEXT = 300  # characters of a source in a footnote
TOP = 10  # words or patches of an example


def write_report(made: b.Report) -> str:
    """The whole file."""
    blocks = made.blocks if made.brief is None else made.brief
    lead = [made.lead] if made.lead else []
    parts = MarkdownWriter().write_all([*lead, *blocks, b.Facts(made.facts)])
    return "\n\n".join([f"# {escape_line(made.title)}", *filter(None, parts)]) + "\n"


class MarkdownWriter(b.Writer):
    """The paragraphs of each block."""

    def text(self, block: str) -> Iterator[str]:
        yield escape_line(block)

    def paragraph(self, block: b.Paragraph) -> Iterator[str]:
        text = escape_line(write_plain(block.spans))
        yield f"**{text}**" if block.style == "strong" else text

    def bullets(self, block: b.Bullets) -> Iterator[str]:
        yield list_lines(f"{text} ({why})" for text, why in block.lines)

    def notes(self, block: b.Notes) -> Iterator[str]:
        yield list_lines(block.lines)

    def facts(self, block: b.Facts) -> Iterator[str]:
        yield list_lines(f"{name}: {write_plain(value)}" for name, value in block.pairs.items())

    def datatable(self, block: b.DataTable) -> Iterator[str]:
        kinds = [classify_column([row[i] for row in block.rows]) for i in range(len(block.head))]
        rows = [[" ".join(write_plain(cell).split()) for cell in row] for row in (block.head, *block.rows)]
        yield escape_line(block.caption)
        yield write_table(rows, right=[kind == "number" for kind in kinds]).rstrip()

    def pagesection(self, block: b.PageSection) -> Iterator[str]:
        yield from (f"## {escape_line(block.title)}", escape_line(block.remark), *self.write_all(block.blocks))

    def fold(self, block: b.Fold) -> Iterator[str]:
        yield from (f"### {escape_line(block.summary)}", *self.write_all(block.blocks))

    def tabs(self, block: b.Tabs) -> Iterator[str]:
        yield from self.write_all(inside for _, blocks in block.options for inside in blocks)

    def exampleview(self, block: b.ExampleView) -> Iterator[str]:
        panel = block.panel
        yield f"**{escape_line(format_headline(panel))}** by {escape_line(panel.label)}"
        yield escape_line(describe_considered(panel.target))
        for part in panel.drawn:
            words = [] if part.is_image else [(chip.text, chip.score) for chip in part.scored_text.chips]
            ranked = sorted(words, key=lambda pair: -abs(pair[1]))[:TOP] or list_strongest_patches(part, TOP)
            rows = [(name, format_score(score, signed=part.signed)) for name, score in ranked]
            yield from self.datatable(b.DataTable(("patch" if part.is_image else "token", "score"), rows))
        yield from (*map(escape_line, panel.check), escape_line(describe_sum(panel)))

    def markedanswer(self, block: b.MarkedAnswer) -> Iterator[str]:
        """The answer with footnotes, and the footnotes."""
        notes = {one.mark: write_note(one) for one in block.sources if one.mark is not None}
        yield " ".join(map(mark_sentence, block.sentences))
        yield "\n".join(f"[^{mark}]: {notes[mark]}" for mark in sorted(notes))


def list_lines(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape_line(line)}" for line in lines)


def mark_sentence(one: MarkedSentence) -> str:
    remark = f" *({escape_line(one.remark)})*" if one.remark else ""
    return escape_line(one.text) + "".join(f"[^{mark}]" for mark in one.marks) + remark


def write_note(one: CitationRow) -> str:
    own = f"**{escape_line(one.name)}**" + (f", {escape_line(one.id)}" if one.id else "")
    facts = [
        f"{escape_line(name)}: {escape_line(shorten_text(str(value), 80))}" for name, value in one.metadata.items()
    ]
    return "; ".join([f"{own}: {escape_line(shorten_text(one.text, NOTED_TEXT))}", *facts])


def escape_line(text: str) -> str:
    return escape_markdown(" ".join(text.split()))


MARKDOWN_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    "@": "&#64;",
    **{sign: f"\\{sign}" for sign in "\\`*[]~$#!"},
}
OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is no emphasis
BARE_LINK = re.compile(r"(:)(?=//)|(?<=www)(\.)|(?<=mailto)(:)|(?<=xmpp)(:)", re.IGNORECASE)


def escape_markdown(text: str) -> str:
    """Untrusted text, safe in one line of Markdown."""
    escaped = "".join(MARKDOWN_ESCAPES.get(letter, letter) for letter in make_visible(text))
    escaped = OUTER_UNDERSCORE.sub(r"\\_", escaped)
    return BARE_LINK.sub(lambda match: f"\\{match[0]}", escaped)


def write_table(rows: Sequence[Sequence[str]], *, right: Sequence[bool] = ()) -> str:
    """A table, of which the first row is the header; right: columns that are aligned to the right."""
    header, *body = [[escape_markdown(cell) for cell in row] for row in rows]
    line = ["---:" if is_right else "---" for is_right in right] or ["---"] * len(header)
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, line, *body])
