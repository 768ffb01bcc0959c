"""Payloads through every format of every result, in every place: shown as text, and nothing else.

A few payloads run with the default tests, all of them with `make slow`.
"""

import csv
import json
import re
import unicodedata
import warnings
from functools import cache
from io import BytesIO, StringIO
from xml.etree import ElementTree

import html5lib
import pyarrow.parquet
import pytest
from attack.every_result import HARMLESS, RESULTS, audit_named, judge_named, make_comparison, make_text
from markdown_it import MarkdownIt
from show.payloads import MORE_PAYLOADS, PAYLOADS

import whyformer as why
from whyformer.errors import MethodError
from whyformer.results.comparison import Comparison
from whyformer.results.health import Health
from whyformer.show.latex import TEX_ESCAPES
from whyformer.show.score_rows import as_utf8, is_formula
from whyformer.show.terminal import Screen

ALL = [*PAYLOADS, *MORE_PAYLOADS]
SOME = [*MORE_PAYLOADS[:4:3], "\x1b[2J\x1b[31mred", "caf\udce9.png", "\N{NO-BREAK SPACE}=1+1", "a\n| --- |\n| x |"]
HREF = "{http://www.w3.org/1999/xlink}href"
FORBIDDEN = {"script", "iframe", "object", "embed", "base", "link", "form"}


def many(payloads):
    return pytest.mark.parametrize("payload", payloads, ids=lambda payload: ascii(payload)[:40])


# --- what must hold of each format ------------------------------------------------------------------------------------


