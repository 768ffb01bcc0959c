"""Untrusted text is shown and never executed: sixty payloads in every field, through every output format.

Pages are parsed by a real HTML parser. A page with a payload must have the elements and attributes that it has with a
harmless word: the same number of each, in the same order.
"""

import csv
import re
import unicodedata
import warnings
from functools import cache
from io import BytesIO, StringIO
from xml.etree import ElementTree

import html5lib
import pytest
from payloads import PAYLOADS
from sample_explanations import explain_image, explain_text

from whyformer._engine.targets.target import Target
from whyformer.results.class_grid import ClassGrid
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.results.generation import Generation
from whyformer.show import charts, report
from whyformer.show.latex import TEX_ESCAPES, escape_tex
from whyformer.show.terminal import Screen

FORMATS = Explanation.formats

every_payload = pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
HARMLESS = "plain"
HREF = "{http://www.w3.org/1999/xlink}href"


def make_text(word: str) -> Explanation:
    """The word as a token, a label, a text, a model, a method, a setting and a note."""
    text = f"a {word} b"
    cuts = [(0, 1), (2, 2 + len(word)), (len(text) - 1, len(text))]
    return explain_text(
        text,
        cuts,
        [0.5, -1.0, 1.0],
        targets=(Target(1, word, 2.0, 0.9, True, 0, word),),
        names=(word,),
        method=word.replace("_", "-"),
        model=word,
        settings={word: word},
        versions={word: word},
        notes=(word,),
    )


def make_image(word: str) -> Explanation:
    fields = dict(targets=(Target(1, word, 2.0, 0.9),), names=(word,), model=word, notes=(word,))
    return explain_image(method=word.replace("_", "-"), **fields)


def compared(word: str, make=make_text) -> Comparison:
    label = word.replace("_", "-")
    return Comparison({label: make(word), "other": make(word)}, {label: word})


def all_charts(word: str):
    line = ([0, 1], [0.1, 0.2], None, None)
    yield charts.draw_curves({word: line}, title=word, xlabel=word, ylabel=word, note=word)
    yield charts.draw_ranking([(word, 1.0, 0.5, 1.5)], title=word, xlabel=word, note=word)
    yield charts.draw_matrix([word], [[1.0]], title=word, note=word)


PAGES = {
    "explanation": lambda word: FORMATS[".html"](make_text(word)).decode(),
    "image": lambda word: FORMATS[".html"](make_image(word)).decode(),
    "comparison": lambda word: FORMATS[".html"](compared(word)).decode(),
    "class grid": lambda word: FORMATS[".html"](ClassGrid((compared(word),))).decode(),
    "generation": lambda word: FORMATS[".html"](Generation(word, 1, (make_text(word),))).decode(),
    "notebook": lambda word: make_text(word)._repr_html_() + compared(word)._repr_html_(),
    "blocks": lambda word: report.make_page(
        word,
        [
            report.make_section(word, report.make_table([word, word], [[word, word]], caption=word), remark=word),
            report.make_fact_list({word: word}),
            report.make_verdict_badge(word, "good"),
            report.fold_content(word, word),
            report.make_chooser([(word, report.make_element("p", word))], name=word, legend=word)[0],
        ],
        lead=word,
        about={word: word},
    ),
}


