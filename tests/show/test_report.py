"""Pages are one file: escaped, walked by keyboard, said in words, the same from wherever they are opened."""

import re

import html5lib
import pytest
from drawn import an_explanation, picture_of

from whyformer.results.comparison import Comparison
from whyformer.results.comparison import comparison_to_html as comparison_html
from whyformer.results.explanation import Explanation
from whyformer.show import colours, report
from whyformer.show.page import make_explanation_fragment

FORMATS = Explanation.formats


def parsed(markup: str):
    return html5lib.parse(markup, namespaceHTMLElements=False)


def a_page() -> str:
    parts = report.make_anchors(["One", "Two"])
    sections = [
        report.make_section(title, report.make_table(["a", "b"], [["x", 1.5]]), anchor=a) for a, title in parts.items()
    ]
    return report.make_page("Title", sections, lead="Lead", about={"model": "tiny"}, contents=parts)


def test_a_page_refuses_scripts_and_requests_by_itself():
    policy = next(m for m in parsed(a_page()).iter("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.get("content").startswith("default-src 'none'; img-src data:")
    assert "script" not in policy.get("content")


def test_a_page_can_be_walked_without_eyes_or_mouse():
    tree = parsed(a_page())
    assert tree.get("lang") == "en"
    assert [node.text for node in tree.iter("h1")] == ["Title"]
    links = {a.get("href") for a in tree.iter("a")}
    assert links == {"#content", "#part-1", "#part-2"}
    ids = {node.get("id") for node in tree.iter() if node.get("id")}
    assert {link.removeprefix("#") for link in links} <= ids
    assert all(th.get("scope") for th in tree.iter("th"))
    for made in (FORMATS[".html"](picture_of()), comparison_html(Comparison({"a": picture_of(), "b": picture_of()}))):
        assert all(img.get("alt") for img in parsed(made.decode()).iter("img"))


def test_elements_escape_all_but_our_own_markup():
    inner = report.make_element("b", "<i>")
    assert inner == "<b>&lt;i&gt;</b>"
    assert report.make_element("p", inner, "&", title='"', class_="a", hidden=True, lang=None) == (
        '<p title="&quot;" class="a" hidden><b>&lt;i&gt;</b>&amp;</p>'
    )


def test_numbers_stand_to_the_right_and_what_is_missing_is_a_dash():
    tree = parsed(
        report.make_table(["name", "score", "n"], [["a", 0.123456, 3], ["b", None, 4], ["c", float("nan"), 5]])
    )
    cells = [("".join(td.itertext()), td.get("class")) for td in tree.iter("td")]
    assert cells == [
        ("0.123", "number"),
        ("3", "number"),
        ("–", "number"),
        ("4", "number"),
        ("–", "number"),
        ("5", "number"),
    ]


def test_short_words_of_a_table_stay_on_one_line_and_long_ones_do_not():
    made = report.make_table(
        ["method", "test", "why"], [["a", "p = 0.002", "no word"], ["b", "-", "a long story " * 3]]
    )
    assert [cell.get("class") for cell in parsed(made).iter("td")] == ["short", "long"] * 2


def test_one_of_several_panels_is_chosen_without_a_script():
    block, style = report.make_chooser(
        [("one", report.make_element("p", "1")), ("two", report.make_element("p", "2"))], name="x", legend="l"
    )
    tree = parsed(block)
    buttons = list(tree.iter("input"))
    assert [b.get("type") for b in buttons] == ["radio", "radio"]
    assert [b.get("checked") is not None for b in buttons] == [True, False]
    assert {label.get("for") for label in tree.iter("label")} == {b.get("id") for b in buttons}
    assert style.count("display:block") == 2


@pytest.mark.parametrize("signed", [True, False])
def test_levels_run_from_nothing_to_the_limit(signed):
    between = (-2.0, 2.0) if signed else (0.0, 2.0)
    assert report.choose_colour_level(0.0, between, signed=signed) in ("f0", "u0")
    assert report.choose_colour_level(2.0, between, signed=signed) == ("f20" if signed else "u20")
    assert report.choose_colour_level(9.0, between, signed=signed) == ("f20" if signed else "u20")
    assert report.choose_colour_level(1.0, (0.0, 0.0), signed=signed) in ("f0", "u0")
    if signed:
        assert report.choose_colour_level(-2.0, between, signed=True) == "a20"


def test_every_level_can_be_read_in_the_light_and_in_the_dark():
    """Ink on its ground, and on the ground of the page where a level has none."""
    light, dark = report.make_mark_css().split("@media")
    for rules, ground in ((light, (255, 255, 255)), (dark, report.DARK_GROUND)):
        found = list(report_rules(rules))
        assert len(found) == 3 * (report.COLOUR_LEVELS + 1)
        for background, ink in found:
            assert colours.contrast_ratio(background or ground, ink) >= 4.5


def report_rules(style: str):
    for background, ink in re.findall(r"\{background:(none|#\w{6});color:(#\w{6})\}", style):
        yield None if background == "none" else rgb(background), rgb(ink)


def rgb(word: str):
    return tuple(int(word[i : i + 2], 16) for i in (1, 3, 5))


def test_words_carry_their_scores_and_a_legend(text_explanation):
    tree = parsed(FORMATS[".html"](text_explanation).decode())
    marks = {"".join(mark.itertext()): mark.get("title") for mark in tree.iter("mark")}
    assert marks["not"] == "-1" and marks["od"] == "+1"
    said = "".join(tree.itertext())
    assert "-1 against" in said and "+1 for" in said
    assert "The same for whole words" in said


def test_the_same_words_are_not_said_twice():
    e = an_explanation("a film", [(0, 1), (2, 6)], [0.0, 1.0])
    assert "whole words" not in FORMATS[".html"](e).decode()


def test_a_sheet_of_ten_methods_on_a_photograph_is_small():
    from whyformer._model.image import ImageView, KeptImage, as_image
    from whyformer.demo.tour import CAT

    photograph = as_image(CAT).resize((1600, 1200))
    kept = KeptImage(photograph, ImageView(200, 0, 1400, 1200, 224, 224))
    one = picture_of(images=(kept,))
    made = comparison_html(Comparison({f"method {i}": one for i in range(10)}))
    assert len(made) < 2_000_000


def test_a_notebook_needs_no_style_sheet(text_explanation):
    for e in (text_explanation, picture_of()):
        made = e._repr_html_()
        assert "<style" not in made and "class=" not in made
        assert "Why" in made
    assert "... and 2 more" in make_explanation_fragment(picture_of().panels() * 5)
    blocks = report.make_fragment(report.make_table(["a"], [["x"]]))
    assert blocks.startswith('<div class="whyformer"><style>@scope (.whyformer)')
