"""Scores in a terminal, with and without colour."""

import re

import pytest
import torch
from rich.cells import cell_len
from rich.text import Text

from whyformer._engine.targets.target import Target
from whyformer._plain.tokens import Pieces
from whyformer.show import terminal
from whyformer.show.chips import get_piece_text
from whyformer.show.colours import AGAINST_COLOUR, FOR_COLOUR, UNSIGNED_STOPS, WHITE
from whyformer.show.terminal import Screen

PLAIN = Screen(width=60, colours=None)
COLOUR = Screen(width=60, colours="truecolor")
TEXT = "not a good\nfilm"
PIECES = Pieces(
    pieces=("[CLS]", "not", "a", "go", "##od", "film", "[SEP]", "[PAD]"),
    special=(True, False, False, False, False, False, True, False),
    padding=(False,) * 7 + (True,),
    spans=(None, (0, 3), (4, 5), (6, 8), (8, 10), (11, 15), None, None),
    text=TEXT,
)
SCORES = torch.tensor([9.0, -1.0, 0.0, 0.5, 1.0, 0.25, 0.0, 0.0])


def grounds(text: Text) -> dict[str, tuple[int, int, int]]:
    """The background colour of every stretch of text that has one."""
    found = {}
    for span in text.spans:
        if (colour := getattr(span.style, "bgcolor", None)) is not None:
            found[text.plain[span.start : span.end]] = tuple(colour.triplet)
    return found


def test_words_have_the_background_colour_of_their_score():
    shown = terminal.render_words(PIECES, SCORES, signed=True)
    assert shown.plain == "[CLS] not a good\nfilm [SEP]"
    colours = grounds(shown)
    assert colours["not"] == AGAINST_COLOUR
    assert colours["a"] == WHITE
    assert colours["od"] == FOR_COLOUR
    assert "[CLS]" not in colours  # special tokens are on no scale


def test_padding_is_not_shown():
    assert "[PAD]" not in terminal.render_words(PIECES, SCORES, signed=True).plain
    assert "[PAD]" not in terminal.render_plain_words(PIECES, SCORES, signed=True).plain


def test_unsigned_scores_start_at_zero():
    colours = grounds(terminal.render_words(PIECES, SCORES.abs() + 1, signed=False))
    assert WHITE not in colours.values()
    assert colours["not"] == colours["od"] == UNSIGNED_STOPS[-1]


def test_pieces_of_the_same_characters_are_drawn_once_with_their_sum():
    emoji = Pieces(("a", "b", "c"), (False,) * 3, (False,) * 3, ((0, 1), (0, 1), (1, 2)), "👍!")
    shown = terminal.render_words(emoji, torch.tensor([0.5, 0.5, 1.0]), signed=True)
    assert shown.plain == "👍!"
    assert grounds(shown) == {"👍": FOR_COLOUR, "!": FOR_COLOUR}


def test_characters_no_piece_covers_are_shown_without_colour():
    pieces = Pieces(("b",), (False,), (False,), ((2, 3),), "\x1bab and a tail")
    shown = terminal.render_words(pieces, torch.tensor([1.0]), signed=False)
    assert shown.plain == r"\x1bab and a tail"
    assert list(grounds(shown)) == ["b"]


def test_tokens_without_a_text_are_separated_by_spaces():
    ids = Pieces(("204", "77"), (False,) * 2, (False,) * 2, (None,) * 2)
    assert terminal.render_words(ids, torch.ones(2), signed=False).plain == "204 77"


def test_a_piece_that_covers_only_a_space_is_shown_as_a_sign():
    pieces = Pieces(("▁", "a"), (False,) * 2, (False,) * 2, ((0, 1), (1, 2)), " a")
    assert get_piece_text(pieces, 0) == "␣"
    assert get_piece_text(pieces, 1) == "a"


def test_without_colour_words_have_numbers_and_bars():
    lines = terminal.render_plain_words(PIECES, SCORES, signed=True).plain.split("\n")
    assert lines[0] == "        +9              [CLS]  (special)"
    assert lines[1] == "        -1 ------------ not"
    assert lines[2] == "        +0              a"
    assert lines[3] == "      +0.5 ++++++       go"


def test_unsigned_bars_without_colour_are_neutral():
    assert terminal.render_plain_words(PIECES, SCORES.abs(), signed=False).plain.split("\n")[1].split() == [
        "1",
        "#" * 12,
        "not",
    ]


def test_all_zero_scores_have_no_bar():
    assert "+" not in terminal.render_plain_words(PIECES, SCORES * 0, signed=True).plain.replace("+0", "")


