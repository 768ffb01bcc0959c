"""A notebook with every kind of result, executed: it saves their pages, and its outputs become a page themselves."""

import os
from html import escape
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SETUP = """
from pathlib import Path
from screens.results import RESULTS, Workbench, save_page
bench, out = Workbench(Path({work!r})), Path({out!r})
"""
CELL = """
result = RESULTS[{name!r}](bench)
save_page({name!r}, result, out, bench)
result
"""
STYLE = """
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 14px/1.5 system-ui, sans-serif; background: GROUND;
  color: INK; color-scheme: SCHEME; --jp-layout-color0: GROUND; overflow-wrap: anywhere }
.cell { border-top: 1px solid #8886; padding: .75rem 0; overflow-x: clip } pre { white-space: pre-wrap }
"""
THEMES = {"light": ("#fff", "#1b1b1f"), "dark": ("#111115", "#ececf1")}


def run_notebook(names, out: Path, work: Path) -> list[tuple[str, dict]]:
    """(name, what a notebook shows by its MIME type) of every result; their pages are in `out`."""
    notebook = nbformat.v4.new_notebook()
    sources = [SETUP.format(out=str(out), work=str(work)), *(CELL.format(name=name) for name in names)]
    notebook.cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    # The kernel is a process of its own, in another folder, which must find this package as well.
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(work), env=environment)
    shown = []
    for name, cell in zip(names, notebook.cells[1:], strict=True):
        (result,) = (output for output in cell.outputs if output.output_type == "execute_result")
        shown.append((name, dict(result.data)))
    return shown


def make_notebook_page(shown: list[tuple[str, dict]], scheme: str) -> str:
    """The outputs below each other, as a notebook of this theme shows them."""
    ground, ink = THEMES[scheme]
    style = STYLE.replace("GROUND", ground).replace("INK", ink).replace("SCHEME", scheme)
    cells = [f"<div class=cell><p><b>{escape(name)}</b></p>{show_output(data)}</div>" for name, data in shown]
    return (
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'><style>{style}</style>"
        + ("\n".join(cells))
    )


def show_output(data: dict) -> str:
    """The richest form there is, as in Jupyter."""
    if "text/html" in data:
        return data["text/html"]
    return data.get("image/svg+xml") or f"<pre>{escape(data['text/plain'])}</pre>"
