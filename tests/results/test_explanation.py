"""An explanation: reading, displaying and saving it."""

import re

import pytest
import torch
from PIL import Image

from whyformer._engine.targets.target import Target
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation, load
from whyformer.show.terminal import Screen

FACTS = dict(
    method="lrp", settings={"own": "keep"}, model="tiny", versions={"torch": "2"}, class_specific=True, signed=True
)  # fmt: skip
TEXT = "not a good film"
PIECES = Pieces(
    pieces=("[CLS]", "not", "a", "go", "##od", "film", "[SEP]", "[PAD]"),
    special=(True, False, False, False, False, False, True, False),
    padding=(False,) * 7 + (True,),
    spans=(None, (0, 3), (4, 5), (6, 8), (8, 10), (11, 15), None, None),
    text=TEXT,
)
SHORT = Pieces(
    pieces=("[CLS]", "fine", "[SEP]", *("[PAD]",) * 5),
    special=(True, False, True, *(False,) * 5),
    padding=(False,) * 3 + (True,) * 5,
    spans=(None, (0, 4), *(None,) * 6),
    text="fine",
)
SCORES = torch.tensor([[9.0, -3.0, 0.0, 0.5, 1.0, 0.25, 0.125, 0.0], [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]])


def a_text(**changes) -> Explanation:
    targets = (Target(1, "positive", 2.0, 0.9), Target(0, "negative", 1.0, 0.6))
    return Explanation(SCORES, (PIECES, SHORT), targets, (TEXT, "fine"), **FACTS | changes)


