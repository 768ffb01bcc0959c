"""Picture everything that a person sees: commands in a terminal, pages in Chromium, results in a notebook.

    PYTHONPATH=tests python -m screens [--out screens] [--only WORD]      (make screens)

writes the pictures into one folder with an index page, and prints the faults that the checks find.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from screens.browser import Browser
from screens.checks import SCHEMES, WIDTHS, find_page_faults, find_text_faults
from screens.commands import COMMANDS, prepare_folder
from screens.documentation import build_docs, picture_docs
from screens.notebook import make_notebook_page, run_notebook
from screens.results import RESULTS, save_tour
from screens.terminal import Shown, run_command
from screens.workbench import STATES, open_pages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("screens"))
    parser.add_argument("--only", default="", help="only names that contain this word")
    options = parser.parse_args()
    pictures = Pictures(options.out)
    with tempfile.TemporaryDirectory() as work, Browser() as browser:
        picture_pages(pictures, browser, Path(work), options.only)
        picture_commands(pictures, browser, Path(work), options.only)
        if options.only == "" or "docs" in options.only:
            for name, png, faults in picture_docs(browser, build_docs(Path(work)), options.only):
                pictures.add(name, png, faults)
    picture_workbench(pictures, options.only)
    pictures.write_index()
    print(f"{options.out / 'index.html'}: {len(pictures.entries)} pictures, {pictures.faults} faults")
    return 1 if pictures.faults else 0


class Pictures:
    """The folder of pictures, and what was found wrong with each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[tuple[str, list[str]]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def faults(self) -> int:
        return sum(len(found) for _, found in self.entries)

    def add(self, name: str, png: bytes, faults: list[str]) -> None:
        (self.folder / f"{name}.png").write_bytes(png)
        self.entries.append((name, faults))
        for fault in faults:
            print(f"{name}: {fault}", file=sys.stderr)

    def write_index(self) -> None:
        from html import escape

        parts = ["<!doctype html><meta charset=utf-8><title>screens</title><style>img{max-width:100%;border:1px solid "]
        parts.append("#888}body{font:15px system-ui;margin:2rem}li{color:#a30}</style><h1>What a person sees</h1>")
        for name, faults in self.entries:
            listed = "".join(f"<li>{escape(fault)}" for fault in faults)
            parts.append(f"<h2>{name}</h2><ul>{listed}</ul><img loading=lazy src='{name}.png'>")
        (self.folder / "index.html").write_text("\n".join(parts), "utf-8")


def picture_pages(pictures: Pictures, browser: Browser, work: Path, only: str) -> None:
    """Every page, and the notebook that made them, in every width and scheme."""
    pages = pictures.folder / "pages"
    pages.mkdir(exist_ok=True)
    names = [name for name in RESULTS if only in name]
    shown = run_notebook(names, pages.resolve(), work) if names else []
    if only in "demo":
        save_tour(pages)
    for page in [page for page in sorted(pages.glob("*.html")) if only in page.stem]:
        picture_page(pictures, browser, page, SCHEMES)
    for scheme in SCHEMES if shown else ():
        page = work / f"notebook-{scheme}.html"
        page.write_text(make_notebook_page(shown, scheme), "utf-8")
        picture_page(pictures, browser, page, (scheme,))


def picture_page(pictures: Pictures, browser: Browser, page: Path, schemes: Sequence[str]) -> None:
    view = browser.open(page, scheme=schemes[0])
    for scheme in schemes:
        for width in WIDTHS:
            view.show(width, scheme)
            faults = find_page_faults(view, page.read_text("utf-8"))
            pictures.add(f"{page.stem}-{width}-{scheme}", view.screenshot(), faults)


def picture_commands(pictures: Pictures, browser: Browser, work: Path, only: str) -> None:
    """Every command in a terminal of 80 and of 120 columns: dark, light and without colour."""
    prepare_folder(work)
    for name, arguments in COMMANDS.items():
        if only not in f"terminal-{name}":
            continue
        for columns in (80, 120):
            for looks, colour in ((SCHEMES, True), (("plain",), False)):
                shown = run_command(arguments, columns=columns, colour=colour, folder=work)
                for look in looks:
                    page = work / "terminal.html"
                    page.write_text(shown.to_html(dark=look == "dark"), "utf-8")
                    view = browser.open(page, width=round(columns * 8.45) + 40, height=60)
                    pictures.add(f"terminal-{name}-{columns}-{look}", view.screenshot(), find_faults(name, shown))


def picture_workbench(pictures: Pictures, only: str) -> None:
    """The page of `whyformer serve` in every state, width and scheme."""
    states = {name: bring for name, bring in STATES.items() if only in f"page-{name}"}
    if not states:
        return
    if find_spec("playwright") is None:
        print("The page of whyformer serve is not pictured: playwright is not installed.", file=sys.stderr)
        return
    with open_pages() as open_state:
        for name, bring in states.items():
            view = open_state(bring)
            for scheme in SCHEMES:
                for width in WIDTHS:
                    view.show(width, scheme)
                    pictures.add(f"page-{name}-{width}-{scheme}", view.screenshot(), find_page_faults(view, ""))


def find_faults(name: str, shown: Shown) -> list[str]:
    """What is wrong on a terminal, and with how the command ended."""
    faults = find_text_faults(shown.text)
    wanted = 2 if name == "refused" else 0
    return faults if shown.code == wanted else [*faults, f"the command ended with status {shown.code}, not {wanted}"]


if __name__ == "__main__":
    sys.exit(main())
