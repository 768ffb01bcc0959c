"""Attacks in every field of citations and of a cited log: names, ids, metadata, texts, answers, messages."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from show.payloads import PAYLOADS
from tiny_prompts import decoder, make_prompt

import whyformer as why
from whyformer._cite.log_summary import summarise_rows
from whyformer.results.citations import Mark, Quotation, State, Values
from whyformer.show.blocks import DataTable, MarkedAnswer, Report
from whyformer.show.footnotes import number_sources
from whyformer.show.markdown_report import write_report
from whyformer.show.prompt_view import CitationRow
from whyformer.show.terminal import Screen

ACTIVE = {"link_open", "image", "html_inline", "html_block", "code_inline", "fence"}


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, tuple(sorted(name for name, _ in attributes))))


def list_elements(page):
    parser = Elements()
    parser.feed(page)
    return parser.found


def list_markdown_tokens(text):
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        yield token.type
        yield from (inner.type for inner in token.children or ())


def write(result, suffix):
    return result.formats[suffix](result).decode()


@pytest.fixture(scope="module")
def cited():
    return why.cite(decoder(), make_prompt(), effort="checked")


def put_everywhere(cited, text):
    """The same citations with this text in every field that others write."""
    sources = [replace(one, text=text, id=text, metadata={text: text, "list": [text]}) for one in (*cited.citations,)]
    sentences = tuple(put_in_claim(one, sources[0].name, text) for one in cited.sentences)
    claim = put_in_claim(cited.claim, sources[0].name, text)
    return replace(
        cited, citations=tuple(sources), claim=claim, sentences=sentences, notes=(text,), method=text, model=text
    )


def put_in_claim(claim, name, text):
    """Everything that a claim has from others: its text, what the model said instead, marks, quotations and words."""
    return replace(
        claim, text=text, how="one", rests_on=(name,), also=(text,), 
        values={name: Values(0.5, 0.25, None, 0.1, (1.0,))},
        effect=1.0, states={name: State((text,), (text,), judged=True)}, marks=(Mark(text, 1, text, "right"),),
        quotations=(Quotation(text, text, "verbatim"),), written=text, writer=None,
    )  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_no_field_of_citations_adds_an_element(cited, payload):
    harmless, attacked = (put_everywhere(cited, text) for text in ("plain", payload))
    assert list_elements(write(attacked, ".html")) == list_elements(write(harmless, ".html"))
    assert list_elements(attacked.to_html()) == list_elements(harmless.to_html())
    written = write(attacked, ".md")
    assert not ACTIVE & set(list_markdown_tokens(written)) and not re.search(r"\bhttps?://", written)
    assert len(written.splitlines()) == len(write(harmless, ".md").splitlines())
    assert "\x1b" not in attacked.render(Screen(width=80, colours=None))


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_no_field_of_a_log_adds_an_element(payload):
    def summarise(text):
        source = {"name": text, "key": text, "text": text, "role": ""}
        told = [{"text": text, "kind": "claim", "how": "hardly any", "rests_on": [], "around": [], "marks": []}]
        row = {"id": text, "line": 1, "kind": "claim", "how": "hardly any", "rests_on": [], "error": None}
        row["message"] = None
        good = {**row, "citations": json.dumps([source]), "sentences": json.dumps(told)}
        return summarise_rows([good, {**row, "error": "E_DATA", "message": text}])

    harmless, attacked = summarise("plain"), summarise(payload)
    assert list_elements(write(attacked, ".html")) == list_elements(write(harmless, ".html"))
    assert list_elements(attacked.to_html()) == list_elements(harmless.to_html())
    assert "\x1b" not in attacked.render(Screen(width=80, colours=None))
    assert json.loads(attacked.formats[".json"](attacked))["never_used"] == [payload]


def test_footnotes_are_numbered_in_the_order_of_the_answer():
    told = [("It is tea.", "", ["b", "a"]), ("It left\nin May.", "hardly any", []), ("So.", "", ["b"])]
    sentences, names = number_sources(told)
    sources = [
        CitationRow("a", 0, 1, 0.5, "", text="one", id="d1", metadata={"page": 4}, mark=2),
        CitationRow("b", 1, 2, 0.5, "", text="two", mark=1),
        CitationRow("c", 2, 3, 0.5, "", text="three"),
    ]
    rows = [(one.name, one.text) for one in sources]
    written = write_report(
        Report("Why 'tea'?", [MarkedAnswer(sentences, sources), DataTable(("source", "text"), rows)])
    )
    assert names == ["b", "a"]
    assert "It is tea.[^1][^2] It left in May. *(hardly any)* So.[^1]" in written
    assert "[^1]: **b**: two\n[^2]: **a**, d1: one; page: 4\n" in written
    assert "[^3]" not in written and "| c |" in written
