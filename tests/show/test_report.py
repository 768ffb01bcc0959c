"""Pages are one self-contained file: escaped, usable by keyboard, described in words."""

import re

import html5lib
import pytest
from sample_explanations import explain_image, explain_text

from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.results.joining import join_explanations
from whyformer.show import colours, page_colours, report
from whyformer.show.marked_text import make_inline_style

FORMATS = Explanation.formats


def parse(markup: str):
    return html5lib.parse(markup, namespaceHTMLElements=False)


def make_page() -> str:
    parts = report.make_anchors(["One", "Two"])
    sections = [
        report.make_section(title, report.make_table(["a", "b"], [["x", 1.5]]), anchor=a) for a, title in parts.items()
    ]
    return report.make_page("Title", sections, lead="Lead", about={"model": "tiny"}, contents=parts)


def test_a_page_forbids_scripts_and_requests():
    policy = next(m for m in parse(make_page()).iter("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.get("content").startswith("default-src 'none'; img-src data:")
    assert "script" not in policy.get("content")


def test_a_page_works_with_keyboard_and_screen_reader():
    tree = parse(make_page())
    assert tree.get("lang") == "en"
    assert [node.text for node in tree.iter("h1")] == ["Title"]
    links = {a.get("href") for a in tree.iter("a")}
    assert links == {"#content", "#part-1", "#part-2"}
    ids = {node.get("id") for node in tree.iter() if node.get("id")}
    assert {link.removeprefix("#") for link in links} <= ids
    assert all(th.get("scope") for th in tree.iter("th"))
    for made in (
        FORMATS[".html"](explain_image()),
        FORMATS[".html"](Comparison({"a": explain_image(), "b": explain_image()})),
    ):
        assert all(img.get("alt") for img in parse(made.decode()).iter("img"))


def test_elements_escape_everything_but_html():
    inner = report.make_element("b", "<i>")
    assert inner == "<b>&lt;i&gt;</b>"
    assert report.make_element("p", inner, "&", title='"', class_="a", hidden=True, lang=None) == (
        '<p title="&quot;" class="a" hidden><b>&lt;i&gt;</b>&amp;</p>'
    )


def test_numbers_are_right_aligned_and_missing_ones_are_dashes():
    tree = parse(
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


def test_short_cells_are_not_wrapped():
    made = report.make_table(
        ["method", "test", "why"], [["a", "p = 0.002", "no word"], ["b", "-", "a long story " * 3]]
    )
    assert [cell.get("class") for cell in parse(made).iter("td")] == ["short", "long"] * 2


def test_tabs_work_without_a_script():
    block, style = report.make_chooser(
        [("one", report.make_element("p", "1")), ("two", report.make_element("p", "2"))], name="x", legend="l"
    )
    tree = parse(block)
    buttons = list(tree.iter("input"))
    assert [b.get("type") for b in buttons] == ["radio", "radio"]
    assert [b.get("checked") is not None for b in buttons] == [True, False]
    assert {label.get("for") for label in tree.iter("label")} == {b.get("id") for b in buttons}
    assert style.count("display:block") == 2


@pytest.mark.parametrize("signed", [True, False])
def test_colour_levels_run_from_zero_to_the_limit(signed):
    between = (-2.0, 2.0) if signed else (0.0, 2.0)
    assert report.choose_colour_level(0.0, between, signed=signed) in ("f0", "u0")
    assert report.choose_colour_level(2.0, between, signed=signed) == ("f20" if signed else "u20")
    assert report.choose_colour_level(9.0, between, signed=signed) == ("f20" if signed else "u20")
    assert report.choose_colour_level(1.0, (0.0, 0.0), signed=signed) in ("f0", "u0")
    if signed:
        assert report.choose_colour_level(-2.0, between, signed=True) == "a20"


def test_every_colour_level_is_readable_in_light_and_dark_mode():
    """Text on its background, or on that of the page where a level has none."""
    light, dark = page_colours.make_mark_css().split("@media")
    for rules, ground in ((light, (255, 255, 255)), (dark, page_colours.DARK_GROUND)):
        pairs = list(list_colour_pairs(rules))
        assert len(pairs) == 3 * (page_colours.COLOUR_LEVELS + 1)
        for background, ink in pairs:
            assert colours.compute_contrast(background or ground, ink) >= 4.5


def list_colour_pairs(style: str):
    for background, ink in re.findall(r"\{background:(none|#\w{6});color:(#\w{6})\}", style):
        yield None if background == "none" else parse_hex(background), parse_hex(ink)


def parse_hex(word: str):
    return tuple(int(word[i : i + 2], 16) for i in (1, 3, 5))


def test_words_have_their_score_and_a_legend(text_explanation):
    tree = parse(FORMATS[".html"](text_explanation).decode())
    marks = {"".join(mark.itertext()): mark.get("title") for mark in tree.iter("mark")}
    assert marks["not"] == "-1" and marks["od"] == "+1"
    text = "".join(tree.itertext())
    assert "-1 against" in text and "+1 for" in text
    assert "Scores summed over whole words" in text


def test_whole_words_are_left_out_where_tokens_are_words():
    e = explain_text("a film", [(0, 1), (2, 6)], [0.0, 1.0])
    assert "whole words" not in FORMATS[".html"](e).decode()


def test_a_page_of_ten_methods_on_a_photograph_is_small():
    from whyformer._model.image import as_image
    from whyformer._model.kept_image import ImageView, KeptImage
    from whyformer.demo.tour import CAT

    photograph = as_image(CAT).resize((1600, 1200))
    kept = KeptImage(photograph, ImageView(200, 0, 1400, 1200, 224, 224))
    one = explain_image(images=(kept,))
    made = FORMATS[".html"](Comparison({f"method {i}": one for i in range(10)}))
    assert len(made) < 2_000_000


@pytest.mark.parametrize(("signed", "least"), [(True, -1.0), (True, 1.0), (False, 1.0)])
def test_stronger_words_of_a_notebook_stand_out_more_on_light_and_dark(signed, least):
    """Contrast with the ground rises with the score, and the ink can be read on it."""
    for ground, ink in (((255, 255, 255), (27, 27, 31)), ((17, 17, 21), (236, 236, 241))):
        seen = []
        for step in range(1, 11):
            style = make_inline_style(step / 10 * least, (-1.0, 1.0) if signed else (0.0, 1.0), signed=signed)
            *tint, alpha = map(float, re.search(r"rgba\((.*?)\)", style)[1].split(","))
            back = tuple(round(alpha * a + (1 - alpha) * b) for a, b in zip(tint, ground, strict=True))
            own = ink if style.endswith("inherit") else (255, 255, 255)
            assert colours.compute_contrast(own, back) > 4.0, (ground, step)
            seen.append(colours.compute_contrast(back, ground))
        assert seen == sorted(seen)


def test_the_words_of_a_notebook_need_no_style_sheet(text_explanation):
    made = text_explanation._repr_html_()
    marks = list(parse(made).iter("mark"))
    assert marks and all("background" in mark.get("style") and not mark.get("class") for mark in marks)
    assert "Why" in made and "Why" in explain_image()._repr_html_()


def test_a_notebook_shows_the_first_of_many_examples():
    made = join_explanations([explain_image()] * 5)._repr_html_()
    assert "... and 2 more" in made and made.count("<img") == 3 * explain_image()._repr_html_().count("<img")


def test_a_notebook_keeps_its_style_to_itself():
    blocks = report.make_fragment(report.make_table(["a"], [["x"]]))
    assert blocks.startswith('<div class="whyformer"><style>@scope (.whyformer)')
