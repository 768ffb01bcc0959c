"""The whole audit: figures on known models, resuming, bad input, the report and the command line."""

import json
import math

import pytest
import torch
from audit.known import Reader, deciding, idle, sentences
from conftest import animal
from tiny_text import wordpiece

import whyformer as why
from whyformer._audit import Audit, audit, protocol
from whyformer._audit.agreement import DELETED, GRADIENT, MASKED
from whyformer._audit.protocol import Auditor
from whyformer._audit.report import make_audit_page
from whyformer.data import read
from whyformer.errors import InputError, MethodError, NoAttention, UnsupportedModel

QUICK = {"draws": 5, "searched": 2, "steps": 3}
TEXTS = [
    "the film is good",
    "not good",
    "the film is not bad !",
    "a bad film",
    "good",
    "the film is not good . a bad film",
]


@pytest.fixture(scope="module")
def model():
    return why.Model(animal("bert").module, "tiny", "text", labels=("a", "b", "c", "d"), tokenizer=wordpiece())


@pytest.fixture(scope="module")
def found(model):
    data = [(text, "abcd"[i % 4]) for i, text in enumerate(TEXTS)]
    return audit(model, data, [1, (2, 0)], methods=["rollout"], checkpoints=[model], **QUICK)


def numbers(value):
    """Every number in a nest of lists and dicts."""
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)
    elif isinstance(value, float):
        yield value


def test_every_figure_is_there_and_none_is_nan(found):
    assert found.attention == ("block 1, mean of heads", "block 2, head 0")
    one = found.summary["attention"]["block 1, mean of heads"]
    assert set(one) == {"agreement", "replacement", "adversarial", "seeds"}
    assert {f"attention ~ {name}" for name in (GRADIENT, "gradient", DELETED, MASKED, "rollout")} <= set(
        one["agreement"]
    )
    assert set(one["replacement"]["kinds"]) == {"permutation", "uniform", "one-hot", "largest", "other"}
    assert all(math.isfinite(number) for number in numbers(found.summary))


def test_what_is_undefined_is_counted_and_stays_out_of_means(found):
    """The text of one word has no order of words, but weights that can be moved: it has special tokens here too."""
    pair = found.summary["attention"]["block 1, mean of heads"]["agreement"][f"attention ~ {GRADIENT}"]
    assert (pair["tau"]["n"], pair["tau"]["undefined"]) == (5, 1)
    rows = found.of("agreement", "block 1, mean of heads")
    defined = [r["pairs"][f"attention ~ {GRADIENT}"]["tau"] for r in rows]
    defined = [tau for tau in defined if tau is not None]
    assert pair["tau"]["mean"] == pytest.approx(sum(defined) / 5)


def test_methods_in_one_word(model):
    made = audit(model, TEXTS[:2], tests=["agreement"], methods="quick")
    assert "attention ~ attcat" in made.summary["attention"]["block 2, mean of heads"]["agreement"]
    one = audit(model, TEXTS[:2], tests=["agreement"], methods="rollout")
    assert "attention ~ rollout" in one.summary["attention"]["block 2, mean of heads"]["agreement"]


def test_the_same_model_as_checkpoint_is_no_distance_away(found):
    assert found.summary["attention"]["block 2, head 0"]["seeds"]["jsd"]["mean"] == pytest.approx(0, abs=1e-12)


def test_is_saved_and_loaded(found, tmp_path):
    found.save(tmp_path / "a.json")
    again = Audit.load(tmp_path / "a.json")
    assert again.summary == found.summary and str(again) == str(found)
    found.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == str(found) + "\n"
    with pytest.raises(InputError, match=r"Supported suffixes: \.html, \.json, \.txt"):
        found.save(tmp_path / "a.pdf")


def test_what_attention_decides_is_said():
    data = [(words, 1) for words in sentences(8)]
    said = audit(deciding(), data, tests=["replacement", "adversarial", "agreement"], draws=20, searched=2, steps=60)
    one = said.summary["attention"]["block 0"]
    assert one["replacement"]["kinds"]["permutation"]["change"]["median"] > 0.7
    assert one["adversarial"]["jsd"]["mean"] < 0.1
    assert one["replacement"]["kinds"]["uniform"]["accuracy"]["before"] == 1
    assert one["replacement"]["kinds"]["uniform"]["accuracy"]["after"] == 0
    assert "its weights decide" in str(said) and "strongly changes most answers" in said.headlines["block 0"]


