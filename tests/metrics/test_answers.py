"""Answer tokens among the top k: by hand, recomputed in numpy, and at the edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_probe import text

from whyformer import Pieces, Rationale
from whyformer.errors import InputError, MetricError
from whyformer.metrics import answer_tokens
from whyformer.metrics._registry import METRICS

PAIR = Pieces(
    ("[CLS]", "who", "?", "[SEP]", "old", "an", "##na", "sings", "[SEP]"),
    (True, False, False, True, False, False, False, False, True),
    (False,) * 9,
    (None, (0, 3), (3, 4), None, (5, 8), (9, 11), (11, 13), (14, 19), None),
    "who?\nold anna sings",
    5,
)
SCORES = [9.0, 1.0, 0.0, 8.0, 5.0, 4.0, 3.0, 2.0, 7.0]  # by rank: old an ##na sings who ?


def explain_pair(scores=SCORES):
    e = text([[0.0] * 7])
    return replace(e, scores=torch.tensor([scores]), tokens=(PAIR,), names=("pair",))


def value_of(marks, scores=SCORES, **settings):
    return answer_tokens(explain_pair(scores), [marks], **settings).value.item()


def test_by_hand():
    """The answer "anna" is two tokens, ranked 2 and 3 of six; special tokens do not take places."""
    answer = Rationale((0, 0, 1, 0))  # who? old anna sings
    assert [value_of(answer, k=k) for k in (1, 2, 3, 6)] == [0, 0.5, 1, 1]
    assert [value_of(answer, k=k, value="count") for k in (1, 2, 3, 20)] == [0, 1, 2, 2]


def test_a_long_answer_is_measured_by_what_fits_into_the_top():
    assert value_of(Rationale((0, 1, 1, 1)), k=2) == 1  # four tokens, two places, both hit


def test_marks_of_characters_words_and_tokens_agree():
    characters = [0] * 19
    characters[9:13] = [1] * 4
    given = (Rationale(characters, "character"), Rationale((0, 0, 1, 0)), Rationale((0, 0, 0, 1, 1, 0), "token"))
    assert [value_of(marks, k=2) for marks in given] == [0.5] * 3


def test_equal_scores_count_in_reading_order():
    assert value_of(Rationale((1, 0, 0, 0)), [0.0] * 9, k=2) == 1
    assert value_of(Rationale((0, 0, 0, 1)), [0.0] * 9, k=2) == 0


def test_undefined_without_a_marked_token():
    assert np.isnan(value_of(Rationale((0, 0, 0, 0)))) and np.isnan(value_of(Rationale(())))


def test_marks_beyond_the_text_are_words_that_the_model_did_not_see():
    assert value_of(Rationale((0, 0, 1, 0, 1, 1)), k=3) == 1
    with pytest.raises(InputError, match="marks for 2 words, but the text has 4"):
        value_of(Rationale((0, 1)))


def test_against_numpy():
    """Twenty lines of numpy, on random scores, lengths and answers; also the value of the data set."""
    generator = np.random.default_rng(0)
    hits, most, shares, together = [], [], [], []
    rows = []
    for _ in range(40):
        length, k = int(generator.integers(3, 30)), 7
        scores = generator.normal(size=length).round(1)
        marks = (generator.random(length) < 0.3).astype(int)
        top = np.argsort(-scores, kind="stable")[:k]
        hits.append(marks[top].sum())
        most.append(min(k, marks.sum()))
        shares.append(hits[-1] / most[-1] if most[-1] else np.nan)
        e = text([scores.tolist()])
        measured = answer_tokens(e, [Rationale(marks.tolist(), "token")], k=k)
        rows.append(measured.value.item())
        together.append(measured.parts[0])
    np.testing.assert_allclose(rows, shares, atol=1e-12)
    combined = METRICS["answer_tokens"].combine(torch.stack(together))
    assert combined == pytest.approx(sum(hits) / sum(most), abs=1e-12)


def test_the_count_of_a_data_set_is_its_mean():
    e = text([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    marks = [Rationale(m, "token") for m in ((1, 1, 0), (1, 0, 0), (0, 0, 0))]
    measured = answer_tokens(e, marks, k=2, value="count")
    assert measured.value[:2].tolist() == [2, 0] and bool(measured.value[2].isnan())
    assert METRICS["answer_tokens"].combine(measured.parts) == 1


def test_what_it_refuses():
    with pytest.raises(MetricError, match="k must be a whole number >= 1, got 0"):
        value_of(Rationale((0, 0, 1, 0)), k=0)
    with pytest.raises(MetricError, match="value must be one of 'share', 'count'"):
        value_of(Rationale((0, 0, 1, 0)), value="precision")
    with pytest.raises(InputError, match="Got 1 rationales for 2 texts"):
        answer_tokens(text([[1.0], [2.0]]), [Rationale((1,))])
