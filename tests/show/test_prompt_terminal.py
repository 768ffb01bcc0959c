"""A prompt in a terminal: bars, words in context; nothing untrusted is printed raw."""

import unicodedata

import pytest
from payloads import MORE_PAYLOADS, PAYLOADS
from sample_prompts import show_long_prompt, show_prompt

from whyformer.show.terminal import Screen, render_parts
from whyformer.show.terminal_report import MOST_REGIONS, list_prompt_parts

PLAIN = Screen(100, None)

BY_HAND = """\
Why cabinet? by cabinet

cabinet                +62.5% ++++++++++++
second                 -12.5% --
earlier answer tokens  +25.0% +++++

Strongest words:
       +5 cabinet the [cabinet here] no key there cabinet yes
       -1 second  the cabinet here [no] key there cabinet yes
note: cabinet"""


def render_prompt(view, screen):
    return render_parts(list_prompt_parts(view, screen), screen)


def test_by_hand():
    assert render_prompt(show_prompt(), PLAIN) == BY_HAND


def test_a_prompt_of_many_regions_fits_a_screen():
    view = show_long_prompt(3_000, 2, 100)
    lines = render_prompt(view, PLAIN).splitlines()
    assert len(lines) < MOST_REGIONS + 15 and max(map(len, lines)) <= 100
    assert any("other regions" in line for line in lines)
    shares = [float(line.split("%")[0].split()[-1]) for line in lines[2 : MOST_REGIONS + 3]]
    assert sum(shares) == pytest.approx(100 * sum(view.section_shares), abs=0.1 * len(shares))


@pytest.mark.parametrize("screen", [PLAIN, Screen(60, "truecolor")], ids=["plain", "colour"])
def test_untrusted_text_is_spelled_out(screen):
    for payload in [*PAYLOADS, *MORE_PAYLOADS]:
        printed = render_prompt(show_prompt(payload), screen).replace("\x1b[", "" if screen.colours else "\x1b[")
        joined = {c for c in printed if unicodedata.category(c) in ("Cc", "Cs", "Co", "Zl", "Zp")}
        assert joined <= {"\n"}, payload