def test_what_cannot_matter_is_said():
    said = audit(idle(), sentences(6), tests=["replacement"], draws=10)
    one = said.summary["attention"]["block 0"]["replacement"]["kinds"]["permutation"]
    assert one["change"]["median"] < 1e-12 and one["accuracy"] is None
    assert "its weights are not what decides" in str(said)


def test_gradient_and_leave_one_out_by_hand():
    """Attention held, p = 1 / (1 + exp(-2 s)) and s = sum of weights * what a word says: g = p (1 - p) 2 |w v|."""
    from whyformer._audit.choice import choose_attention
    from whyformer._audit.importance import measure_gradient, measure_leave_one_out
    from whyformer._audit.replay import AttentionReplay

    model = idle()
    looks = torch.linspace(-1, 1, 10)
    words = sentences(2)
    replay = AttentionReplay(model, model.encode(words))
    weights = looks[words[0]].double().softmax(0)
    p = 1 / (1 + math.exp(-0.6))
    held = measure_gradient(replay, choose_attention("last", replay.heads)[0])[0]
    torch.testing.assert_close(held, p * (1 - p) * 2 * 0.3 * weights, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(
        measure_gradient(replay)[0], held, rtol=1e-5, atol=1e-7
    )  # looking elsewhere changes nothing here
    assert measure_leave_one_out(replay, "delete")[0].max() < 1e-7  # all words say the same
    deciding_one = AttentionReplay(deciding(), deciding().encode(words))
    through, held = (
        measure_gradient(deciding_one)[0],
        measure_gradient(deciding_one, choose_attention("last", (1,))[0])[0],
    )
    assert not torch.allclose(through, held, rtol=1e-3)  # here the score of the key word counts too
    moved = measure_leave_one_out(deciding_one, "delete")[0]
    assert moved.argmax() == (words[0] == 9).nonzero()[0, 0] and moved.max() > 0.7


# --- going on ---------------------------------------------------------------------------------------------------------


def test_an_audit_that_was_stopped_goes_on(model, tmp_path, monkeypatch):
    settings = {"tests": ["agreement", "replacement", "shape", "adversarial"], **QUICK}
    monkeypatch.setattr(protocol, "BATCH_TOKENS", {"cpu": 32})
    whole = audit(model, TEXTS, 1, **settings)
    calls = []
    whole_batches = Auditor(model, read(TEXTS), 1, None)._batches(Auditor(model, read(TEXTS), 1, None).lengths, TEXTS)
    real = Auditor._replacement

    def stopping(self, replay, choice):
        calls.append(replay.batch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, replay, choice)

    monkeypatch.setattr(Auditor, "_replacement", stopping)
    with pytest.raises(KeyboardInterrupt):
        audit(model, TEXTS, 1, out=tmp_path, **settings)
    assert (tmp_path / "rows.jsonl").read_text().count('"replacement"') == calls[0]
    again = audit(model, TEXTS, 1, out=tmp_path, **settings)
    assert len(calls) == 1 + len(whole_batches)  # the first batch was not made again, the second begun twice
    key = lambda row: (row["test"], row["example"])  # noqa: E731
    for one, other in zip(sorted(whole.rows, key=key), sorted(again.rows, key=key), strict=True):
        assert list(numbers(one)) == pytest.approx(list(numbers(other)), abs=1e-5)
    assert json.loads((tmp_path / "audit.json").read_text())["kind"] == "audit"
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match="holds another audit: draws differ"):
        audit(model, TEXTS, 1, out=tmp_path, **settings | {"draws": 6})


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": 3}, "There is no block 3: the model has 3, 0 to 2."),
        ({"attention": "1:7"}, "There is no head 7: block 1 has 3, 0 to 2."),
        ({"tests": ["permutations"]}, "There is no test 'permutations'."),
        ({"kinds": ["unifrom"]}, "There is no replacement 'unifrom'. Did you mean 'uniform'?"),
        ({"preset": "best"}, "There is no preset 'best'."),
        ({"draws": 0}, "Give 1 or more draws"),
        ({"top": 2}, "top=2 is no share of the tokens"),
        ({"methods": ["rolout"]}, "No method 'rolout'. Did you mean 'rollout'?"),
    ],
)
def test_what_is_not_there_is_refused(model, settings, message):
    with pytest.raises(MethodError, match=message.replace(".", r"\.").replace("?", r"\?")):
        audit(model, TEXTS, **settings)


