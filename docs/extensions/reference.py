"""Docstrings in the reference: the first sentence as text, the rest as it is written, since it is not RST."""

from typing import Any

from docutils.utils import unescape
from sphinx.application import Sphinx


def keep_as_written(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = "\n".join(lines).strip()
    first, _, rest = text.partition("\n\n")
    lines[:] = [escape_markup(" ".join(first.split())), ""]
    if rest.strip():
        lines += ["::", "", *(f"    {line}" for line in rest.splitlines()), ""]


def escape_markup(text: str) -> str:
    """Backslashes before what RST reads as markup; code in single backticks becomes a literal."""
    parts = unescape(text).split("`")
    shown = [part.replace("*", "\\*").replace("_", "\\_").replace("|", "\\|") for part in parts]
    if len(parts) % 2 == 0:
        return "".join(shown)
    return "".join(f" ``{code}`` " if i % 2 and code else shown[i] for i, code in enumerate(parts)).strip()


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", keep_as_written)
    return {"parallel_read_safe": True}
