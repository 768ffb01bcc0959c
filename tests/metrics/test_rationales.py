"""Rationales by hand: five words, cut into pieces, one of them unknown to the tokenizer."""

import numpy as np
import pytest
import torch
from combined_values import combine_values
from fake_probe import explanation, picture

from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError, MetricError
from whyformer.metrics import auprc, iou_f1, token_f1
from whyformer.metrics._registry import METRICS, Rationale
from whyformer.metrics.rationales import find_marked_runs, run_iou, score_words

TEXT = "a gorgeous §§ film indeed"
TOKENS = Pieces(
    ("[CLS]", "a", "gor", "##geous", "[UNK]", "film", "in", "##deed", "[SEP]", "[PAD]"),
    special=(True, False, False, False, False, False, False, False, True, False),
    padding=(False,) * 9 + (True,),
    spans=(None, (0, 1), (2, 5), (5, 10), (11, 13), (14, 18), (19, 21), (21, 25), None, None),
    text=TEXT,
)
SCORES = [9.0, 0.1, 0.2, 0.5, 0.4, 0.3, -0.1, -0.2, 9.0, 0.0]  # words: 0.1, 0.5, 0.4, 0.3, -0.1
MARKED = Rationale([0, 1, 0, 1, 0])


def near(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12, equal_nan=True)


def scored(scores=SCORES, tokens=TOKENS):
    return explanation([scores], (tokens,))


def test_a_word_gets_the_highest_score_of_its_pieces_and_an_unknown_one_keeps_its_place():
    near(score_words(TOKENS, torch.tensor(SCORES, dtype=torch.float64)), [0.1, 0.5, 0.4, 0.3, -0.1])


def test_special_tokens_and_padding_give_a_word_nothing_even_where_they_cover_it():
    spans = ((0, 1), *TOKENS.spans[1:8], (14, 18), (19, 25))
    odd = Pieces(TOKENS.pieces, TOKENS.special, TOKENS.padding, spans, TEXT)
    near(score_words(odd, torch.tensor(SCORES, dtype=torch.float64)), [0.1, 0.5, 0.4, 0.3, -0.1])


def test_token_f1_by_hand():
    """k = 1: one hit, 2 * 1 / (1 + 2). k = 2: 2 / 4. k = 3: 4 / 5. k = 9: all five words, 4 / 7."""
    found = token_f1(scored(), [MARKED], k=(1, 2, 3, 9))
    near(found.curve, [[2 / 3, 1 / 2, 4 / 5, 4 / 7]])
    near(found.value, [(2 / 3 + 1 / 2 + 4 / 5 + 4 / 7) / 4])
    assert found.at == (1.0, 2.0, 3.0, 9.0)


def test_k_can_be_a_share_or_as_many_as_are_marked():
    near(token_f1(scored(), [MARKED], k="marked").value, [1 / 2])
    near(token_f1(scored(), [MARKED], k=0.6).value, [4 / 5])  # 3 of 5 words


def test_marks_of_characters_words_and_tokens_say_the_same():
    characters = [int(2 <= i < 10 or 14 <= i < 16) for i in range(len(TEXT))]  # a part of a word marks it
    tokens = [0, 0, 1, 1, 0, 1, 0, 0, 0, 0]
    for marks in (
        MARKED,
        Rationale(characters, "character"),
        characters,
        [0, 1, 0, 1, 0],
        np.array([0, 1, 0, 1, 0]),
        torch.tensor([0, 1, 0, 1, 0]),
    ):
        near(token_f1(scored(), [marks], k=3).value, [4 / 5])
    for marks in (Rationale(tokens, "token"), tokens, tokens[:9], tokens[1:8]):
        near(token_f1(scored(), [marks], k=3).value, [2 * 2 / (3 + 3)])  # ##geous, [UNK], film


def test_words_beyond_what_the_model_saw_are_missed():
    """Two more words, one marked: it can never be found. k = 9 still chooses five."""
    long = Rationale([0, 1, 0, 1, 0, 1, 0])
    near(token_f1(scored(), [long], k=(3, 9)).curve, [[2 * 2 / (3 + 3), 2 * 2 / (5 + 3)]])
    cut = Pieces(TOKENS.pieces, TOKENS.special, TOKENS.padding, (*TOKENS.spans[:5], *[None] * 5), TEXT)
    assert score_words(cut, torch.tensor(SCORES))[3:].tolist() == [-torch.inf] * 2
    near(token_f1(scored(tokens=cut), [MARKED], k=9).value, [2 * 1 / (3 + 2)])