def test_a_model_without_softmax_attention_is_refused():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(10, 2)

        def forward(self, input_ids):
            return self.words(input_ids).mean(1)

    with pytest.raises(NoAttention, match="no softmax multiplied values"):
        audit(Plain(), sentences(2))


def test_windows_are_refused_by_their_shape():
    import transformers as hf

    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=2
    )
    swin = hf.SwinForImageClassification(config).eval()
    with pytest.raises(UnsupportedModel, match="Windows and changing lengths cannot be audited"):
        audit(swin, list(torch.randn(2, 3, 16, 16)), 0)


def test_inputs_of_one_token_are_reported_as_such():
    made = audit(
        deciding(),
        [torch.tensor([3]), torch.tensor([4]), torch.tensor([9])],
        tests=["agreement", "replacement", "adversarial"],
        **QUICK,
    )
    one = made.summary["attention"]["block 0"]
    assert one["replacement"] == {"undefined": 3, "kinds": {}}
    assert one["adversarial"]["undefined"] == 2 and one["adversarial"]["jsd"]["mean"] is None
    assert one["agreement"][f"attention ~ {GRADIENT}"]["tau"]["mean"] is None
    assert "there is one token" in str(made) and "no order to compare" in str(made) and "nan" not in str(made)
    assert "nan" not in make_audit_page(made)


def test_constant_attention_is_reported_as_undefined():
    flat = why.open(Reader(torch.zeros(10), torch.linspace(-1, 1, 10)))
    made = audit(flat, sentences(4), tests=["agreement", "replacement"], draws=3)
    pair = made.summary["attention"]["block 0"]["agreement"][f"attention ~ {GRADIENT}"]
    assert pair["tau"] == {
        "mean": None,
        "low": None,
        "high": None,
        "spread": None,
        "median": None,
        "n": 0,
        "undefined": 4,
    }
    assert pair["significant"] is None and "no order to compare" in str(made)


def test_a_label_the_model_does_not_know_is_told_and_counts_for_nothing(model):
    found = audit(model, [("good", "e"), ("bad", "a"), ("a bad film", "A_")], tests=["replacement"], **QUICK)
    assert any("1 of 3 labels name no class of the model, such as 'e'" in note for note in found.notes)


def test_checkpoints_of_another_model_are_refused(model):
    other = why.Model(animal("distilbert").module, "other", "text", tokenizer=wordpiece())
    small = why.Model(animal("encoder").module, "small", "text", tokenizer=wordpiece())
    assert audit(model, TEXTS[:2], tests=["seeds"], checkpoints=[other]).summary["attention"]
    with pytest.raises(InputError, match="The checkpoints are not of one model"):
        audit(model, TEXTS[:2], tests=["seeds"], checkpoints=[small])


def test_a_baseline_with_equal_weights_is_compared():
    """Equal weights get the deciding sentences all wrong; a baseline that is the model itself gets them all right."""
    data = [(words, 1) for words in sentences(8)]
    flat = Reader(torch.zeros(10), deciding().module.words.weight[:, 1])
    made = audit(deciding(), data, tests=["baseline"], baseline=flat)
    assert made.summary["baseline"]["model"]["mean"] == 1 and made.summary["baseline"]["uniform"]["mean"] == 0
    assert "does worse." in str(made)
    same = audit(deciding(), data, tests=["baseline"], baseline=deciding())
    assert "does about as well: this data does not need learned attention" in str(same)


# --- pictures, rollout, heads in turn ---------------------------------------------------------------------------------


def test_pictures_and_each_head_in_turn():
    it = animal("vit")
    made = audit(it.module, list(it.inputs["pixel_values"]), ["1:each", "rollout"], **QUICK)
    assert made.attention == ("block 1, head 0", "block 1, head 1", "block 1, head 2", "rollout")
    assert "leave-one-out, removed" in " ".join(made.summary["attention"]["rollout"]["agreement"])
    assert all(math.isfinite(number) for number in numbers(made.summary))
    assert "needs 20 examples" in made.notes[-1]


def test_the_small_model_learns_from_examples_given_for_it(model):
    data = [(TEXTS[i % 6], "ab"[i % 2]) for i in range(20)]
    made = audit(model, data[:4], tests=["diagnostic"], training=data)
    right = made.summary["attention"]["block 2, mean of heads"]["diagnostic"]
    assert right["attention"]["n"] == 4 and 0 <= right["uniform"]["mean"] <= 1
    assert "A small model that weighs tokens as block 2" in str(made)
