"""Prompts for display: sections, cells, shares and the strongest words."""

from dataclasses import replace

import pytest
import torch
from sample_prompts import make_pieces, show_long_prompt, show_prompt

from whyformer._plain.tokens import NamedTokens, Pieces
from whyformer.show.prompt_view import LONGEST_CELL, SPAN_LENGTH, find_top_spans


def test_shares_by_hand():
    """Tokens: 0 4 1 | -1 0 0 | 2 0, so the cells have 5, -1 and 2 of a magnitude of 8."""
    view = show_prompt()
    assert view.cell_shares == pytest.approx([5 / 8, -1 / 8, 2 / 8])
    assert view.section_shares == view.cell_shares
    assert [section.name for section in view.sections] == ["cabinet", "second", "answer"]


def test_shares_of_nothing_are_zero():
    view = show_prompt(scores=torch.zeros(8))
    assert view.cell_shares == [0.0, 0.0, 0.0] and view.largest_share == 0.0 and view.limit == 0.0


def test_tokens_outside_of_all_regions_are_shown_too():
    view = show_prompt(regions=(NamedTokens("middle", "user", 2, 4),), citations=())
    found = [(section.name, section.start, section.stop) for section in view.sections]
    assert found == [("between regions", 0, 2), ("middle", 2, 4), ("after the regions", 4, 6), ("answer", 6, 8)]


def test_regions_that_overlap_are_refused():
    view = show_prompt(regions=(NamedTokens("a", "user", 0, 4), NamedTokens("b", "user", 3, 6)))
    with pytest.raises(ValueError, match="'b' overlaps"):
        _ = view.sections


@pytest.mark.parametrize("wrong", [{"scores": torch.zeros(7)}, {"steps": torch.zeros(3, 8)}], ids=["scores", "steps"])
def test_scores_that_do_not_fit_the_tokens_are_refused(wrong):
    with pytest.raises(ValueError, match="do not fit"):
        show_prompt(**wrong)


@pytest.mark.parametrize("with_text", [True, False], ids=["text", "ids"])
def test_cells_cover_every_token_once_and_are_short(with_text):
    view = show_long_prompt(2_000, 3, 2)
    if not with_text:
        bare = replace(view.pieces, text=None, spans=(None,) * len(view.pieces))
        view = replace(view, pieces=bare)
    covered = [token for cell in view.cells for token in range(cell.start, cell.stop)]
    assert covered == list(range(2_003))
    assert max(cell.stop - cell.start for cell in view.cells) <= LONGEST_CELL
    assert len(view.cells) > 5
    drawn = [i for cell in view.cells for i in view.chips_of(cell)]
    assert drawn == list(range(len(view.chips)))


def test_long_regions_are_divided_between_sentences():
    view = show_long_prompt(1_990, 3, 1)
    starts = [cell.start for cell in view.cells if cell.start < 1_990]
    assert len(starts) > 4 and all(start % 10 == 0 for start in starts)


def test_cells_follow_the_parts_of_a_region():
    parts = (NamedTokens("sentence 1", "sentence", 0, 2), NamedTokens("sentence 2", "sentence", 4, 6))
    view = show_prompt(parts=parts, regions=(NamedTokens("user", "user", 0, 6),))
    found = [(cell.name, cell.start, cell.stop) for cell in view.cells]
    assert found == [("sentence 1", 0, 2), ("user, part 2", 2, 4), ("sentence 2", 4, 6), ("answer", 6, 8)]
    assert sum(view.cell_shares[:3]) == pytest.approx(view.section_shares[0])


def test_sums_over_cells_equal_a_loop():
    view = show_long_prompt(900, 4, 3)
    slow = [[row[cell.start : cell.stop].double().sum() for cell in view.cells] for row in view.steps]
    assert torch.allclose(view.sum_cells(view.steps), torch.tensor(slow, dtype=torch.double), rtol=1e-9, atol=1e-9)


