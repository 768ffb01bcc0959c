"""Words from pieces, by hand."""

import pytest
import torch

from whyformer._plain.tokens import Grid, Pieces, pad_pieces
from whyformer._plain.words import group_by_unit, group_pieces, join_groups, join_words
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


def make_pieces(text, *parts):
    """Pieces with the given names and spans; a name in square brackets is special."""
    names, spans = zip(*parts, strict=True)
    special = tuple(name.startswith("[") for name in names)
    return Pieces(names, special, (False,) * len(names), spans, text)


def test_a_blank_piece_belongs_to_the_word_after_it():
    """Byte-level and SentencePiece tokenizers may cut blanks off; at the end they belong to the word before."""
    tokens = make_pieces(
        "a  b ", ("▁", None), ("a", (0, 1)), ("Ġ", (1, 2)), ("Ġb", (3, 4)), ("Ġ", (4, 5)), ("[SEP]", None)
    )
    assert group_pieces(tokens) == [[0, 1], [2, 3, 4], [5]]


def test_a_line_break_stays_alone():
    tokens = make_pieces("a\n\nb", ("a", (0, 1)), ("ĊĊ", (1, 3)), ("b", (3, 4)))
    assert group_pieces(tokens) == [[0], [1], [2]]


def test_in_a_script_without_blanks_every_token_is_a_word_but_no_letter_is_cut():
    tokens = make_pieces(
        "我喜欢x2。ก็", ("我", (0, 1)), ("喜欢", (1, 3)), ("x", (3, 4)), ("2", (4, 5)), ("。", (5, 6)), ("ก", (6, 7)),
        ("็", (7, 8)),
    )  # fmt: skip
    assert join_words(tokens, torch.ones(7), "sum")[0].pieces == ("我", "喜欢", "x2", "。", "ก็")


def test_the_bytes_of_one_chinese_letter_are_one_word():
    tokens = make_pieces("我好", ("a", (0, 1)), ("b", (0, 1)), ("c", (0, 1)), ("d", (1, 2)), ("e", (1, 2)))
    assert group_pieces(tokens) == [[0, 1, 2], [3, 4]]


def test_sentences_are_made_of_words_and_end_at_special_tokens():
    text = "Hi you. Bye\nno"
    tokens = make_pieces(
        text, ("[CLS]", None), ("Hi", (0, 2)), ("you", (3, 6)), (".", (6, 7)), ("Bye", (8, 11)), ("[SEP]", None),
        ("Ċ", (11, 12)), ("no", (12, 14)), ("[SEP]", None),
    )  # fmt: skip
    groups = group_by_unit(tokens, "sentences")
    assert groups == [[0], [1, 2, 3], [4], [5], [6, 7], [8]]
    assert join_groups(tokens, groups).pieces == ("[CLS]", "Hi you.", "Bye", "[SEP]", "no", "[SEP]")
    assert group_by_unit(tokens, "paragraphs") == [[0], [1, 2, 3, 4], [5], [6, 7], [8]]


def test_a_line_break_between_sentences_belongs_to_the_first():
    tokens = make_pieces("A.\n\nB.", ("A.", (0, 2)), ("ĊĊ", (2, 4)), ("B.", (4, 6)))
    assert group_by_unit(tokens, "sentences") == group_by_unit(tokens, "paragraphs") == [[0, 1], [2]]


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
