"""Where sentences and paragraphs start."""

import pytest

from whyformer._plain.words import find_paragraph_starts, find_sentence_starts


def split(text, starts):
    return [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It was good.", "Was it?", "Yes!", "So..."],
        ["Dr. Smith met J. R. Jones at 3.15 p.m. on Monday.", "They left."],
        ["See e.g. Fig. 3 and No. 7 of St. Ives.", "Then stop."],
        ['He said "Stop!" and left.', 'She said "No."', "(It rained.)", "The end."],
        ["The U.S. Senate voted.", "It passed."],
        ["Version 2.0 is out"],
        ["She said no.", "Then she left with No. 5 of Fig. 2."],
        ["هل أعجبك الفيلم؟", "نعم."],
        ["क्या यह अच्छा है?", "हाँ।", "ठीक है।"],
    ],
    ids=["stops", "titles", "short forms", "quotes", "initials", "number", "no", "arabic", "hindi"],
)  # fmt: skip
def test_sentences_are_split_at_blanks(sentences):
    text = " ".join(sentences)
    assert split(text, find_sentence_starts(text)) == sentences


def test_chinese_and_japanese_sentences_need_no_blank():
    sentences = ["我喜欢这部电影。", "你呢？", "「はい！」", "とても良い。", "The end."]
    assert split("".join(sentences), find_sentence_starts("".join(sentences))) == sentences


def test_a_blank_line_ends_a_sentence_and_a_paragraph_but_a_line_break_does_not():
    text = "A title\n\nOne line\nand another. More.\n \t\nThe end"
    assert split(text, find_sentence_starts(text)) == ["A title", "One line\nand another.", "More.", "The end"]
    assert split(text, find_paragraph_starts(text)) == ["A title", "One line\nand another. More.", "The end"]


@pytest.mark.parametrize("text", ["", "   ", ".", "...", "\n\n", "\n\na", " a. ", "a.\n\n", "。。"])
def test_odd_texts_have_one_start(text):
    assert find_sentence_starts(text) == [0]
    assert find_paragraph_starts(text) == [0]
