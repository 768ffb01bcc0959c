"""The page of a prompt: nothing untrusted becomes markup, the same bytes every time, small enough for 10 k tokens."""

import json
import re
import warnings
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256

import html5lib
import pytest
import torch
from payloads import MORE_PAYLOADS, PAYLOADS
from sample_prompts import show_long_prompt, show_prompt

from whyformer._plain.tokens import NamedTokens
from whyformer.show import prompt_page
from whyformer.show.prompt_page import SCRIPT, STYLE, make_prompt_page, make_prompt_summary
from whyformer.show.report import make_page

HARMLESS = "plain"
HARD = [
    *PAYLOADS[:26],
    *PAYLOADS[33:35],
    "\ud800 lone \udfff",
    "\x00",
    "👩‍👩‍👧 مرحبا \u202egnp",
    "{{7*7}}",
    *MORE_PAYLOADS[-6:-1],
]


def parse(markup):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return html5lib.parse(markup, namespaceHTMLElements=False)


def shape(markup):
    """Every element with its attributes, without the style and the script, which must be ours."""
    styles = re.findall(r"<style>(.*?)</style>", markup, re.DOTALL)
    assert len(styles) == 1 and styles[0].endswith(STYLE)
    markup = markup.replace(styles[0], "").replace(SCRIPT, "")
    tree = parse(markup)
    scripts = tree.findall(".//script")
    assert [script.attrib for script in scripts] == [{"type": "application/json", "id": "data"}, {}]
    assert not scripts[1].text and json.loads(scripts[0].text)
    for node in tree.iter():
        assert str(node.attrib.get("href", "#")).startswith("#")
        assert not [name for name in node.attrib if name.startswith("on") or name == "src"]
    return [(str(node.tag), tuple(sorted(node.attrib))) for node in tree.iter()]


@cache
def harmless_shape():
    return shape(make_prompt_page(show_prompt(HARMLESS)))


@pytest.mark.parametrize("payload", HARD, ids=range(len(HARD)))
def test_a_payload_adds_no_element_or_attribute(payload):
    made = make_prompt_page(show_prompt(payload))
    assert shape(made) == harmless_shape()
    made.encode("utf-8")


def test_the_notebook_escapes_too():
    tags = [[node.tag for node in parse(make_prompt_summary(show_prompt(word))).iter()] for word in (HARMLESS, HARD[2])]
    assert tags[0] == tags[1]


def test_the_script_gets_numbers_only():
    """Text stands in the page once, escaped; the script reads it from there."""
    data = read_data(make_prompt_page(show_prompt("secret")))
    assert "secret" not in json.dumps(data)


def read_data(markup):
    return json.loads(re.search(r'id="data">(.*?)</script>', markup, re.DOTALL)[1])