def describe_markup(markup: str) -> tuple[list, set]:
    """The elements of a page with their attributes, in order; those inside drawings as a set, as their ticks vary."""
    markup = re.sub(r"<style>.*?</style>", "<style></style>", markup, count=1, flags=re.DOTALL)
    markup = re.sub(r"(data:image/\w+;base64,)[A-Za-z0-9+/=\s]+", r"\1x", markup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = html5lib.parse(markup, namespaceHTMLElements=False)
    outside, inside = [], set()
    for node in tree.iter():
        tag, attributes = str(node.tag), tuple(sorted(map(str, node.attrib)))
        assert str(node.attrib.get("src", "data:image/")).startswith("data:image/")
        for name in ("href", HREF):
            assert str(node.attrib.get(name, "#")).startswith(("#", "data:image/png;base64,"))
        if "svg" in tag:
            inside |= {(tag, name) for name in ("", *attributes)}
        elif tag != "wbr":  # between the parts of a name
            outside.append((tag, attributes))
    assert not {tag for tag, _ in outside} & FORBIDDEN
    return outside, inside


def assert_same_markup(markup: str, known: tuple[list, set]) -> None:
    outside, inside = describe_markup(markup)
    assert outside == known[0]
    assert inside <= known[1], inside - known[1]
    assert_printable(markup)


def describe_svg(markup: bytes) -> set[tuple[str, str]]:
    found = set()
    for node in ElementTree.fromstring(markup).iter():  # rejects what is not XML
        found |= {(str(node.tag), name) for name in ("", *node.attrib)}
        assert "url(" not in node.attrib.get("style", "").replace("url(#", "")
        assert all(node.attrib.get(name, "#").startswith(("#", "data:image/png;base64,")) for name in (HREF, "href"))
    return found


def assert_printable(text: str) -> None:
    text.encode()
    assert not {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


def read_cells(contents: bytes) -> list[list[str]]:
    rows = list(csv.reader(StringIO(contents.decode(), newline="")))
    assert_printable("\n".join(cell for row in rows for cell in row))
    for cell in (cell for row in rows for cell in row):
        assert not is_formula(cell) or re.fullmatch(r"-?[0-9.]+(e[-+]?[0-9]+)?", cell)
    return rows


def assert_same_cells(contents: bytes, plain: bytes) -> None:
    assert [len(row) for row in read_cells(contents)] == [len(row) for row in read_cells(plain)]


def assert_same_table(contents: bytes, plain: bytes) -> None:
    """Markdown: the same lines, with the same number of cells."""
    lines, known = contents.decode().split("\n"), plain.decode().split("\n")
    assert [line.count("|") for line in lines] == [line.count("|") for line in known]
    assert_printable(contents.decode())


def assert_same_tex(contents: bytes) -> None:
    find = lambda text: set(re.findall(r"\\(?:[a-zA-Z]+|.)", text))  # noqa: E731
    plain = make_text(HARMLESS).formats[".tex"](make_text(HARMLESS)).decode()
    assert find(contents.decode()) <= find(plain) | {c for s in TEX_ESCAPES.values() for c in find(s)}
    assert_printable(contents.decode())


def list_words(value) -> list[str]:
    """Every text inside a JSON value."""
    if isinstance(value, dict):
        return [word for pair in value.items() for item in pair for word in list_words(item)]
    return [word for item in value for word in list_words(item)] if isinstance(value, list) else [value]


# --- explanations, comparisons, class grids, attention, generations ---------------------------------------------------


@cache
def plain_contents(kind: str, suffix: str):
    made = RESULTS[kind](HARMLESS)
    contents = made.formats[suffix](made)
    if suffix == ".html":
        return describe_markup(contents.decode())
    return describe_svg(contents) if suffix == ".svg" else contents


@cache
def plain_notebook(kind: str):
    return describe_markup(RESULTS[kind](HARMLESS)._repr_html_())


def list_markup(contents: bytes) -> list[str]:
    """What a reader of Markdown makes of a file, without its texts."""
    parsed = MarkdownIt("commonmark", {"html": True}).enable("table").parse(contents.decode())
    inside = [inner for token in parsed for inner in (token, *(token.children or ()))]
    return [token.type for token in inside if not token.type.startswith(("text", "softbreak"))]


def check_result(kind: str, payload: str) -> None:
    made = RESULTS[kind](payload)
    for suffix, write in made.formats.items():
        if suffix in (".png", ".pdf", ".safetensors") or (suffix == ".tex" and "image" in kind):
            continue
        contents, plain = write(made), plain_contents(kind, suffix)
        if suffix == ".html":
            assert_same_markup(contents.decode(), plain)
        elif suffix == ".svg":
            assert describe_svg(contents) <= plain
            assert_printable(contents.decode())
        elif suffix == ".csv":
            assert_same_cells(contents, plain)
        elif suffix == ".parquet":
            rows = pyarrow.parquet.read_table(BytesIO(contents)).to_pylist()
            assert {row["model"] for row in rows} == {as_utf8(payload)}
        elif suffix == ".json":
            assert payload in list_words(json.loads(contents, parse_constant=pytest.fail))
        elif suffix == ".tex":
            assert_same_tex(contents)
        elif suffix == ".md":
            assert list_markup(contents) == list_markup(plain)
            assert_printable(contents.decode())
        else:
            assert suffix == ".txt"
            assert_printable(contents.decode())
    assert_same_markup(made._repr_html_(), plain_notebook(kind))
    for colours in (None, "truecolor"):
        assert_printable(re.sub(r"\x1b\[[0-9;]*m", "", made.render(Screen(60, colours))))
    assert_printable(repr(made))
    if hasattr(made, "title"):
        assert_printable(made.title)


@many(SOME)
@pytest.mark.parametrize("kind", ["text", "comparison of images", "attention", "generation"])
def test_some_payloads_in_every_format(kind, payload):
    check_result(kind, payload)


@pytest.mark.slow
@many(ALL)
@pytest.mark.parametrize("kind", RESULTS)
def test_every_payload_in_every_format(kind, payload):
    check_result(kind, payload)


@pytest.mark.slow
@many(ALL[::9])
@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind != "diagnosis"])  # a table has no image
def test_payloads_as_pixels_and_paper(kind, payload):
    made = RESULTS[kind](payload)
    assert made.formats[".png"](made).startswith(b"\x89PNG")
    assert made.formats[".pdf"](made).startswith(b"%PDF")


@many(ALL)
def test_saved_results_come_back_with_their_text(payload, tmp_path):
    text, comparison = make_text(payload), make_comparison(payload)
    for suffix in (".json", ".safetensors"):
        text.save(tmp_path / f"e{suffix}")
        back = why.load(tmp_path / f"e{suffix}")
        assert (back.names, back.targets, back.method, back.notes) == (
            text.names, text.targets, text.method, text.notes,
        )  # fmt: skip
        assert back.settings == text.settings and back.tokens == text.tokens and back.versions == text.versions
    comparison.save(tmp_path / "c.json")
    again = Comparison.load(tmp_path / "c.json")
    assert again.labels == comparison.labels and again.failures == comparison.failures


@many(ALL)
def test_a_conservation_check_is_printable(payload):
    import torch

    one, two = torch.ones(1), torch.ones(1, 2)
    health = Health(payload, one, two, two, one, {payload: torch.full((1, 3), 0.25)})
    assert_printable(str(health))
    assert_printable(health.verdict)


