"""Each check fails on a page or a screen that is broken in its way, and on nothing else."""

import pytest
from screens.browser import PROGRAM, Browser
from screens.checks import find_page_faults, find_text_faults


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


def check(browser, folder, body, width=390, scheme="light"):
    page = folder / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", "utf-8")
    return find_page_faults(browser.open(page, width=width, scheme=scheme), page.read_text("utf-8"))


def test_escape_codes_that_show_as_text_are_found():
    assert find_text_faults("\\x1b[31mred\\x1b[0m")[0].startswith("literal escape codes: 2")
    for text in ("\x1b[0m", "[38;2;0;0;0m word", "a line\\n", "\\u001b[0m"):
        assert find_text_faults(text), text
    assert not find_text_faults("[31 m] a[0] [SEP] C:\\new 3.1 m")


def test_numbers_that_are_none_are_found():
    assert find_text_faults("score +nan")[0].startswith("not a number: 1")
    assert not find_text_faults("a nanny in Nantes")


BROKEN = {
    "px wide in a window of 390 px": "<div style='width:900px'>x</div>",
    "is cut without a sign": "<div style='overflow-x:auto'><table style='width:900px'><tr><td>x</table></div>",
    "literal escape codes": "<p>\\x1b[31mred</p>",
    "console: console.error: oh": "<script>console.error('oh')</script>",
    "console: exception": "<script>undefinedFunction()</script>",
    "request outside: http://127.0.0.1:9/x.png": "<img src='http://127.0.0.1:9/x.png'>",
    "path of the machine: /home/jane/models/bert": "<p title='/home/jane/models/bert'>x</p>",
    "path of the machine: file:///": "<a href='file:///x'>x</a>",
    "speaks of orange and blue": "<p>Orange counts for the target, blue against it.</p>",
    "a chart cuts its text": "<svg class=drawing width=80 height=20><text x=40 y=15>a long label</text></svg>",
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")
def test_a_broken_page_fails(browser, tmp_path, fault):
    found = check(browser, tmp_path, BROKEN[fault])
    assert any(fault in one for one in found), found
