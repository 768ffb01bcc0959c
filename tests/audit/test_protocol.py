"""The whole audit: statistics on known models, resuming, bad input."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from audit.known import Reader, deciding, idle, sentences
from conftest import animal
from tiny_text import wordpiece

import whyformer as why
from whyformer._audit import Audit, audit, examples
from whyformer._audit.auditor import Auditor
from whyformer._audit.checks.agreement import DELETED, GRADIENT, MASKED
from whyformer.data import read
from whyformer.errors import InputError, MethodError, NoAttention, OutputError, TargetError, UnsupportedModel

QUICK = {"samples": 5, "search_limit": 2, "steps": 3}
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


def test_every_statistic_is_there_and_none_is_nan(found):
    assert found.attention == ("block 1, mean of heads", "block 2, head 0")
    one = found.summary["attention"]["block 1, mean of heads"]
    assert set(one) == {"agreement", "replacement", "adversarial", "seeds"}
    assert {f"attention ~ {name}" for name in (GRADIENT, "gradient", DELETED, MASKED, "rollout")} <= set(
        one["agreement"]
    )
    assert set(one["replacement"]["kinds"]) == {"permutation", "uniform", "one-hot", "largest", "other"}
    assert all(math.isfinite(number) for number in numbers(found.summary))


def test_undefined_examples_are_counted_and_excluded_from_means(found):
    """A text of one word has no ranking, but its weights can be moved: it has special tokens too."""
    pair = found.summary["attention"]["block 1, mean of heads"]["agreement"][f"attention ~ {GRADIENT}"]
    assert (pair["tau"]["n"], pair["tau"]["undefined"]) == (5, 1)
    rows = found.of("agreement", "block 1, mean of heads")
    defined = [r["pairs"][f"attention ~ {GRADIENT}"]["tau"] for r in rows]
    defined = [tau for tau in defined if tau is not None]
    assert pair["tau"]["mean"] == pytest.approx(sum(defined) / 5)


def test_methods_can_be_a_string(model):
    made = audit(model, TEXTS[:2], tests=["agreement"], methods="quick")
    assert "attention ~ attcat" in made.summary["attention"]["block 2, mean of heads"]["agreement"]
    one = audit(model, TEXTS[:2], tests=["agreement"], methods="rollout")
    assert "attention ~ rollout" in one.summary["attention"]["block 2, mean of heads"]["agreement"]


def test_the_same_model_as_a_checkpoint_has_distance_zero(found):
    assert found.summary["attention"]["block 2, head 0"]["seeds"]["jsd"]["mean"] == pytest.approx(0, abs=1e-12)


def test_save_and_load(found, tmp_path):
    found.save(tmp_path / "a.json")
    again = Audit.load(tmp_path / "a.json")
    assert again.summary == found.summary and str(again) == str(found)
    found.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == str(found) + "\n"
    with pytest.raises(InputError, match=r"Supported suffixes: \.html, \.json, \.txt, \.png"):
        found.save(tmp_path / "a.docx")


def test_a_stored_file_loads():
    old = Audit.load(Path(__file__).with_name("stored-audit.json"))
    assert len(old) == 4 and old.attention == ("block 3, mean of heads",)
    assert old.descriptions[0].startswith("Replaced are the weights of all heads of block 3")
    kinds = old.summary["attention"]["block 3, mean of heads"]["replacement"]["kinds"]
    assert kinds["permutation"]["change"]["median"] == pytest.approx(0.0013, rel=0.05)
    assert old.formats[".html"](old).decode().startswith("<!doctype html>")


def test_attention_that_decides_is_reported_as_such():
    data = [(words, 1) for words in sentences(8)]
    tests = ["replacement", "adversarial", "agreement"]
    result = audit(deciding(), data, tests=tests, samples=20, search_limit=2, steps=60)
    one = result.summary["attention"]["block 0"]
    assert one["replacement"]["kinds"]["permutation"]["change"]["median"] > 0.7
    assert one["adversarial"]["jsd"]["mean"] < 0.1
    assert one["replacement"]["kinds"]["uniform"]["accuracy"]["before"] == 1
    assert one["replacement"]["kinds"]["uniform"]["accuracy"]["after"] == 0
    assert "the answers strongly depend on the order of these weights" in str(result)
    assert "strongly changes most answers" in result.headlines["block 0"]
    assert "the search found no other attention weights that give" in result.headlines["block 0"]


def test_attention_that_cannot_matter_is_reported_as_such():
    result = audit(idle(), sentences(6), tests=["replacement"], samples=10)
    one = result.summary["attention"]["block 0"]["replacement"]["kinds"]["permutation"]
    assert one["change"]["median"] < 1e-12 and one["accuracy"] is None
    assert "the answers hardly depend on the order of these weights" in str(result)


def test_gradient_and_leave_one_out_by_hand():
    """Attention held, p = 1 / (1 + exp(-2 s)) and s = sum of weights * values: g = p (1 - p) 2 |w v|."""
    from whyformer._audit.checks.attention_choice import choose_attention
    from whyformer._audit.checks.importance import measure_gradient, measure_leave_one_out
    from whyformer._audit.reruns import AttentionReplay

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
    )  # other attention changes nothing here
    assert measure_leave_one_out(replay, "delete")[0].max() < 1e-7  # all words have the same value
    deciding_one = AttentionReplay(deciding(), deciding().encode(words))
    through, held = (
        measure_gradient(deciding_one)[0],
        measure_gradient(deciding_one, choose_attention("last", (1,))[0])[0],
    )
    assert not torch.allclose(through, held, rtol=1e-3)  # here the score of the key word counts too
    moved = measure_leave_one_out(deciding_one, "delete")[0]
    assert moved.argmax() == (words[0] == 9).nonzero()[0, 0] and moved.max() > 0.7


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_an_interrupted_audit_continues(model, tmp_path, monkeypatch):
    settings = {"tests": ["agreement", "replacement", "shape", "adversarial"], **QUICK}
    texts = TEXTS[:4]
    monkeypatch.setattr(examples, "BATCH_TOKENS", {"cpu": 32})
    whole = audit(model, texts, 1, **settings)
    calls = []
    whole_batches = Auditor(model, read(texts), 1, SimpleNamespace(target=None)).examples.make_batches()
    real = Auditor.run_replacement

    def stopping(self, replay, choice, advance=None):
        calls.append(replay.batch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, replay, choice, advance)

    monkeypatch.setattr(Auditor, "run_replacement", stopping)
    with pytest.raises(KeyboardInterrupt):
        audit(model, texts, 1, out=tmp_path, **settings)
    written = "".join(file.read_text() for file in (tmp_path / "rows").iterdir())
    assert written.count('"replacement"') == calls[0]
    again = audit(model, texts, 1, out=tmp_path, **settings)
    assert len(calls) == 1 + len(whole_batches)  # the first batch is not computed again, the second is started twice
    key = lambda row: (row["test"], row["example"])  # noqa: E731
    for one, other in zip(sorted(whole.rows, key=key), sorted(again.rows, key=key), strict=True):
        assert list(numbers(one)) == pytest.approx(list(numbers(other)), abs=1e-5)
    assert json.loads((tmp_path / "audit.json").read_text())["kind"] == "audit"
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")
    with pytest.raises(OutputError, match="holds another audit: draws differ"):
        audit(model, texts, 1, out=tmp_path, **settings | {"samples": 6})


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": 3}, "There is no block 3: the model has 3, 0 to 2."),
        ({"attention": "1:7"}, "There is no head 7: block 1 has 3, 0 to 2."),
        ({"tests": ["permutations"]}, "There is no test 'permutations'."),
        ({"kinds": ["unifrom"]}, "There is no replacement 'unifrom'. Did you mean 'uniform'?"),
        ({"preset": "best"}, "There is no preset 'best'."),
        ({"samples": 0}, "samples must be >= 1, got 0."),
        ({"search_limit": 0}, "search_limit must be >= 1, got 0. Pass None for all examples."),
        ({"top": 2}, "top must be a share of the tokens, > 0 and <= 1, got 2."),
        ({"methods": ["rolout"]}, "No method 'rolout'. Did you mean 'rollout'?"),
    ],
)
def test_unknown_settings_are_refused(model, settings, message):
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


def test_windowed_attention_is_refused():
    import transformers as hf

    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=2
    )
    swin = hf.SwinForImageClassification(config).eval()
    with pytest.raises(UnsupportedModel, match="examples are divided"):
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
    assert "there is only one token to attend to" in str(made) and "cannot be compared" in str(made)
    assert "nan" not in str(made)
    assert "nan" not in made.formats[".html"](made).decode()


def test_constant_attention_is_reported_as_undefined():
    flat = why.open(Reader(torch.zeros(10), torch.linspace(-1, 1, 10)))
    made = audit(flat, sentences(4), tests=["agreement", "replacement"], samples=3)
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
    assert pair["significant"] is None and "cannot be compared" in str(made)


def test_a_label_the_model_does_not_have_is_noted_and_ignored(model):
    found = audit(model, [("good", "e"), ("bad", "a"), ("a bad film", "A_")], tests=["replacement"], **QUICK)
    assert any("1 of 3 labels are not classes of the model, for example 'e'." in note for note in found.notes)


def test_checkpoints_of_another_model_are_refused(model):
    other = why.Model(animal("distilbert").module, "other", "text", tokenizer=wordpiece())
    small = why.Model(animal("encoder").module, "small", "text", tokenizer=wordpiece())
    assert audit(model, TEXTS[:2], tests=["seeds"], checkpoints=[other]).summary["attention"]
    with pytest.raises(InputError, match="not a checkpoint of the same model"):
        audit(model, TEXTS[:2], tests=["seeds"], checkpoints=[small])


def test_a_baseline_with_uniform_attention_is_compared():
    """Uniform weights get all deciding sentences wrong; the model itself as its baseline gets them all right."""
    data = [(words, 1) for words in sentences(8)]
    flat = Reader(torch.zeros(10), deciding().module.words.weight[:, 1])
    made = audit(deciding(), data, tests=["baseline"], baseline=flat)
    assert made.summary["baseline"]["model"]["mean"] == 1 and made.summary["baseline"]["uniform"]["mean"] == 0
    assert "The same model trained with uniform attention is less accurate." in str(made)
    same = audit(deciding(), data, tests=["baseline"], baseline=deciding())
    assert "not significantly different in accuracy: this does not show that the data needs learned attention" in str(
        same
    )


# --- images, rollout, heads in turn -----------------------------------------------------------------------------------


def test_images_and_each_head_in_turn():
    it = animal("vit")
    made = audit(it.module, list(it.inputs["pixel_values"]), ["1:each", "rollout"], **QUICK)
    assert made.attention == ("block 1, head 0", "block 1, head 1", "block 1, head 2", "rollout")
    assert "leave-one-out, removed" in " ".join(made.summary["attention"]["rollout"]["agreement"])
    assert all(math.isfinite(number) for number in numbers(made.summary))
    assert "needs at least 20 examples" in made.notes[-1]


def test_the_diagnostic_model_learns_from_training_examples(model):
    data = [(TEXTS[i % 6], "ab"[i % 2]) for i in range(20)]
    made = audit(model, data[:4], tests=["diagnostic"], training=data)
    right = made.summary["attention"]["block 2, mean of heads"]["diagnostic"]
    assert right["attention"]["n"] == 4 and 0 <= right["uniform"]["mean"] <= 1
    assert "A small model that weights tokens by block 2" in str(made)


def test_importance_is_that_of_the_target():
    """With another class as target, gradients and leave-one-out are those of that class; the predictions stay."""
    words = ["a gorgeous, witty film", "a dull and lifeless mess"]
    model = why.open("demo/sentiment")
    settings = {"tests": ["agreement"], "methods": ["gradient_x_input"]}
    predicted, chosen = (why.audit(model, words, target=target, **settings) for target in (None, "negative"))

    def pairs(result, example):
        return next(row["pairs"] for row in result.rows if row["test"] == "agreement" and row["example"] == example)

    assert pairs(chosen, 1) == pairs(predicted, 1)  # predicted negative
    assert pairs(chosen, 0) != pairs(predicted, 0)
    answers = [[row["predicted"] for row in r.rows if row["test"] == "answer"] for r in (predicted, chosen)]
    assert answers[0] == answers[1]
    assert chosen.settings["target"] == "negative" and "target" not in predicted.settings
    with pytest.raises(TargetError, match="There is no class 'negatve'"):
        why.audit(model, words, target="negatve", **settings)
    with pytest.raises(TargetError, match=r"Use judge\(\), which takes every target"):
        why.audit(model, words, target=why.targets.Group("negative", "positive"), **settings)