def an_image(batch: int = 3, **changes) -> Explanation:
    """Patch (r, c) of example i has the score 100 i + 10 r + c."""
    rows, columns = torch.arange(2), torch.arange(3)
    scores = (100 * torch.arange(batch)[:, None, None] + 10 * rows[:, None] + columns).flatten(1).double()
    targets = tuple(Target(i, f"label {i}", 1.0, 0.5) for i in range(batch))
    names = tuple(f"{i}.png" for i in range(batch))
    special = torch.arange(batch).double()[:, None]
    pixels = torch.rand(batch, 4, 6, dtype=torch.double)
    parts = dict(pixels=pixels, special=special) | FACTS | changes
    return Explanation(scores, (Grid(2, 3),) * batch, targets, names, **parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_an_example_is_an_explanation_of_its_own():
    whole = an_image()
    assert len(whole) == 3
    for i, one in enumerate(whole):
        assert len(one) == 1
        assert one.names == (f"{i}.png",)
        assert one.targets[0].label == f"label {i}"
        assert torch.equal(one.scores, whole.scores[i : i + 1])
        assert torch.equal(one.pixels, whole.pixels[i : i + 1])
        assert torch.equal(one.special, whole.special[i : i + 1])
        assert (one.method, one.settings) == (whole.method, whole.settings)


def test_slices_and_negative_indices():
    whole = an_image()
    assert whole[1:3].names == ("1.png", "2.png")
    assert whole[-1].names == ("2.png",)
    assert len(whole[3:]) == 0
    with pytest.raises(IndexError):
        whole[3]


def test_results_cannot_be_assigned_to():
    with pytest.raises(AttributeError):
        a_text().method = "rollout"


def test_scores_must_fit_what_they_belong_to():
    with pytest.raises(InputError, match="6 scores do not fit 8 tokens"):
        a_text().__class__(SCORES[:1, :6], (PIECES,), a_text().targets[:1], ("x",), **FACTS)
    with pytest.raises(InputError, match=r"Scores \[2, 8\] do not fit 1 lists of tokens, 1 targets and 1 names"):
        Explanation(SCORES, (PIECES,), a_text().targets[:1], ("x",), **FACTS)


def test_the_map_is_row_by_row():
    assert an_image().map(1).tolist() == [[100, 101, 102], [110, 111, 112]]
    with pytest.raises(InputError, match="A text has no map"):
        a_text().map()


def test_top_leaves_special_tokens_and_padding_out():
    assert a_text()[0].top(2) == [("od", 1.0), ("go", 0.5)]
    assert [token for token, _ in a_text()[0].top(99)] == ["od", "go", "film", "a", "not"]
    assert a_text()[0].top(0) == []


def test_top_with_special_tokens_and_by_magnitude():
    assert a_text()[0].top(2, by="magnitude", special=True) == [("[CLS]", 9.0), ("not", -3.0)]
    assert a_text()[0].top(1, by="magnitude") == [("not", -3.0)]


def test_top_of_an_image_is_by_row_and_column():
    assert an_image(1).top(2) == [((1, 2), 12.0), ((1, 1), 11.0)]
    assert ("special 0", 0.0) in an_image(1).top(99, special=True)


def test_top_of_a_batch_is_a_list_for_each_example():
    assert a_text().top(1) == [[("od", 1.0)], [("fine", 2.0)]]


def test_top_refuses_invalid_arguments():
    with pytest.raises(InputError, match="by must be 'score' or 'magnitude', got 'size'"):
        a_text().top(1, by="size")
    with pytest.raises(InputError, match="k must be >= 0, got -1"):
        a_text().top(-1)


# --- words ------------------------------------------------------------------------------------------------------------


def test_words_combine_the_scores_of_their_tokens():
    words = a_text().words()
    assert words.tokens[0].pieces == ("[CLS]", "not", "a", "good", "film", "[SEP]")
    assert words.tokens[0].special == (True, False, False, False, False, True)
    assert words.scores[0].tolist() == [9.0, -3.0, 0.0, 1.5, 0.25, 0.125]
    assert words.settings["words"] == "sum"
    assert words[0].top(1) == [("good", 1.5)]


def test_words_of_a_batch_are_padded_and_keep_their_sums():
    words = a_text().words()
    assert words.tokens[1].pieces == ("[CLS]", "fine", "[SEP]", "", "", "")
    assert words.tokens[1].padding == (False,) * 3 + (True,) * 3
    torch.testing.assert_close(words.scores.sum(1), SCORES.sum(1))


@pytest.mark.parametrize(("reduce", "good"), [("sum", 1.5), ("max", 1.0), ("mean", 0.75)])
def test_ways_to_combine_scores(reduce, good):
    assert a_text().words(reduce=reduce).scores[0, 3] == good


def test_words_of_tokenizers_whose_tokens_include_the_blank():
    """GPT-2: ' good' begins at the blank; bytes of one emoji share their character; a blank joins the next word."""
    text = "a  good film👍!"
    pieces = Pieces(
        ("a", "Ġ", "Ġgo", "od", "Ġfilm", "ðŁĳ", "į", "!"),
        (False,) * 8,
        (False,) * 8,
        ((0, 1), (1, 2), (2, 5), (5, 7), (7, 12), (12, 13), (12, 13), (13, 14)),
        text,
    )
    e = Explanation(torch.ones(1, 8), (pieces,), a_text().targets[:1], (text,), **FACTS).words()
    assert e.tokens[0].pieces == ("a", "good", "film👍!")
    assert e.scores.tolist() == [[1, 3, 4]]


LONG_TEXT = "Dr. Who came. He saw.\n\nThe end"
LONG_SPANS = ((0, 3), (4, 7), (8, 12), (12, 13), (14, 16), (17, 21), (23, 26), (27, 30))


def a_long_text(**changes) -> Explanation:
    """Eight tokens between two special ones; token i has the score 2^i, so that every sum says what is in it."""
    spans = (None, *LONG_SPANS, None)
    names = ("[CLS]", *(LONG_TEXT[a:b] for a, b in LONG_SPANS), "[SEP]")
    pieces = Pieces(names, (True, *(False,) * 8, True), (False,) * 10, spans, LONG_TEXT)
    scores = 2.0 ** torch.arange(10).double()[None]
    return Explanation(scores, (pieces,), a_text().targets[:1], ("x",), **FACTS | changes)


def test_sentences_and_paragraphs_are_sums_of_their_tokens():
    e = a_long_text()
    sentences, paragraphs = e.sentences(), e.paragraphs()
    assert sentences.tokens[0].pieces == ("[CLS]", "Dr. Who came.", "He saw.", "The end", "[SEP]")
    assert sentences.scores.tolist() == [[1.0, 30.0, 96.0, 384.0, 512.0]]
    assert paragraphs.tokens[0].pieces == ("[CLS]", "Dr. Who came. He saw.", "The end", "[SEP]")
    assert paragraphs.scores.tolist() == [[1.0, 126.0, 384.0, 512.0]]
    assert sentences.tokens[0].spans == (None, (0, 13), (14, 21), (23, 30), None)
    assert sentences.settings == {"own": "keep", "sentences": "sum"}
    assert paragraphs.settings == {"own": "keep", "paragraphs": "sum"}


def test_sums_add_up_whatever_is_joined_first():
    e = a_long_text()
    assert torch.equal(e.words().sentences().scores, e.sentences().scores)
    assert torch.equal(e.words().sentences().paragraphs().scores, e.paragraphs().scores)
    assert {float(part.scores.sum()) for part in (e, e.words(), e.sentences(), e.paragraphs())} == {1023.0}


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_scores_per_layer_are_joined_too(suffix, tmp_path):
    """They are [batch layer token]; before, a joined explanation could be saved but not loaded again."""
    e = a_long_text()
    e = a_long_text(details={"per_layer": torch.stack([e.scores, 2 * e.scores], dim=1)}).sentences()
    assert torch.equal(e.details["per_layer"], torch.stack([e.scores, 2 * e.scores], dim=1))
    e.save(tmp_path / f"e{suffix}")
    assert torch.equal(load(tmp_path / f"e{suffix}").details["per_layer"], e.details["per_layer"])


def test_offsets_are_in_every_table():
    e = a_long_text()
    rows = e.formats[".csv"](e).decode().splitlines()
    assert rows[2].split(",")[-7:] == ["Dr.", "0", "3", "no", "2.0", "", ""]
    assert rows[1].split(",")[-7:] == ["[CLS]", "", "", "yes", "1.0", "", ""]
    assert "<td>14-16</td>" in re.sub(r"<td[^>]*>", "<td>", e.formats[".html"](e).decode())
    assert '"spans": [null, [0, 3], [4, 7]' in re.sub(r",(?! )", ", ", e.formats[".json"](e).decode())


def test_words_twice_are_words():
    once = a_text().words()
    assert once.words().tokens[0] == once.tokens[0]
    assert torch.equal(once.words().scores, once.scores)


def test_inputs_without_words_are_refused():
    with pytest.raises(InputError, match="An image has no words"):
        an_image().words()
    ids = Pieces(("7",), (False,), (False,), (None,))
    with pytest.raises(InputError, match="no text to find words in"):
        Explanation(torch.ones(1, 1), (ids,), a_text().targets[:1], ("x",), **FACTS).words()
    with pytest.raises(InputError, match="reduce must be one of sum, max, mean, got 'median'"):
        a_text().words(reduce="median")


# --- displaying -------------------------------------------------------------------------------------------------------


def test_the_repr_is_one_line():
    assert repr(a_text()) == "<Explanation by lrp of positive, negative: 2 x 8 scores>"
    hostile = an_image(1, method="lrp")
    hostile = Explanation(
        hostile.scores, hostile.tokens, (Target(0, "\x1b[2J\n", 1.0),), hostile.names, **FACTS
    )  # fmt: skip
    assert "\x1b" not in repr(hostile)
    assert "\n" not in repr(hostile)


def test_printing_a_text_without_colour():
    lines = str(a_text(notes=("something to know",))).split("\n")
    assert lines[0] == "positive (90.0%), by lrp"
    assert lines[2].split() == ["-3", "-" * 12, "not"]
    assert "negative (60.0%), by lrp" in lines
    assert lines[-1] == "note: something to know"


def test_printing_an_image_with_and_without_colour():
    plain = an_image(1).render(Screen(80, None))
    assert plain.startswith("0.png: label 0 (50.0%), by lrp\n")
    assert "\x1b" not in plain
    assert "▀" in an_image(1).render(Screen(80, "truecolor"))


def test_saving_an_image(tmp_path):
    """One row per example; without the original image, the map is shown alone."""
    heights = []
    for count in (1, 2):
        an_image(count).save(tmp_path / "map.PNG")
        with Image.open(tmp_path / "map.PNG") as shown:
            heights.append(shown.height)
    assert 1.8 * heights[0] < heights[1] < 2.2 * heights[0]
    with pytest.raises(InputError, match="has no examples"):
        an_image(2)[2:].save(tmp_path / "nothing.png")


def test_saving_as_plain_text(tmp_path):
    a_text().save(tmp_path / "e.txt")
    assert (tmp_path / "e.txt").read_text().startswith("positive (90.0%), by lrp\n")