def test_the_cells_with_the_largest_shares_are_open():
    view = show_long_prompt(3_000, 2, 30)
    prompt = view.cell_shares[:-1]
    assert sorted(map(abs, prompt))[-3:] == sorted(abs(prompt[i]) for i in view.open_cells)
    assert len(show_prompt().open_cells) == 3  # all of a short prompt


def span_words(scores, special=frozenset(), **changes):
    """The spans of a single region of six tokens, as words."""
    words = "a b c ##d e f".split()
    view = show_prompt(
        pieces=make_pieces([*words, "x"], special=special), prompt_length=len(words), steps=None, hops=(),
        regions=(NamedTokens("all", "user", 0, len(words)),), scores=torch.tensor([*scores, 0.0]), **changes,
    )  # fmt: skip
    spans = find_top_spans(view, view.cells[0])
    return [("".join(view.chips[i].text for i in range(s.first, s.last + 1)), round(s.score, 6)) for s in spans]


def test_top_spans_by_hand():
    assert span_words([0, 1, 0, 4, 0, -2]) == [("bcd", 5.0), ("f", -2.0)]  # b has a quarter of d, c is its word
    assert span_words([0, 0.9, 0, 4, 0, 2]) == [("cd", 4.0), ("f", 2.0), ("b", 0.9)]
    assert span_words([9, 0, 0, 4, 0, 0], special=frozenset({0})) == [("cd", 4.0)]
    assert span_words([0.0] * 6) == []


def test_spans_stay_short_and_in_their_cell():
    view = show_long_prompt(900, 1, 3)
    view = replace(view, scores=torch.ones(901), steps=None)
    for cell in view.cells[:-1]:
        spans = find_top_spans(view, cell)
        own = view.chips_of(cell)
        chips = [i for span in spans for i in range(span.first, span.last + 1)]
        assert len(set(chips)) == len(chips) and set(chips) <= set(own)
        assert all(span.last - span.first < SPAN_LENGTH for span in spans)


def test_one_extreme_word_in_a_thousand_does_not_make_the_others_pale():
    view = show_long_prompt(2_000, 1, 1)
    scores = torch.linspace(0, 1, 2_001)
    scores[7] = 50.0
    assert replace(view, scores=scores, steps=None).limit == pytest.approx(1.0, abs=0.01)
    assert show_prompt().limit == 4.0  # a short text: the largest


def test_the_colours_are_scaled_by_what_a_person_wrote():
    """The template (token 2) and the earlier token of the answer (6) score higher than all words of the regions."""
    scores = torch.tensor([90.0, 1.0, 50.0, 2.0, -3.0, 0.0, 40.0, 0.0])
    regions = (NamedTokens("user", "user", 0, 2), NamedTokens("passage", "passage", 3, 6))
    view = show_prompt(regions=regions, scores=scores, steps=None, citations=(), hops=())
    assert view.scaled_chips == {1, 3, 4, 5} and view.limit == 3.0  # token 0 is special
    flat = replace(view, regions=(NamedTokens("prompt", "other", 0, 6),))
    assert flat.limit == 50.0  # nothing says which words are a template


def test_white_space_is_shown_as_signs_and_breaks_lines():
    """Tokens: a, two line breaks, b, a blank, c; make_chips alone would name the tokens Ċ and lose the lines."""
    text = "a\n\nb c"
    pieces = Pieces(
        ("a", "ĊĊ", "b", "Ġ", "c"), (False,) * 5, (False,) * 5, ((0, 1), (1, 3), (3, 4), (4, 5), (5, 6)), text
    )
    view = show_prompt(
        pieces=pieces, prompt_length=5, scores=torch.tensor([1.0, 9.0, 2.0, 8.0, 3.0]), steps=None, regions=(),
        hops=(), citations=(),
    )  # fmt: skip
    assert [(chip.before, chip.text) for chip in view.chips] == [
        ("", "a"), ("", "↵↵"), ("\n\n", "b"), ("", "␣"), (" ", "c"),
    ]  # fmt: skip
    assert view.limit == 3.0  # white space is no word
    assert [view.chips[span.first].text for span in find_top_spans(view, view.cells[0])] == ["c", "b", "a"]
    assert view.cell_shares == [1.0]  # but its score counts
