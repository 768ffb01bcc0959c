"""The documents that can be rerun, and their single tables, by name."""

from collections.abc import Mapping
from dataclasses import replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from whyformer.demo.draws import refuse_unknown_name
from whyformer.show import terminal
from whyformer.show.terminal import Screen
from whyformer_papers.abnar_zuidema import ABNAR_ZUIDEMA
from whyformer_papers.attcat import ATTCAT
from whyformer_papers.chefer import CHEFER
from whyformer_papers.document import Document
from whyformer_papers.jain_wallace import JAIN_WALLACE
from whyformer_papers.relevance_rollout import RELEVANCE_ROLLOUT
from whyformer_papers.sawaki_murata import SAWAKI_MURATA

DOCUMENTS: Mapping[str, Document] = {
    document.name: document
    for document in (CHEFER, ATTCAT, SAWAKI_MURATA, JAIN_WALLACE, RELEVANCE_ROLLOUT, ABNAR_ZUIDEMA)
}


def find_document(name: str) -> Document:
    """The document of this name; for the name of a single table, the document reduced to that table."""
    if isinstance(name, str) and name in DOCUMENTS:
        return DOCUMENTS[name]
    tables = {table: document for document in DOCUMENTS.values() for table in document.tables}
    refuse_unknown_name("document or table", name, [*DOCUMENTS, *tables])
    return replace(tables[name], name=name, run=tables[name].tables[name])


def list_documents(screen: Screen | None = None) -> str:
    """What can be rerun, as text for a terminal."""
    parts: list[RenderableType] = []
    for document in DOCUMENTS.values():
        lines = [document.title, f"Runs: {document.runs}"]
        sources = dict.fromkeys(str(table.source) for table in document.published)
        numbers = f"{document.count_numbers()} ({', '.join(sources)})" if sources else "none"
        lines += [f"Published numbers: {numbers}. {document.remark}".rstrip()]
        lines += [f"Single tables: {', '.join(document.tables)}"] if document.tables else []
        parts += [Text(document.name, "bold"), *(Padding(Text(line), (0, 0, 0, 2)) for line in lines), Text("")]
    parts += [
        Text("whyformer reproduce NAME runs one, whyformer reproduce NAME --published prints its numbers.", "dim")
    ]
    return terminal.render_parts(parts, screen or Screen.from_stdout())
