"""Untrusted text in a Markdown table: the same cells, and no markup."""

import re

import pytest
from markdown_it import MarkdownIt
from payloads import MORE_PAYLOADS, PAYLOADS
from sample_explanations import explain_image, explain_text

from whyformer.show.markdown_report import escape_markdown, write_table


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("rollout(start=1, mode='max')", "rollout(start=1, mode='max')"),
        ("transformer_attribution", "transformer_attribution"),
        ("_x_", r"\_x\_"),
        ("a | b", "a &#124; b"),
        ("a\nb", r"a\\nb"),
        ("C:\\data", r"C:\\data"),
        ("`<b>`", r"\`&lt;b&gt;\`"),
        ("[x](https://y.z)", r"\[x\](https\://y.z)"),
        ("**b** ~c~ $d$", r"\*\*b\*\* \~c\~ \$d\$"),
        ("www.y.z me@y.z", r"www\.y.z me&#64;y.z"),
        ("\x1b[31m", r"\\x1b\[31m"),
    ],
)
def test_by_hand(text, escaped):
    assert escape_markdown(text) == escaped


@pytest.mark.parametrize("payload", [*PAYLOADS, *MORE_PAYLOADS], ids=ascii)
def test_a_name_stays_in_its_cell_and_is_no_markup(payload):
    made = write_table([["method", payload], [payload, "1"]])
    head, rule, line = made.splitlines()
    assert head.count("|") == rule.count("|") == line.count("|") == 3
    name = line[2:-6]
    assert not re.search(r"[<>|]|&(?!amp;|lt;|gt;|#124;|#64;)", name)
    plain = re.sub(r"\\[\\`*\[\]~$#!_:.]", "", name)  # what a backslash protects
    assert not re.search(r"[\\`*\[\]~$]|://|www\.", plain)
    assert not re.search(r"(?<!\w)_|_(?!\w)", re.sub("&#?[a-z0-9]+;", " ", plain)) or "\\_" in name


def test_an_explanation_lists_its_strongest_words():
    e = explain_text("not a good film", [(0, 3), (4, 5), (6, 10), (11, 15)], [-2.0, 0.0, 1.0, 0.5], model="tiny")
    written = e.formats[".md"](e).decode()
    assert re.search(r"\| token \| score \|\n\| --- \| ---: \|\n\| not \| -2 \|\n\| good \| \+1 \|", written)
    assert "- model: tiny" in written and written.startswith("# Why ")
    image = explain_image()
    assert re.search(r"\| row \d, column \d \|", image.formats[".md"](image).decode())


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_no_field_of_an_explanation_is_markup(payload):
    def list_tokens(word):
        e = explain_text(
            f"a {word} b", [(0, 1), (2, 2 + len(word))], [1.0, 2.0], names=(word,), model=word, notes=(word,)
        )
        for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(e.formats[".md"](e).decode()):
            yield token.type
            yield from (
                inner.type for inner in token.children or () if not inner.type.startswith(("text", "softbreak"))
            )

    assert list(list_tokens(payload)) == list(list_tokens("plain"))