def test_equal_scores_count_as_a_random_choice_would():
    """Two of four equal words are chosen, one of them marked, beside a higher one that is: 1 + 2 * 1/4 hits of 3."""
    scores = [0.0, 0.0, 0.7, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    near(token_f1(scored(scores), [MARKED], k=3).value, [2 * 1.5 / (3 + 2)])


def test_iou_f1_by_hand():
    """The three highest words are one run, 1..3; marked are 1..2 (2 of 3 in common: found) and 4. P = 1, R = 1/2."""
    found = iou_f1(scored(), [Rationale([0, 1, 1, 0, 1])], k=3)
    near(found.parts, [[1.0, 0.5]])
    near(found.value, [2 / 3])
    near(iou_f1(scored(), [Rationale([0, 1, 1, 0, 1])], k=3, threshold=0.7).value, [0.0])
    near(iou_f1(scored(), [Rationale([0, 1, 0, 0, 0])], k=2).value, [1.0])  # exactly half is enough


def test_the_figure_of_iou_f1_is_of_mean_precision_and_recall():
    e = explanation([SCORES, SCORES], (TOKENS, TOKENS))
    found = iou_f1(e, [Rationale([0, 1, 1, 0, 1]), Rationale([1, 0, 0, 0, 1])], k=3)
    near(found.parts, [[1.0, 0.5], [0.0, 0.0]])
    assert combine_values(METRICS["iou_f1"], found.value, found.parts) == pytest.approx(
        2 * 0.5 * 0.25 / 0.75, abs=1e-12
    )


def test_runs_and_overlap_by_hand():
    assert find_marked_runs(torch.tensor([True, True, False, True])) == [(0, 2), (3, 4)]
    assert find_marked_runs(torch.tensor([False, False])) == []
    assert run_iou((0, 2), (1, 4)) == 1 / 4 and run_iou((0, 1), (2, 3)) == 0 and run_iou((1, 3), (1, 3)) == 1


def test_auprc_by_hand():
    """Order: marked, not, marked, not, not. Precision 1 at recall 1/2, 1/2 at 1/2, 2/3 at 1. Trapezoid: 1/2 * 1 and
    1/2 * (1/2 + 2/3) / 2. Average precision: 1/2 * 1 + 1/2 * 2/3."""
    near(auprc(scored(), [MARKED]), [0.5 + 0.5 * (1 / 2 + 2 / 3) / 2])
    near(auprc(scored(), [MARKED], rule="step"), [0.5 + 0.5 * 2 / 3])
    assert auprc(scored(), [Rationale([0, 1, 1, 1, 0])]).item() == 1.0


def test_undefined_where_nobody_was_asked():
    """Beside one where somebody was."""
    e = explanation([SCORES] * 3, (TOKENS,) * 3)
    for metric in (token_f1, iou_f1):
        assert metric(e, [Rationale(()), MARKED, None]).value.isnan().tolist() == [True, False, True]
    assert auprc(e, [[], MARKED, None]).isnan().tolist() == [True, False, True]


def test_undefined_where_nothing_is_marked():
    nothing, everything = Rationale([0] * 5), Rationale([1] * 5)
    assert token_f1(scored(), [nothing]).value.isnan().all()
    assert iou_f1(scored(), [nothing]).value.isnan().all()
    assert auprc(scored(), [nothing]).isnan().all() and auprc(scored(), [everything]).isnan().all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="3 marks match neither"):
        token_f1(scored(), [[0, 1, 0]])
    with pytest.raises(InputError, match="marks for 2 words, but the text has 5"):
        token_f1(scored(), [Rationale([0, 1])])
    with pytest.raises(InputError, match="2 rationales for 1 texts"):
        token_f1(scored(), [MARKED] * 2)
    with pytest.raises(InputError, match="the input is an image"):
        token_f1(picture([[1.0] * 4], 2, 2), [MARKED])
    for k in (0, 1.5, "all", True, ()):
        with pytest.raises(MetricError, match="k"):
            token_f1(scored(), [MARKED], k=k)
    with pytest.raises(MetricError, match="'trapezoid', 'step'"):
        auprc(scored(), [MARKED], rule="simpson")


def test_agrees_with_erasers_definition_written_slowly():
    """Sets of chosen and marked words, precision, recall, F1."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        words = int(rng.integers(3, 30))
        text = " ".join("w" * int(n) for n in rng.integers(1, 4, words))
        spans, at = [], 0
        for word in text.split(" "):
            spans.append((at, at + len(word)))
            at += len(word) + 1
        scores, marks = rng.normal(size=words), rng.integers(0, 2, words)
        marks[0] = 1
        tokens = Pieces(tuple(text.split(" ")), (False,) * words, (False,) * words, tuple(spans), text)
        for k in (1, 5, 20):
            chosen = set(np.argsort(-scores)[:k].tolist())
            truth = set(np.nonzero(marks)[0].tolist())
            p, r = len(chosen & truth) / len(chosen), len(chosen & truth) / len(truth)
            slowly = 2 * p * r / (p + r) if p and r else 0.0
            found = token_f1(explanation(scores[None], (tokens,)), [Rationale(marks.tolist())], k=k).value.item()
            assert found == pytest.approx(slowly, abs=1e-12)
