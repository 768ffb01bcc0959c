"""Untrusted text in a Markdown table: the same cells, and no markup."""

import re

import pytest
from payloads import MORE_PAYLOADS, PAYLOADS

from whyformer.show.markdown import escape_markdown, write_table


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
