"""check=True and check(): what the model says with its highest words hidden, and with everything hidden."""

import pytest
import torch
from conftest import animal
from torch import nn

import whyformer as why
from whyformer._engine import Probe
from whyformer.errors import InputError
from whyformer.results.hiding import Hiding

SENTENCE = "a gorgeous, witty, seductive film"


@pytest.fixture(scope="module")
def sentiment():
    return why.open("demo/sentiment")


def ask(model, text, mask=()):
    """P(positive) by the plain model, with the pieces at these positions replaced by the mask token."""
    given = model.tokenizer(text, return_tensors="pt")
    given["input_ids"][0, list(mask)] = model.tokenizer.mask_token_id
    with torch.no_grad():
        return model.module(**given).logits.softmax(-1)[0, 1].item()


def test_hides_the_words_with_half_of_the_positive_scores_and_then_all_words(sentiment):
    e = why.explain(sentiment, SENTENCE, check=True)
    words = e.words()
    scores = words.scores[0].masked_fill(torch.tensor(words.tokens[0].special), 0).clamp(min=0)
    ranked = scores.argsort(descending=True)
    count = 1 + int((scores[ranked].cumsum(0) < scores.sum() / 2).sum())
    spans = [words.tokens[0].spans[i] for i in ranked[:count].tolist()]
    pieces = e.tokens[0]
    highest = [i for i, own in enumerate(pieces.spans) if any(own and a <= own[0] and own[1] <= b for a, b in spans)]
    every = [i for i, special in enumerate(pieces.special) if not special]
    expected = [ask(sentiment, SENTENCE, hidden) for hidden in ((), highest, every)]
    assert e.hiding.answers[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert int(e.hiding.hidden[0]) == count


def test_later_is_the_same_as_at_once(sentiment):
    texts = [SENTENCE, "dull and slow"]
    at_once = why.explain(sentiment, texts, check=True)
    later = why.check(sentiment, why.explain(sentiment, texts))
    assert torch.allclose(later.hiding.answers, at_once.hiding.answers, atol=1e-6)
    assert torch.equal(later.scores, at_once.scores)
    assert [str(e.hiding) for e in later] == [str(e.hiding) for e in at_once]


def test_costs_two_variants_of_each_example(sentiment, monkeypatch):
    rows = []
    keep_only = Probe.keep_only

    def count(self, keep, of, *rest, **named):
        rows.append(len(keep))
        return keep_only(self, keep, of, *rest, **named)

    monkeypatch.setattr(Probe, "keep_only", count)
    why.explain(sentiment, [SENTENCE, "dull and slow"], check=True)
    assert rows == [4]


def test_is_shown_everywhere_and_survives_a_file(sentiment, tmp_path):
    e = why.explain(sentiment, SENTENCE, check=True)
    line = e.hiding.describe()
    assert line in " ".join(str(e).split()) and line.replace(">", "&gt;") in e.to_html()
    e.save(tmp_path / "e.html")
    assert line.replace(">", "&gt;") in (tmp_path / "e.html").read_text()
    e.save(tmp_path / "e.safetensors")
    assert str(why.load(tmp_path / "e.safetensors").hiding) == str(e.hiding)
    row = e.records()[0]
    assert [row["top_hidden"], row["all_hidden"]] == e.hiding.answers[0, 1:].tolist()
    assert why.explain(sentiment, SENTENCE).records()[0]["all_hidden"] is None


class Constant(nn.Module):
    """A classifier that never looks at its input, around one that does."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids, attention_mask=None):
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits * 1e-6 + logits.new_tensor([0.0, 4.0])


def test_says_that_the_words_do_not_decide_an_answer_that_is_given_without_them(sentiment):
    model = why.open(Constant(sentiment.module), tokenizer=sentiment.tokenizer)
    e = why.explain(model, SENTENCE, check=True)
    assert "98 % with every word hidden" in str(e.hiding)
    assert "The model gives the same answer with every word hidden" in " ".join(str(e).split())
    assert not why.explain(sentiment, SENTENCE, check=True).hiding.warn()


def make_hiding(before, top, nothing, *, predicted=True, measure="probability", hidden=2):
    return Hiding(torch.tensor([[before, top, nothing]]), torch.tensor([hidden]), (measure,), ("word",), (predicted,))


def test_warns_by_what_was_measured():
    assert not make_hiding(0.99, 0.5, 0.2).warn()
    assert "same answer with every word" in make_hiding(0.99, 0.987, 0.99).warn()
    assert "same answer with every word" in make_hiding(0.9, 0.2, 0.95).warn()  # surer without any word
    assert not make_hiding(0.1, 0.05, 0.6, predicted=False).warn()  # words speak against a class that was not given
    assert "hardly changes" in make_hiding(0.99, 0.98, 0.2).warn()  # .01 of a distance of .79
    assert not make_hiding(0.99, 0.94, 0.2).warn()
    assert "hardly changes" not in make_hiding(0.9, 0.9, 0.2, hidden=0).warn()  # nothing to hide is said instead
    assert "same answer with every word" in make_hiding(-40.0, -40.0, -40.2, measure="score").warn()


def test_words_and_numbers():
    assert make_hiding(0.99, 0.97, 0.61).describe() == (
        "99 % -> 97 % with the 2 highest words hidden; 61 % with every word hidden"
    )
    assert "with the highest word hidden" in make_hiding(0.9, 0.1, 0.1, hidden=1).describe()
    assert "no word has a positive score" in make_hiding(0.9, 0.9, 0.1, hidden=0).describe()
    assert make_hiding(7.63, 2.0, -1.5, measure="score").describe().startswith("7.63 -> 2 with")


def test_patches_are_hidden_like_words():
    model, pixels = why.open(animal("vit").module), animal("vit").alone(0)
    e = why.explain(model, pixels, "gradient_x_input", check=True)
    with torch.no_grad():
        wanted = model.module(pixel_values=torch.zeros_like(pixels["pixel_values"])).logits.softmax(-1)[0]
    assert e.hiding.units == ("patch",)
    assert float(e.hiding.answers[0, 2]) == pytest.approx(wanted[e.targets[0].index].item(), abs=1e-6)


def test_an_answer_of_several_tokens_keeps_its_tokens_and_has_a_probability_per_token():
    model = why.open("demo/decoder")
    e = why.explain(model, "the keys to the cabinet", answer=" are gone", check=True)
    assert e.hiding.measures == ("per token",) and "(per token)" in str(e.hiding)
    ids = model.tokenizer("the keys to the cabinet are gone", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        log = model.module(input_ids=ids).logits.log_softmax(-1)[0]
    own = [log[at - 1, ids[0, at]].item() for at in (ids.shape[1] - 2, ids.shape[1] - 1)]
    assert float(e.hiding.answers[0, 0]) == pytest.approx(torch.tensor(own).mean().exp().item(), abs=1e-5)


def test_what_cannot_be_hidden_is_said_in_a_note(sentiment, monkeypatch):
    def refuse(*_, **__):
        raise InputError("these inputs cannot be hidden")

    monkeypatch.setattr("whyformer._engine.probe.probe.Probe.keep_only", refuse)
    e = why.explain(sentiment, SENTENCE, check=True)
    assert any("was not checked: these inputs cannot be hidden" in note for note in e.notes)
    with pytest.raises(InputError, match="check=True"):
        _ = e.hiding


def test_wrong_arguments_are_told(sentiment):
    e = why.explain(sentiment, SENTENCE)
    with pytest.raises(InputError, match="True, False or None"):
        why.explain(sentiment, SENTENCE, check="yes")
    with pytest.raises(InputError, match="cannot be combined"):
        why.explain(sentiment, SENTENCE, check=True, windows=True)
    with pytest.raises(InputError, match="not those of the explanation"):
        why.check(sentiment, e, "another text")
    with pytest.raises(InputError, match="not those of the explanation"):
        why.check(sentiment, e.sentences())
    with pytest.raises(InputError, match="needs an Explanation"):
        why.check(sentiment, SENTENCE)
    image = why.explain(animal("vit").module, animal("vit").alone(0), "gradient_x_input")
    with pytest.raises(InputError, match="Pass the inputs"):
        why.check(animal("vit").module, image)
