"""Audit: the result of `audit`, to read, show and save."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from rich.text import Text

from whyformer._audit import report
from whyformer._audit.checks import check_saved_audit
from whyformer._audit.report import AuditFindings, write_indented_json
from whyformer._plain import archive
from whyformer.results.result import DRAWING_FORMATS, Result, choose_formats
from whyformer.show.blocks import Report
from whyformer.show.drawing import Drawing
from whyformer.show.terminal import Screen, render_parts, wrap_lines
from whyformer.show.visible import make_visible

SAVED = (  # in this order; what is computed from the rest is there for other readers
    "model", "data", "attention", "descriptions", "labels", "settings", "versions", "notes", "headlines", "sentences",
    "summary", "rows",
)  # fmt: skip


class Audit(AuditFindings, Result):
    """Whether attention explains the predictions of a model on a data set, with the evidence."""

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        **choose_formats(".html"),
        ".json": lambda audit: write_indented_json("audit", {name: getattr(audit, name) for name in SAVED}),
        ".txt": lambda audit: (audit.write_text(None) + "\n").encode("utf-8", "backslashreplace"),
        **DRAWING_FORMATS,
    }

    def __repr__(self) -> str:
        return (
            f"<Audit of {make_visible(', '.join(self.attention))} in {make_visible(self.model)}: {len(self)} examples>"
        )

    def records(self) -> list[dict[str, object]]:
        """One mapping per example, test and attention, with the numbers of that test."""
        return [dict(row) for row in self.rows]

    def _report(self) -> Report:
        return report.make_audit_report(self)

    def render(self, screen: Screen | None = None) -> str:
        """The verdict as text, wrapped to the width of the screen or the terminal; elsewhere a sentence is a line."""
        return self.write_text(screen or Screen.from_terminal())

    def write_text(self, screen: Screen | None) -> str:
        lines = [f"Is attention an explanation here? {self.model} on {len(self)} examples of {self.data}", ""]
        for name in self.attention:
            lines += [self.headlines[name], *self._list_sentences(name), ""]
        lines += self._list_sentences("")
        lines += [f"note: {note}" for note in self.notes]
        text = "\n".join(make_visible(line) for line in lines).rstrip()
        wrapped = text if screen is None else wrap_lines(text, screen.width)
        return "\n\n".join([wrapped, *self._render_found(screen)])

    def _render_found(self, screen: Screen | None) -> Iterator[str]:
        """For each attention: the observed weights and the other ones that the search found, on the text."""
        chosen = Screen(100, None) if screen is None else screen
        for name in self.attention[: report.MAX_SECTIONS]:
            if parts := report.render_found(self, name, chosen):
                heading = f"Other attention with the same answer, {make_visible(name)}:"
                yield render_parts([Text(heading), *parts], chosen)

    def draw(self) -> Drawing:
        """A figure: observed attention and other attention with the same answer, side by side on the input."""
        return report.draw_found(self)

    def _list_sentences(self, name: str) -> list[str]:
        return [f"  - {sentence.text} ({sentence.evidence})" for sentence in self.sentences[name]]

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Audit":
        """Read an audit saved as .json."""
        return archive.read_archive(path, "audit", audit_from_fields)


def audit_from_fields(saved: archive.Fields) -> Audit:
    check_saved_audit(saved)
    values: dict[str, Any] = {one.name: saved[one.name] for one in fields(AuditFindings)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    audit = Audit(**values)
    _ = audit.sentences, audit.headlines  # computed and kept now: a file that cannot be summarised is refused
    return audit
