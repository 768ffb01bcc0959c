"""Untrusted text cannot control the terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyformer.show.visible import make_visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m", r"\x9b31m"),  # the one-byte form of ESC [
        ("abc\u202egnp.exe", r"abc\u202egnp.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("caf\udce9.png", r"caf\udce9.png"),  # a file name that is not UTF-8
        ("\u2028", r"\u2028"),
        ("naïve 素晴らしい मूवी 👍", "naïve 素晴らしい मूवी 👍"),
    ],
)
def test_unprintable_characters_are_escaped(text, shown):
    assert make_visible(text) == shown


@given(st.text(alphabet=st.characters()))
def test_the_result_is_always_safe_and_idempotent(text):
    shown = make_visible(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert make_visible(shown) == shown
    shown.encode()
