"""Every kind of page in every width and scheme, a notebook with every result, and commands in a terminal: no faults."""

import re

import pytest
from screens.browser import PROGRAM, Browser
from screens.checks import MACHINE_PATH, SCHEMES, WIDTHS, find_page_faults, find_text_faults
from screens.commands import COMMANDS, prepare_folder
from screens.notebook import make_notebook_page, run_notebook
from screens.results import RESULTS, save_tour
from screens.terminal import run_command
from screens.workbench import STATES, open_pages

WORD_CUT = re.compile(r"[a-z_]\n[a-z_]")  # a list of names with commas, broken inside one
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")
pytestmark = pytest.mark.slow
WITHOUT_A_PAGE = {"metric-trust"}  # results that save no page; a notebook shows them


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of all pages, those of the notebook among them."""
    out, work = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("work")
    shown = run_notebook(list(RESULTS), out, work)
    for scheme in SCHEMES:
        (out / f"notebook-{scheme}.html").write_text(make_notebook_page(shown, scheme), "utf-8")
    save_tour(out)
    return out


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@needs_browser
@pytest.mark.parametrize("name", [*(name for name in RESULTS if name not in WITHOUT_A_PAGE), "demo"])
def test_a_page_has_no_fault(pages, browser, name):
    assert not list_faults(browser, pages / f"{name}.html", SCHEMES)


@needs_browser
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_notebook_has_no_fault(pages, browser, scheme):
    assert not list_faults(browser, pages / f"notebook-{scheme}.html", (scheme,))


def list_faults(browser, page, schemes):
    source, view, found = page.read_text("utf-8"), browser.open(page, scheme=schemes[0]), []
    for scheme in schemes:
        for width in WIDTHS:
            view.show(width, scheme)
            found += [f"{width} px, {scheme}: {fault}" for fault in find_page_faults(view, source)]
    return found


@needs_browser
def test_the_workbench_has_no_fault_in_any_state():
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = []
    with open_pages() as open_state:
        for name, bring in STATES.items():
            view = open_state(bring)
            for scheme in SCHEMES:
                for width in WIDTHS:
                    view.show(width, scheme)
                    found += [f"{name}, {width} px, {scheme}: {fault}" for fault in find_page_faults(view, "")]
    assert not found


@pytest.mark.parametrize(("columns", "colour"), [(80, True), (120, False)])
def test_a_terminal_has_no_fault(tmp_path, columns, colour):
    prepare_folder(tmp_path)
    for name in ("explain-text", "methods", "refused"):
        shown = run_command(COMMANDS[name], columns=columns, colour=colour, folder=tmp_path)
        assert not find_text_faults(shown.text), (name, shown.text)
        assert not MACHINE_PATH.search(shown.text), (name, shown.text)
        assert name != "refused" or not WORD_CUT.search(shown.text), shown.text
        assert shown.code == (2 if name == "refused" else 0), shown.text
