"""Where each token is in the text, for tokenizers of every kind."""

import unicodedata

import pytest
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import MAKERS, SlowPieces, make_tokenizer

from whyformer._model.spans import align_pieces, correct_offsets
from whyformer._model.text import tokenize_text
from whyformer._plain.tokens import Pieces
from whyformer._plain.words import group_pieces, is_blank_mark

every_kind = pytest.mark.parametrize("kind", MAKERS)
TEXTS = {
    "plain": "the film is not good",
    "blanks": "  the   film ",
    "accents": "naïve café",
    "combining": "nai\u0308ve cafe\u0301 o\u0302\u0323",
    "emoji": "ok 😀 👨\u200d👩\u200d👧 ❤\ufe0f",
    "chinese": "你好世界。我喜欢电影！",
    "hebrew": "שלום עולם",
    "arabic": "مرحبا بالعالم",
    "width": "ﬁne ① ｆｉｌｍ Å İs ẞ",
    "lines": "the\tfilm\n\nis\r\ngood",
}


def tokenize(kind, text):
    one = tokenize_text(make_tokenizer(kind), text, "the text")
    return one, [span for span, is_special in zip(one.spans, one.special, strict=True) if not is_special]


@every_kind
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_tokens_cover_every_letter_in_order(kind, text):
    """Each character that is no blank is in a token, and a token without a span is a mark before the text."""
    one, spans = tokenize(kind, text)
    known = [span for span in spans if span is not None]
    assert known == sorted(known)
    covered = {place for span in known for place in range(*span)}
    dropped = {i for i, c in enumerate(text) if c.isspace() or unicodedata.category(c) in ("Cf", "Cc")}
    assert covered | dropped == set(range(len(text)))
    bare = [piece for piece, span, s in zip(one.pieces, one.spans, one.special, strict=True) if span is None and not s]
    assert len(bare) <= 1 and all(map(is_blank_mark, bare))


@every_kind
@pytest.mark.parametrize("name", ["plain", "blanks", "accents", "combining", "emoji", "hebrew", "arabic", "lines"])
def test_words_are_what_stands_between_blanks(kind, name):
    text = TEXTS[name]
    one, _ = tokenize(kind, text)
    pieces = Pieces(one.pieces, one.special, one.padding, one.spans, one.text)
    groups = [group for group in group_pieces(pieces) if not one.special[group[0]]]
    starts = [min(one.spans[i][0] for i in group if one.spans[i] is not None) for group in groups]
    ends = [max(one.spans[i][1] for i in group if one.spans[i] is not None) for group in groups]
    words = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    assert [word for word in words if word] == text.split()


@every_kind
def test_the_second_text_of_a_pair_starts_after_the_line_break(kind):
    """Both texts joined by a line break; a mark before the second text covers neither the break nor a letter."""
    first, second = "the film", "naïve 你好"
    one, spans = tokenize(kind, (first, second))
    assert one.text == f"{first}\n{second}"
    pieces = Pieces(one.pieces, one.special, one.padding, one.spans, one.text)
    assert len(first) not in {place for span in spans if span is not None for place in range(*span)}
    joined = [[span for i in group if (span := one.spans[i])] for group in group_pieces(pieces)]
    words = [one.text[min(s)[0] : max(s)[1]].strip() for s in joined if s]
    assert words[:3] == ["the", "film", "naïve"] and "".join(words[3:]) == "你好"


@every_kind
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda t: t.strip()))
def test_spans_of_any_text_are_inside_and_never_empty(kind, text):
    one, spans = tokenize(kind, f"{text}.")
    assert all(0 <= span[0] < span[1] <= len(text) + 1 for span in spans if span is not None)
    assert len(one.spans) == len(one.pieces) == len(one.ids)


def test_corrects_what_tokenizers_report_by_hand():
    """A mark before the text, trimmed blanks, and an accent that the normaliser dropped."""
    text, pieces = "ae\u0301  b", ("▁", "ae", "Ġ", "Ġb", "</s>")
    offsets = [(0, 1), (0, 2), (4, 4), (5, 6), (0, 0)]
    spans = correct_offsets(text, pieces, offsets, (False,) * 4 + (True,))
    assert spans == (None, (0, 3), (3, 4), (5, 6), None)


def test_a_slow_tokenizer_gets_its_spans_by_alignment():
    one = tokenize_text(SlowPieces(), "Café  zzz Gorgeous zzz", "the text")
    covered = [one.text[slice(*span)] if span else None for span in one.spans]
    assert one.pieces == ("[CLS]", "caf", "##e", "[UNK]", "gor", "##geo", "##us", "[UNK]", "[SEP]")
    assert covered == [None, "Caf", "é", "zzz", "Gor", "geo", "us", "zzz", None]


def test_a_pair_for_a_slow_tokenizer():
    one = tokenize_text(SlowPieces(), ("the end", "the film"), "the text")
    assert [span for span in one.spans if span] == [(0, 3), (4, 7), (8, 11), (12, 15), (15, 16)]


def test_slow_pieces_that_are_not_found_have_no_span():
    """Two unknown pieces for three words: which is which is not known. The words after them are found again."""
    spans = align_pieces("a bb ccc dd e", ("a", "?", "?", "dd", "e"), (False,) * 5)
    assert spans == ((0, 1), None, None, (9, 11), (12, 13))


def test_pieces_that_are_bytes_share_the_span_of_their_letter():
    """ByT5 is a slow tokenizer whose pieces are bytes."""
    one = tokenize_text(hf.ByT5Tokenizer(), "aé😀 b", "the text")
    covered = [one.text[slice(*span)] if span else None for span in one.spans]
    assert covered == ["a", "é", "é", "😀", "😀", "😀", "😀", None, "b", None]
