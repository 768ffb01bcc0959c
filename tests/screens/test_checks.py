"""Each check fails on a page or a screen that is broken in its way, and on nothing else."""

from io import BytesIO

import pytest
import torch
from PIL import Image
from screens.browser import PROGRAM, Browser
from screens.checks import find_page_faults, find_text_faults

from whyformer.show import report
from whyformer.show.colours import paint_scores


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
    for text in ("\x1b[0m", "[38;2;0;0;0m word", "a line\\n", "one\\nand two", "\\u001b[0m"):
        assert find_text_faults(text), text
    assert not find_text_faults("[31 m] a[0] [SEP] C:\\new 3.1 m")


def test_numbers_that_are_none_are_found():
    assert find_text_faults("score +nan")[0].startswith("not a number: 1")
    assert not find_text_faults("a nanny in Nantes")


def test_a_minus_before_zero_is_found():
    assert find_text_faults("is -0.00, its log-odds 7.33")[0].startswith("minus zero: 1")
    for text in ("[-0.00, +0.1]", "-0 %", "\u22120.0"):
        assert find_text_faults(text), text
    assert not find_text_faults("-0.004 +0.00 0.00 10-0 -0.5 1e-05 [-0.000214, 0.1] x-0")


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


in_browser = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=in_browser) for fault in BROKEN])
def test_a_broken_page_fails(browser, tmp_path, fault):
    found = check(browser, tmp_path, BROKEN[fault])
    assert any(fault in one for one in found), found


def make_map_page(*, signed, legend_signed, of_image=True):
    """A page with one map and a legend."""
    scores = torch.linspace(-1 if signed else 0, 1, 64 * 64).reshape(64, 64)
    image = Image.fromarray(paint_scores(scores, (-1.0, 1.0) if signed else (0.0, 1.0), signed=signed).numpy())
    figure = report.embed_image(image, "a map", "a map", is_map=True)
    legend = report.make_legend((-1.0, 1.0), signed=legend_signed, of_image=of_image)
    return report.make_page("Page", [report.make_section("One", report.arrange_figures([figure]), legend)])


LEGENDS = {
    "a signed legend stands under a map": {"signed": False, "legend_signed": True},
    "an unsigned legend stands under a map": {"signed": True, "legend_signed": False},
    "the legend runs from": {"signed": False, "legend_signed": False, "of_image": False},  # follows dark mode
}


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=in_browser) for fault in LEGENDS])
def test_a_legend_that_disagrees_with_its_map_fails(browser, tmp_path, fault):
    page = tmp_path / "page.html"
    page.write_text(make_map_page(**LEGENDS[fault]), "utf-8")
    found = find_page_faults(browser.open(page, scheme="dark"), page.read_text("utf-8"))
    assert any(fault in one for one in found), found


@pytest.mark.parametrize("signed", [pytest.param(signed, marks=in_browser) for signed in (True, False)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_legend_that_agrees_passes(browser, tmp_path, signed, scheme):
    page = tmp_path / "page.html"
    page.write_text(make_map_page(signed=signed, legend_signed=signed), "utf-8")
    assert not find_page_faults(browser.open(page, scheme=scheme), page.read_text("utf-8"))


@pytest.mark.parametrize("level", [pytest.param(level, marks=in_browser) for level in ("f20", "a20", "u20")])
def test_words_of_another_colour_than_their_legend_fail(browser, tmp_path, level):
    signed, page = level != "u20", tmp_path / "page.html"
    text = report.make_element("div", report.make_element("mark", "film", class_=level), class_="text")
    sources = {
        "right": report.make_page("Page", [text, report.make_legend((-1.0, 1.0), signed=signed)]),
        "another kind": report.make_page("Page", [text, report.make_legend((-1.0, 1.0), signed=not signed)]),
    }
    other_end = {"f20": "#0072b2", "a20": "#bf4d00", "u20": "#ffffff"}[level]
    rule = f".{level}{{background:{other_end}!important}}</style>"
    sources["the other end"] = sources["right"].replace("</style>", rule)
    wrong = set()
    for name, source in sources.items():
        page.write_text(source, "utf-8")
        wrong |= {name} if find_page_faults(browser.open(page), source) else set()
    assert wrong == {"another kind", "the other end"}


@pytest.mark.parametrize("scheme", [pytest.param(scheme, marks=in_browser) for scheme in ("light", "dark")])
def test_the_sign_of_a_cut_box_can_be_seen(browser, tmp_path, scheme):
    """The edge that is cut is darker or lighter than the middle; what fits has no such edge."""
    wide = report.make_scrollable(report.make_element("div", "x", style="width:900px;height:80px"), "wide")
    fits = report.make_scrollable(report.make_element("div", "x", style="width:90px;height:80px"), "fits")
    page = tmp_path / "page.html"
    page.write_text(report.make_page("Page", [wide, fits]), "utf-8")
    view = browser.open(page, width=390, scheme=scheme)
    assert not find_page_faults(view, page.read_text("utf-8"))
    for number, is_cut in ((0, True), (1, False)):
        box = view.evaluate(f"document.querySelectorAll('.wide')[{number}].getBoundingClientRect().toJSON()")
        shot = Image.open(BytesIO(view.screenshot())).convert("L")
        y = round(box["y"] + 40)
        edge, middle = shot.getpixel((round(box["right"]) - 2, y)), shot.getpixel((round(box["right"]) - 60, y))
        assert (abs(edge - middle) > 30) == is_cut
