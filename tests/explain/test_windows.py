"""Texts that are longer than the model, in overlapping windows."""

import pytest
import torch
import transformers as hf
from tiny_text import WORDS, bert, byte_pairs, gpt2, unigram, wordpiece
from tiny_tokenizers import SlowPieces
from tokenizers.processors import TemplateProcessing

import whyformer
from whyformer import explain, targets
from whyformer._model.text import split_into_windows, tokenize_text
from whyformer.errors import InputError, MethodError, WhyformerError
from whyformer.results.windows import COUNTS

LONG = " ".join(["the film is not good ! a bad film . the good film is bad , a go"] * 2)  # 36 tokens
SHORT = "the film is bad"


@pytest.fixture(scope="module")
def model():
    """Accepts 16 tokens: 14 beside [CLS] and [SEP]."""
    return whyformer.open(bert(), tokenizer=wordpiece())


@pytest.fixture(scope="module")
def language_model():
    return whyformer.open(gpt2(), tokenizer=byte_pairs())


def ids_of_window(model, places):
    """The ids of a window, made slowly: [CLS], these words, [SEP]."""
    ids = model.tokenizer(LONG)["input_ids"]
    return torch.tensor([[ids[0], *(ids[place] for place in places), ids[-1]]])


STARTS = (1, 11, 21, 23)  # 14 words each, 4 shared; the last is moved back so that it is full


def test_windows_by_hand(model):
    """Nine tokens between special ones in windows of 6 that share one; the last begins earlier, so that it is full."""
    one = model.tokenize("the film is not good bad a the film")
    windows = split_into_windows(one, 6, 1, "the text")
    assert [window.places for window in windows] == [
        (0, 1, 2, 3, 4, 10), (0, 4, 5, 6, 7, 10), (0, 6, 7, 8, 9, 10)
    ]  # fmt: skip
    assert [window.text.pieces for window in windows][1] == ("[CLS]", "not", "good", "bad", "a", "[SEP]")
    assert one.text[slice(*windows[1].span)] == "not good bad a"


@pytest.mark.parametrize(("size", "shared"), [(3, 0), (5, 2), (16, True), (37, 3), (38, 0)])
def test_windows_cover_the_text_in_order(model, size, shared):
    one = tokenize_text(model.tokenizer, LONG, "the text")
    windows = split_into_windows(one, size, shared, "the text")
    assert {place for window in windows for place in window.places} == set(range(len(one)))
    assert all(len(window.places) <= size for window in windows)
    assert len({len(window.places) for window in windows}) == 1
    assert [window.places for window in windows] == sorted({window.places for window in windows})


@pytest.mark.parametrize("method", ["libragrad", "rollout", "leave_one_out"])
def test_a_score_is_the_mean_over_the_windows_of_its_token(model, method):
    """Each window explained alone from its ids, with the class of the mean logits, and averaged slowly."""
    e = explain(model, LONG, method, windows=4)
    with torch.no_grad():
        logits = torch.stack([model.module(ids_of_window(model, range(s, s + 14))).logits[0] for s in STARTS])
    target = int(logits.mean(0).argmax())
    totals, counts = torch.zeros(38).double(), torch.zeros(38)
    for start in STARTS:
        places = [0, *range(start, start + 14), 37]
        alone = explain(model, ids_of_window(model, range(start, start + 14)), method, target=target)
        totals[places] += alone.scores[0]
        counts[places] += 1
    torch.testing.assert_close(e.scores[0], totals / counts)
    assert e.targets[0].index == target and e.targets[0].predicted
    assert e.targets[0].score == pytest.approx(float(logits[:, target].mean()))
    assert e.targets[0].probability == pytest.approx(float(logits.mean(0).softmax(-1)[target]), rel=1e-6)
    assert [window.score for window in e.windows[0]] == pytest.approx(logits[:, target].tolist())
    assert [window.answer for window in e.windows[0]] == logits.argmax(-1).tolist()
    assert torch.equal(e.details[COUNTS][0], counts.double())
    assert e.tokens[0].text == LONG and [LONG[slice(*span)] for span in e.tokens[0].spans[1:3]] == ["the", "film"]


def test_the_rule_for_sums(model):
    """Weighted by the windows of each token, scores add up to the mean over the windows of their sums."""
    e = explain(model, LONG, "libragrad", target="positive", windows=4)
    sums = [
        float(explain(model, ids_of_window(model, range(s, s + 14)), "libragrad", target=2).scores.sum())
        for s in STARTS
    ]
    weighted = float((e.details[COUNTS] * e.scores).sum()) / len(STARTS)
    assert weighted == pytest.approx(sum(sums) / len(sums))


def test_a_text_that_fits_is_explained_as_usual(model):
    plain, windowed = explain(model, SHORT, "libragrad"), explain(model, SHORT, "libragrad", windows=True)
    assert torch.equal(plain.scores, windowed.scores) and plain.targets == windowed.targets
    assert plain.notes == windowed.notes and len(windowed.windows[0]) == 1


def test_long_and_short_texts_together_are_as_alone(model):
    both = explain(model, [SHORT, LONG], "libragrad", windows=4)
    for i, text in enumerate((SHORT, LONG)):
        alone = explain(model, text, "libragrad", windows=4)
        torch.testing.assert_close(both.scores[i, : alone.scores.shape[1]], alone.scores[0])
        assert [w.span for w in both.windows[i]] == [w.span for w in alone.windows[0]]
        assert [w.score for w in both.windows[i]] == pytest.approx([w.score for w in alone.windows[0]])
        assert both.targets[i].index == alone.targets[0].index
    assert not both.scores[0, 6:].any()


