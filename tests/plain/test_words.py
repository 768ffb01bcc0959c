"""Words from pieces, by hand."""

import pytest
import torch

from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.words import group_pieces, join_words, pad_pieces
from whyformer.errors import InputError

TEXT = "unhappy end"
TOKENS = Pieces(
    pieces=("[CLS]", "un", "##happy", "end", "[SEP]", "[PAD]"),
    special=(True, False, False, False, True, False),
    padding=(False,) * 5 + (True,),
    spans=(None, (0, 2), (2, 7), (8, 11), None, None),
    text=TEXT,
)
SCORES = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 0.0])


def test_groups_the_pieces_of_a_word():
    assert group_pieces(TOKENS) == [[0], [1, 2], [3], [4]]


@pytest.mark.parametrize(("reduce", "score"), [("sum", 6.0), ("max", 4.0), ("mean", 3.0)])
def test_joins_scores(reduce, score):
    words, scores = join_words(TOKENS, SCORES, reduce)
    assert words.pieces == ("[CLS]", "unhappy", "end", "[SEP]")
    assert words.special == (True, False, False, True)
    assert words.spans == (None, (0, 7), (8, 11), None)
    assert scores.tolist() == [1.0, score, 8.0, 16.0]


def test_a_space_at_the_start_of_a_piece_separates_words():
    """GPT-2 counts the space to the next piece."""
    pieces = Pieces(("a", " b", "c"), (False,) * 3, (False,) * 3, ((0, 1), (1, 3), (3, 4)), "a bc")
    assert join_words(pieces, torch.ones(3), "sum")[0].pieces == ("a", "bc")


def test_only_padding_has_no_words():
    words, scores = join_words(Pieces(("",), (False,), (True,), (None,), "a"), torch.zeros(1), "sum")
    assert (len(words), scores.shape) == (0, (0,))


def test_pads_to_a_length():
    padded = pad_pieces(Pieces(("a",), (False,), (False,), ((0, 1),), "a"), 3)
    assert padded.pieces == ("a", "", "")
    assert padded.padding == (False, True, True)
    assert padded.spans == ((0, 1), None, None)


def test_inputs_without_words():
    with pytest.raises(InputError, match=r"An image has no words. Use \.map\(\)"):
        join_words(Grid(1, 2), torch.zeros(2), "sum")
    with pytest.raises(InputError, match="The input was token ids, so there is no text"):
        join_words(Pieces(("5",), (False,), (False,), (None,)), torch.zeros(1), "sum")