def test_the_policy_allows_the_script_of_this_package_alone():
    """By its hash; nothing is fetched, and no script can end its element."""
    page, digest = make_prompt_page(show_prompt()), b64encode(sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in page and "default-src &#x27;none&#x27;" in page
    assert page.count("<script") == 2 and "http://" not in page and "https://" not in page
    with pytest.raises(ValueError, match="must not contain"):
        make_page("t", [], script="'</script>'", data={})
    assert "script-src" not in make_page("t", [])


def test_every_page_has_the_same_bytes():
    assert make_prompt_page(show_prompt()) == make_prompt_page(show_prompt())


def test_marks_are_the_chips_in_order():
    view = show_prompt()
    tree = parse(make_prompt_page(view))
    by_id = {node.attrib["id"]: node for node in tree.iter() if "id" in node.attrib}
    marks = [*by_id["prompt"].iter("mark"), *by_id["answer-text"].iter("mark")]
    assert [mark.text for mark in marks] == [chip.text for chip in view.chips]
    assert [mark.attrib["title"] for mark in marks][:4] == ["+0", "+4", "+1", "-1"]
    assert len(read_data(make_prompt_page(view))["flags"]) == len(marks)


def test_links_lead_to_what_is_there():
    tree = parse(make_prompt_page(show_long_prompt(1_500, 3, 2)))
    names = {node.attrib["id"] for node in tree.iter() if "id" in node.attrib}
    links = {node.attrib["href"][1:] for node in tree.iter("a")}
    assert len(links) > 5 and links <= names


def test_citations_link_to_their_region_or_part():
    parts = (NamedTokens("s1", "sentence", 0, 2), NamedTokens("s2", "sentence", 2, 3))
    page = make_prompt_page(show_prompt(parts=parts))
    assert '<a href="#cell-0">cabinet</a>' in page and '<a href="#region-1">second</a>' in page


def test_roles_and_probabilities_are_shown():
    page = make_prompt_page(show_prompt("rests on"))
    assert '<span class="verdict good">rests on</span>' in page and page.count(">rests on</") > 4


def test_a_hop_is_a_bar_that_adds_up():
    """Hop 0: 1.5 to the first region, 0 to the second, 2 to generated tokens, 1 absorbed: of 4.5."""
    page = make_prompt_page(show_prompt())
    bar = re.search(r'<div class="stacked".*?</div>', page)[0]
    assert [float(x) for x in re.findall(r"width:([\d.]+)%", bar)] == pytest.approx([33.33, 0, 44.44, 22.22], abs=0.01)
    assert 'class="segment-part minus"' in page  # absorbed in the second hop is negative


def test_without_steps_nothing_can_be_chosen():
    page = make_prompt_page(show_prompt(steps=None, hops=()))
    data = read_data(page)
    assert data["steps"] is None and "the answer as a whole were computed" in page and "<canvas" not in page


def test_a_trace_does_not_speak_of_the_whole_answer():
    page = make_prompt_page(show_prompt(steps=None))
    assert "Chosen: all hops" in page and "as a whole" not in page and "Chosen: the whole answer" not in page


def test_without_an_answer_or_with_one_token():
    view = show_prompt()
    for length in (8, 7):
        page = make_prompt_page(replace(view, prompt_length=length, steps=None, hops=()))
        assert ("no answer" in page) == (length == 8)


def test_the_page_says_what_was_dropped(monkeypatch):
    view = show_prompt(steps=torch.randn(2, 8, generator=torch.Generator().manual_seed(0)))
    assert "keeps the scores of all tokens" in make_prompt_page(view)
    monkeypatch.setattr(prompt_page, "TOKEN_BUDGET", 12)
    assert "keeps the scores of the 2 of 8 tokens with the largest magnitude" in make_prompt_page(view)


def test_size_grows_with_tokens_not_with_their_square():
    """Without steps linear; with steps bounded by the budget."""
    sizes = [len(make_prompt_page(show_long_prompt(n, 5, 4, steps=False))) for n in (500, 1_500, 2_500)]
    assert sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=0.1)


def test_a_page_of_ten_thousand_tokens_is_small():
    page = make_prompt_page(show_long_prompt(10_000, 100, 60))
    assert len(page.encode()) < 5_000_000


@pytest.mark.slow
def test_a_page_of_ten_thousand_tokens_and_two_thousand_answer_tokens_is_small():
    page = make_prompt_page(show_long_prompt(10_000, 2_000, 500))
    assert len(page.encode()) < 15_000_000


def test_regions_of_a_hop_have_neither_blue_nor_orange():
    """These say whether a score is against or for the answer."""
    page = make_prompt_page(show_prompt())
    bars = re.findall(r'class="segment-part[^"]*" style="[^"]*background-color:([^"]*)"', page)
    assert bars and not [colour for colour in bars if colour.startswith("var(--c")]
    colours = [re.search(rf"--{name}:(#\w+)", page)[1] for name in re.findall(r"var\(--(r\d)\)", " ".join(bars))]
    for red, green, blue in (tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in colours):
        assert not (blue > red and blue > green and blue - red > 60 and green > red), "blue"
        assert not (red > 180 and blue < 60 and 40 < green < 0.9 * red), "orange"