def test_a_note_says_what_was_done_and_what_the_windows_predict(model):
    (note,) = explain(model, LONG, "rollout", windows=4).notes
    assert note.startswith("The text is 38 tokens long, and the model accepts 16: it was explained in 4 overlapping ")
    assert "Predictions of the windows: " in note


def test_of_a_pair_the_first_text_is_in_every_window():
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    model = whyformer.open(bert(), tokenizer=tokenizer)
    e = explain(model, [("the good film", LONG)], "rollout", windows=2)
    counts = e.details[COUNTS][0]
    assert counts[:5].tolist() == [len(e.windows[0])] * 5 and counts[5] == 1
    assert e.tokens[0].text.startswith("the good film\nthe film is not")
    with pytest.raises(InputError, match=r"the first text of a pair\) are 16. Shorten the first text") as refusal:
        explain(model, [("the " * 13, LONG)], "rollout", windows=2)
    assert refusal.value.code == "E_TXT_TOO_LONG"
    explain(model, [("the " * 12, LONG)], "rollout", windows=0)  # the way out


def test_a_language_model_predicts_from_its_last_window(language_model):
    text = f"{LONG} {SHORT}"
    e = explain(language_model, text, "libragrad", windows=True)
    ids = torch.tensor([language_model.tokenizer(text)["input_ids"][-32:]])
    alone = explain(language_model, ids, "libragrad")
    torch.testing.assert_close(e.scores[0, -32:], alone.scores[0])
    assert not e.scores[0, :-32].any()
    assert e.targets[0].index == alone.targets[0].index
    assert e.targets[0].position == e.scores.shape[1] - 1
    assert "it predicts from the last 32 tokens, and those before them score 0" in e.notes[0]


def test_works_for_tokenizers_of_other_kinds():
    for tokenizer, words in ((unigram(), 80), (SlowPieces(), 40)):
        model = whyformer.open(bert(words), tokenizer=tokenizer)
        e = explain(model, LONG, "rollout", windows=True)
        assert len(e.windows[0]) > 1 and bool((e.details[COUNTS] > 0).all())


def test_too_long_without_windows_names_the_way_out(model):
    with pytest.raises(InputError, match=r"accepts at most 16.*windows=True"):
        explain(model, LONG)
    assert explain(model, LONG, windows=True).scores.shape == (1, 38)


@pytest.mark.parametrize(
    ("windows", "message"), [(-1, "windows must be True"), ("yes", "windows must be True"), (14, "must be below 14")]
)
def test_wrong_numbers_of_shared_tokens(model, windows, message):
    with pytest.raises(InputError, match=message) as refusal:
        explain(model, LONG, "rollout", windows=windows)
    assert refusal.value.code == "E_OPTION"


@pytest.mark.parametrize(("method", "setting"), [("libragrad", "health"), ("rollout", "per_layer")])
def test_settings_of_a_single_pass_are_refused(model, method, setting):
    with pytest.raises(MethodError, match=f"{setting}=True cannot be combined with windows"):
        explain(model, LONG, method, windows=True, **{setting: True})


def test_answers_that_belong_to_some_tokens_are_refused():
    """A class for every token: the way out is to explain a part of the text."""
    model = make_token_classifier()
    with pytest.raises(
        InputError, match=r"\(token class\) belongs to some tokens. Cut the text to the part"
    ) as refusal:
        explain(model, LONG, "rollout", windows=True)
    assert refusal.value.code == "E_OPTION"
    explain(model, LONG[:40], "rollout")


def make_token_classifier():
    return whyformer.open(hf.BertForTokenClassification(bert().config).double().eval(), tokenizer=wordpiece())


def test_a_group_of_classes_is_the_mean_over_the_windows(model):
    group = targets.Group("negative", "positive")
    e = explain(model, LONG, "libragrad", target=group, windows=4)
    parts = [explain(model, LONG, "libragrad", target=name, windows=4) for name in ("negative", "positive")]
    assert e.targets[0].score == pytest.approx(sum(part.targets[0].score for part in parts))
    assert e.targets[0].probability is None


def test_windows_are_for_texts():
    model = whyformer.open(bert())
    with pytest.raises(InputError, match=r"windows= splits texts, but .* was opened without a tokenizer"):
        explain(model, torch.tensor([[2, 5, 6, 3]]), "rollout", windows=True)


def test_windows_survive_saving_and_sums(model, tmp_path):
    e = explain(model, [SHORT, LONG], "rollout", windows=4)
    for suffix in (".json", ".safetensors"):
        e.save(tmp_path / f"e{suffix}")
        assert whyformer.load(tmp_path / f"e{suffix}").windows == e.windows
    assert e.sentences().windows == e.windows and e[1].windows == e.windows[1:]
    assert float(e.sentences().scores.sum()) == pytest.approx(float(e.scores.sum()))
    with pytest.raises(WhyformerError, match=r"not made in windows. Pass windows=True"):
        _ = explain(model, SHORT, "rollout").windows


def test_unknown_tokens_are_noted_once_for_the_text(model):
    assert (
        explain(model, f"{LONG} xyz", "rollout", windows=4).notes.count(
            "The model cannot read 1 of 37 tokens of the text: 'xyz'."
        )
        == 1
    )
    assert "xyz" not in WORDS