def test_a_map_in_half_blocks_has_the_right_orientation():
    """The upper half of a character is its text colour, the lower half its background."""
    shown = terminal.render_heat_map(torch.tensor([[0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]), signed=True, size=2)
    assert shown.plain == "▀▀\n▀▀"
    first, second, third, _ = (span.style for span in shown.spans)
    assert (tuple(first.color.triplet), tuple(first.bgcolor.triplet)) == (WHITE, AGAINST_COLOUR)
    assert (tuple(second.color.triplet), tuple(second.bgcolor.triplet)) == (FOR_COLOUR, WHITE)
    assert third.bgcolor is None  # an odd number of rows: nothing below the last


def test_a_small_map_is_enlarged_and_a_wide_one_averaged():
    assert len(terminal.render_heat_map(torch.rand(4, 4), signed=False).plain.split("\n")) == 14
    wide = terminal.render_heat_map(torch.rand(50, 100), signed=False, width=40).plain.split("\n")
    assert {len(line) for line in wide} == {40}
    assert len(wide) == 10


def test_a_map_without_colour():
    assert terminal.render_plain_map(torch.tensor([[0.0, 0.5], [1.0, 0.0]]), signed=False).plain == "  ==\n@@  "
    assert terminal.render_plain_map(torch.tensor([[0.0, 0.5], [-1.0, 1.0]]), signed=True).plain == " .+4\n-9+9"
    assert terminal.render_plain_map(torch.zeros(1, 2), signed=True).plain == " . ."


@pytest.mark.parametrize("signed", [True, False])
def test_the_legend_shows_the_limits(signed):
    printed = terminal.render_legend((-0.25, 0.25), signed=signed).plain
    assert "-0.25" in printed
    assert printed.rstrip().endswith("+0.25 for" if signed else "0.25")
    assert "0.25" in terminal.render_plain_legend((-0.25, 0.25), signed=signed).plain


def test_the_title_shows_class_probability_and_method():
    target = Target(3, "tabby", 2.5, probability=0.931)
    assert (
        terminal.render_title(target, "lrp", name="cat.png", class_specific=True).plain
        == "cat.png: tabby (93.1%), by lrp"
    )
    printed = terminal.render_title(target, "rollout", name=None, class_specific=False).plain
    assert printed == "tabby (93.1%), by rollout (the same for every class)"


def test_the_title_of_other_targets():
    def title(**fields):
        return terminal.render_title(Target(**fields), None, name=None, class_specific=True).plain

    assert title(index=3, label="3", score=1.0, probability=0.5) == "class 3 (50.0%)"
    assert title(index=0, label="", score=1.25) == "class 0 = 1.25"
    assert title(index=0, label="cat", score=1, probability=0.01, predicted=False) == ("cat (1.0%, not the prediction)")
    assert title(index=7, label=" Paris", score=3.1, versus=8, versus_label=" London", position=4) == (
        "' Paris' rather than ' London' (ahead by 3.1)"
    )


def test_hostile_names_and_labels_are_escaped_and_cut():
    target = Target(0, "\x1b]0;owned\x07" + "x" * 200, 1.0, probability=0.5)
    printed = terminal.render_title(target, "lrp", name="evil\x1b[2J.png", class_specific=True)
    assert "\x1b" not in printed.plain
    assert r"evil\x1b[2J.png" in printed.plain
    assert cell_len(printed.plain) < 140
    assert "\x1b" not in terminal.render_notes(["\x1b[2J"])[0].plain


def test_markup_in_a_token_is_text():
    """`[red]` is a word here, not markup of the library that prints it."""
    pieces = Pieces(("[red]x", ":smile:"), (False,) * 2, (False,) * 2, (None,) * 2)
    printed = terminal.render_parts(terminal.render_text(pieces, torch.ones(2), signed=False, screen=PLAIN), PLAIN)
    assert "[red]x" in printed
    assert ":smile:" in printed


def test_without_colour_no_escape_sequence_is_printed():
    parts = [*terminal.render_text(PIECES, SCORES, signed=True, screen=PLAIN), *terminal.render_notes(["a note"])]
    parts += terminal.render_map(torch.rand(3, 3), signed=False, screen=PLAIN)
    assert "\x1b" not in terminal.render_parts(parts, PLAIN)


def test_colours_are_printed_as_truecolor_sequences():
    printed = terminal.render_parts(terminal.render_text(PIECES, SCORES, signed=True, screen=COLOUR), COLOUR)
    assert "48;2;{};{};{}".format(*AGAINST_COLOUR) in printed
    assert "48;2;{};{};{}".format(*FOR_COLOUR) in terminal.render_parts(
        [terminal.render_legend((-1, 1), signed=True)], COLOUR
    )


@pytest.mark.parametrize("signed", [True, False])
def test_words_can_be_read_on_sixteen_colours(signed):
    """Only grounds with an ink of high contrast: black on yellow, bright white on blue and on magenta."""
    screen = Screen(width=60, colours="standard")
    printed = terminal.render_parts(terminal.render_text(PIECES, SCORES, signed=signed, screen=screen), screen)
    looks = set(re.findall(r"\x1b\[([0-9;]+)m[^\x1b]", printed)) - {"0", "2", "2;3"}
    assert looks == ({"30;43", "97;44"} if signed else {"97;45"})


def test_long_text_wraps_at_the_width_of_the_screen():
    text = "wonderful " * 40
    spans = tuple((10 * i, 10 * i + 9) for i in range(40))
    pieces = Pieces(("wonderful",) * 40, (False,) * 40, (False,) * 40, spans, text)
    printed = terminal.render_parts([terminal.render_words(pieces, torch.rand(40), signed=False)], PLAIN)
    lines = printed.split("\n")
    assert len(lines) > 5
    assert max(map(cell_len, lines)) <= PLAIN.width


def test_no_colour_is_respected(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Screen.from_stdout().colours is not None
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen.from_stdout().colours is None


def test_output_that_is_no_terminal_has_no_colour(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert Screen.from_stdout().colours is None  # pytest captures standard output