@many(ALL)
def test_a_missing_label_is_refused_in_one_printable_line(payload):
    with pytest.raises(MethodError) as raised:
        make_comparison(payload)["no such method"]
    assert_printable(str(raised.value))
    assert "\n" not in str(raised.value)


# --- figures that no file format holds --------------------------------------------------------------------------------


def draw_others(word: str):
    import torch

    view = RESULTS["attention"](word)
    yield view.tokens()
    yield view.matrix(head=1)
    yield view.draw("gradient")
    yield make_comparison(word).draw_agreement()
    for make in (RESULTS["text"], RESULTS["image"]):
        e = make(word)
        layers = torch.stack([e.scores[0], e.scores[0] / 2])[None]
        yield why.Explanation(**{**vars(e), "details": {"per_layer": layers}}).draw_build_up()


@cache
def plain_others() -> list:
    return [(describe_svg(one.svg().encode()), describe_markup(one.html())) for one in draw_others(HARMLESS)]


def check_others(payload: str) -> None:
    for drawing, (svg, inline) in zip(draw_others(payload), plain_others(), strict=True):
        assert describe_svg(drawing.svg().encode()) <= svg
        outside, inside = describe_markup(drawing.html())
        assert outside == inline[0] and inside <= inline[1]
        assert_printable(drawing.html())
        assert_printable(repr(drawing))


@many(SOME[:2])
def test_some_payloads_in_other_figures(payload):
    check_others(payload)


@pytest.mark.slow
@many(ALL)
def test_every_payload_in_other_figures(payload):
    check_others(payload)


# --- judge and audit --------------------------------------------------------------------------------------------------


@cache
def plain_judgement(folder) -> dict[str, bytes]:
    made = judge_named(HARMLESS, folder / "plain")
    found = {file.name: file.read_bytes() for file in (folder / "plain").iterdir() if file.is_file()}
    return found | {"table.md": made.formats[".md"](made), "notebook": made.to_html().encode()}


def check_judgement(payload: str, folder, shared) -> None:
    plain = plain_judgement(shared)
    made = judge_named(payload, folder / "run")
    assert made.failed == 2, "the failing method fails on both examples"
    files = {file.name: file.read_bytes() for file in (folder / "run").iterdir() if file.is_file()}
    assert files.keys() == plain.keys() - {"table.md", "notebook"}
    assert_same_cells(files["table.csv"], plain["table.csv"])
    assert_same_table(made.formats[".md"](made), plain["table.md"])
    assert_same_markup(files["report.html"].decode(), describe_markup(plain["report.html"].decode()))
    assert_same_markup(made.to_html(), describe_markup(plain["notebook"].decode()))
    for text in (files["table.txt"].decode(), files["problems.txt"].decode(), repr(made), made.render()):
        assert_printable(text)
    assert files["problems.txt"].count(b"\n") == 1
    assert payload in json.loads(files["plan.json"])["methods"]
    assert judge_named(payload, folder / "run").failed == 2, "the same call resumes it"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("payloads")


@many(SOME[:2])
def test_some_payloads_in_a_judgement(payload, tmp_path, shared):
    check_judgement(payload, tmp_path, shared)


@pytest.mark.slow
@many(ALL)
def test_every_payload_in_a_judgement(payload, tmp_path, shared):
    check_judgement(payload, tmp_path, shared)


@cache
def plain_audit():
    made = audit_named(HARMLESS)
    return {"page": describe_markup(made.formats[".html"](made).decode()), "notebook": describe_markup(made.to_html())}


def check_audit(payload: str, folder) -> None:
    made = audit_named(payload)
    assert_same_markup(made.formats[".html"](made).decode(), plain_audit()["page"])
    assert_same_markup(made.to_html(), plain_audit()["notebook"])
    for text in (made.formats[".txt"](made).decode(), made.render(), made.render(Screen(60, None)), repr(made)):
        assert_printable(text)
    made.save(folder / "audit.json")
    back = why.Audit.load(folder / "audit.json")
    assert (back.model, back.data, back.labels, back.notes, back.attention) == (
        made.model, made.data, made.labels, made.notes, made.attention,
    )  # fmt: skip
    assert str(back) == str(made)


@many(SOME[:2])
def test_some_payloads_in_an_audit(payload, tmp_path):
    check_audit(payload, tmp_path)


@pytest.mark.slow
@many(ALL)
def test_every_payload_in_an_audit(payload, tmp_path):
    check_audit(payload, tmp_path)
