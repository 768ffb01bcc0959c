"""Sphinx reads .ipynb files: cells as MyST, with the outputs that are stored in them. Nothing is executed."""

import json
import re
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

ANSI_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class NotebookParser(MystParser):
    """A notebook, as a page of MyST."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: Any) -> None:
        super().parse(write_page(json.loads(inputstring)), document)


def write_page(notebook: dict[str, Any]) -> str:
    return "\n\n".join(part for cell in notebook["cells"] for part in write_cell(cell))


def write_cell(cell: dict[str, Any]) -> list[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    return [fence("python", text), *(write_output(output) for output in cell["outputs"])]


def write_output(output: dict[str, Any]) -> str:
    """HTML as it is, else text; progress and warnings on standard error are left out."""
    data = output.get("data", {})
    if "text/html" in data:
        return fence("{raw} html", "".join(data["text/html"]))
    if "image/svg+xml" in data:
        return fence("{raw} html", "".join(data["image/svg+xml"]))
    if "image/png" in data:
        source = "".join(data["image/png"]).strip()
        return fence(
            "{raw} html", f'<img alt="The figure that the cell above draws" src="data:image/png;base64,{source}">'
        )
    if output.get("name") == "stderr":
        return ""
    return fence("text", ANSI_CODE.sub("", "".join(output.get("text", data.get("text/plain", "")))))


def fence(language: str, text: str) -> str:
    ticks = "`" * max(3, *(len(found) + 1 for found in re.findall("`{3,}", text)), 3)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
