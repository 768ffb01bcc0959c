"""Texts are cut into chips, never inside a letter."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_explanations import explain_text

from whyformer._plain.tokens import Pieces
from whyformer.show.chips import make_chips, split_letters

FAMILY = "👨\u200d👩\u200d👧"
FLAG = "🇯🇵"
KSHA = "क्षि"  # one letter to a reader, four code points


def list_chips(text, cuts, scores=None):
    scores = scores or [float(i + 1) for i in range(len(cuts))]
    pieces = Pieces(tuple(text[a:b] for a, b in cuts), (False,) * len(cuts), (False,) * len(cuts), tuple(cuts), text)
    made, tail = make_chips(pieces, torch.tensor(scores))
    return [(chip.before, chip.text, chip.score) for chip in made], tail


def test_words_by_hand():
    assert list_chips("a good film!", [(0, 1), (1, 6), (7, 9), (9, 11)]) == (
        [("", "a", 1.0), (" ", "good", 2.0), (" ", "fi", 3.0), ("", "lm", 4.0)],
        "!",
    )


@pytest.mark.parametrize("letter", [FAMILY, FLAG, KSHA, "e\u0301", "각".encode().decode()])
def test_a_letter_cut_by_the_tokenizer_becomes_one_chip_with_the_sum(letter):
    text = f"x{letter}y"
    middle = 1 + len(letter) // 2
    cuts = [(0, 1), (1, middle), (middle, 1 + len(letter)), (1 + len(letter), len(text))]
    cuts = [cut for cut in cuts if cut[0] < cut[1]]
    made, _ = list_chips(text, cuts, [1.0] * len(cuts))
    assert [chip[1] for chip in made] == ["x", letter, "y"]
    assert sum(chip[2] for chip in made) == len(cuts)


def test_bytes_of_one_emoji_share_a_chip():
    assert list_chips("👍!", [(0, 1), (0, 1), (0, 1), (1, 2)])[0] == [("", "👍", 6.0), ("", "!", 4.0)]


@settings(max_examples=40)
@given(st.text(max_size=12), st.lists(st.integers(1, 12), max_size=5))
def test_no_chip_ends_inside_a_letter(text, borders):
    """And nothing is lost: every piece is in one chip, and the scores sum to the total."""
    places = sorted({0, len(text), *(b for b in borders if b < len(text))})
    cuts = [cut for cut in pairwise(places) if cut[0] < cut[1]]
    if not cuts:
        return
    pieces = Pieces(tuple("p" for _ in cuts), (False,) * len(cuts), (False,) * len(cuts), tuple(cuts), text)
    made, _ = make_chips(pieces, torch.ones(len(cuts)))
    whole = {0, *accumulate(map(len, split_letters(text)))}
    for chip in made:
        assert cuts[chip.positions[0]][0] in whole
        assert cuts[chip.positions[-1]][1] in whole
    assert sum(chip.score for chip in made) == len(cuts)
    assert [i for chip in made for i in chip.positions] == list(range(len(cuts)))


def test_special_tokens_are_separate_chips_and_padding_is_left_out(text_explanation):
    made, _ = make_chips(text_explanation.tokens[0], text_explanation.scores[0])
    assert [chip.text for chip in made] == ["[CLS]", "not", "a", "go", "od", "film"]
    assert made[0].special and made[1].before == " "
    assert made[-1].before == "\n"


def test_a_pair_of_sentences_keeps_its_line_break():
    text = "it rains\nit is dry"
    e = explain_text(text, [(0, 2), (3, 8), (9, 11), (12, 14), (15, 18)], [0.0] * 5)
    made, _ = make_chips(e.tokens[0], e.scores[0])
    assert [chip.before for chip in made[1:]] == [" ", " ", "\n", " ", " "]


def test_a_long_text_has_all_its_chips():
    text = "word " * 4000
    cuts = [(5 * i, 5 * i + 4) for i in range(4000)]
    assert len(list_chips(text, cuts)[0]) == 4000