def shape(markup: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every element with the names of its attributes, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        style = re.compile(r"<style>.*?</style>", re.DOTALL)  # ours, and long
        tree = html5lib.parse(style.sub("<style></style>", markup, count=1), namespaceHTMLElements=False)
    for node in tree.iter():
        assert str(node.attrib.get("src", "data:image/")).startswith("data:image/")
        assert str(node.attrib.get("href", "#")).startswith("#")
        assert str(node.attrib.get(HREF, "#")).startswith(("#", "data:image/png;base64,"))
    return [
        (str(node.tag), tuple(sorted(map(str, node.attrib))))
        for node in tree.iter()
        if node.tag not in ("{http://www.w3.org/1999/xhtml}wbr", "wbr")  # between the parts of a name
    ]


@every_payload
@pytest.mark.parametrize("place", PAGES)
def test_a_payload_adds_no_element_or_attribute(place, payload):
    made = PAGES[place](payload)
    assert shape(made) == harmless_shape(place)
    assert not {c for c in made if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


@cache
def harmless_shape(place: str) -> list[tuple[str, tuple[str, ...]]]:
    found = shape(PAGES[place](HARMLESS))
    names = {name for name, _ in found}
    assert not names & {"script", "iframe", "object", "embed", "base", "link", "form"}
    return found


def test_a_payload_adds_no_element_or_attribute_to_vector_files():
    """All payloads as tokens of one text, then some of them in every other place, because drawing is slow."""
    text = " ".join(PAYLOADS)
    starts = [sum(len(p) + 1 for p in PAYLOADS[:i]) for i in range(len(PAYLOADS))]
    cuts = [(start, start + len(p)) for start, p in zip(starts, PAYLOADS, strict=True)]
    everything = explain_text(text, cuts, [i / 60 for i in range(60)]).draw()
    assert svg_shape(everything.svg()) <= svg_shape(make_text(HARMLESS).draw().svg())
    check_vectors(PAYLOADS[2::24])


@pytest.mark.slow
def test_vector_files_with_every_payload_in_every_place():
    check_vectors(PAYLOADS)


def check_vectors(words) -> None:
    plain = [svg_shape(one) for one in svgs(HARMLESS)]
    for word in words:
        for found, known in zip(svgs(word), plain, strict=True):
            assert svg_shape(found) <= known


def svgs(word: str):
    yield make_text(word).draw().svg()
    yield compared(word).draw().svg()
    yield from (chart.svg() for chart in all_charts(word))


def svg_shape(markup: str) -> set[tuple[str, str]]:
    """Elements with the names of their attributes; the parser rejects a file that is not XML."""
    found = set()
    for node in ElementTree.fromstring(markup.encode()).iter():
        found |= {(str(node.tag), name) for name in ("", *node.attrib)}
        for name in (HREF, "href"):
            assert node.attrib.get(name, "#").startswith(("#", "data:image/png;base64,"))
        assert "url(" not in node.attrib.get("style", "").replace("url(#", "")
    return found


@pytest.mark.parametrize("payload", PAYLOADS[::12])
def test_charts_inside_a_page(payload):
    """A harmless text of the same length allows what a long title is drawn with."""
    long = "x" * len(payload)
    for hostile, *plain in zip(all_charts(payload), all_charts(HARMLESS), all_charts(long), strict=True):
        allowed = {node for drawn in plain for node in shape(report.embed_drawing(drawn, HARMLESS))}
        assert set(shape(report.embed_drawing(hostile, payload))) <= allowed


def test_a_formula_in_a_label_is_drawn_literally():
    drawn = charts.draw_ranking([("$x^2$", 1.0, 0.5, 1.5)], title=r"$\frac{1}{2}$").svg()
    assert ">$x^2$<" in drawn
    assert r">$\frac{1}{2}$<" in drawn


@every_payload
def test_latex_escapes_commands(payload):
    made = FORMATS[".tex"](make_text(payload)).decode()
    assert not any(unicodedata.category(c) == "Cc" for c in made.replace("\n", ""))
    plain = FORMATS[".tex"](make_text(HARMLESS)).decode()
    assert set(commands(made)) <= set(commands(plain)) | {
        command for s in TEX_ESCAPES.values() for command in commands(s)
    }
    assert made.count(r"\colorbox") == plain.count(r"\colorbox")
    assert balanced(made)
    body = re.sub(r"\\(textbackslash|textasciicircum|textasciitilde|symbol)\{\d*\}", "", escape_tex(payload))
    assert not re.search(r"(?<!\\)[$&#%_^~]", body)


def commands(text: str) -> list[str]:
    return re.findall(r"\\(?:[a-zA-Z]+|.)", text)


def balanced(text: str) -> bool:
    depth = 0
    for sign in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if sign == "{" else -1
        assert depth >= 0
    return depth == 0


@every_payload
def test_csv_has_no_formulas(payload):
    for e in (make_text(payload), make_image(payload)):
        made = FORMATS[".csv"](e).decode()
        cells = [cell for row in csv.reader(StringIO(made, newline="")) for cell in row]
        for cell in cells:
            assert not cell.lstrip(" ").startswith(("=", "+", "@", "\t", "\r", "-", "\n", "|", "%")) or is_number(cell)
        assert "\0" not in made


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_parquet_keeps_text_unchanged():
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(BytesIO(FORMATS[".parquet"](make_text("=1+1")))).to_pylist()
    assert found[2]["token"] == "=1+1"
    assert found[2]["score"] == -1.0


@every_payload
@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_no_control_character_reaches_the_terminal(payload, colours):
    screen = Screen(60, colours)
    for shown in (make_text(payload), make_image(payload), compared(payload), Generation("", 1, (make_text(payload),))):
        printed = re.sub(r"\x1b\[[0-9;]*m", "", shown.render(screen))  # our own colours
        assert not {c for c in printed if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
        repr(shown).encode()
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", repr(shown))


@every_payload
def test_the_page_of_a_comparison_with_charts(payload):
    """The slowest page, with every twelfth payload."""
    if PAYLOADS.index(payload) % 12:
        return
    assert shape(FORMATS[".html"](compared(payload)).decode()) == shape(FORMATS[".html"](compared(HARMLESS)).decode())


def test_escaped_words_are_still_shown():
    """Escaped, not removed."""
    tree = html5lib.parse(PAGES["explanation"]("<script>alert(1)</script>"), namespaceHTMLElements=False)
    marks = ["".join(mark.itertext()) for mark in tree.iter("mark")]
    assert marks == ["[CLS]", "a", "<script>alert(1)</script>", "b"]
