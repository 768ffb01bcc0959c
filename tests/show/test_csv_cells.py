"""Cells of a CSV file: text never starts a formula, numbers and ordinary text stay as they are."""

import math

import pytest
from payloads import MORE_PAYLOADS, PAYLOADS

from whyformer.show.score_rows import as_csv_cell, is_formula

BLANKS = [
    "", " ", "  ", "\t", "\r", "\n", "\r\n", "\v", "\f", "\x85", "\xa0", "\xad", "\u034f", "\u115f", "\u1160", "\u1680",
    "\u180e", "\u2000", "\u2003", "\u2009", "\u200a", "\u200b", "\u200c", "\u200d", "\u200e", "\u202e", "\u202f",
    "\u205f", "\u2060", "\u2800", "\u3000", "\u3164", "\ufe0f", "\ufeff", "\uffa0", "\x00", "\x1b", " \xa0\u200b\t ",
]  # fmt: skip


@pytest.mark.parametrize("sign", "=+-@|%＝＋－＠﹦﹢﹣﹫−⁼₊")
def test_a_formula_gets_an_apostrophe_whatever_is_in_front_of_it(sign):
    """The apostrophe comes first: behind a blank it would protect nothing."""
    for blank in BLANKS:
        cell = as_csv_cell(f"{blank}{sign}1+1")
        assert cell.startswith("'") and cell.endswith(f"{sign}1+1"), ascii(blank)
        assert not set(cell) & {chr(i) for i in (*range(32), *range(127, 160))}, ascii(blank)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a=1", "rollout(start=-1)", "naïve", "素晴らしい", "  two blanks", "1-1", "'", "C:\\data", "👍🏽", "é"],
)
def test_other_text_is_unchanged(text):
    assert as_csv_cell(text) == text


@pytest.mark.parametrize(("value", "cell"), [(-0.5, "-0.5"), (-3, -3), (True, "yes"), (None, None), (1e-9, "1e-09")])
def test_numbers_get_no_apostrophe(value, cell):
    assert as_csv_cell(value) == cell
    assert as_csv_cell(math.pi) == repr(math.pi)


@pytest.mark.parametrize("payload", [*PAYLOADS, *MORE_PAYLOADS], ids=ascii)
def test_no_payload_starts_a_formula_or_has_a_control_character(payload):
    cell = as_csv_cell(payload)
    assert not is_formula(cell)
    assert not set(cell) & {chr(i) for i in (*range(32), *range(127, 160))}
