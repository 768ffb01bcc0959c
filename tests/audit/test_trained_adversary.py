"""One model with the same answers and other attention over a whole data set."""

import copy

import pytest
import torch
from tiny_text import bert, wordpiece

import whyformer as why
from whyformer._audit.checks import (
    AuditedAttention,
    choose_attention,
    measure_adversary,
    train_adversary,
    trained_adversary,
)
from whyformer._audit.checks.trained_adversary import FLOOR, WEIGHT, take_step
from whyformer._audit.examples import AuditExamples

WORDS = "the film is not good bad a , !".split()
TEXTS = [" ".join(WORDS[(i * k + i // 3) % len(WORDS)] for k in range(2, 7 + i % 3)) for i in range(1, 25)]


@pytest.fixture(scope="module")
def model():
    return why.open(bert(), tokenizer=wordpiece())


@pytest.fixture(scope="module")
def examples(model):
    return AuditExamples(model, TEXTS, [0] * len(TEXTS), [12] * len(TEXTS))


def choose(examples, wanted="last"):
    return choose_attention(wanted, examples.replay([0, 1]).heads)[0]


def measure_loss(model, other, text):
    """The formula of the paper, from what Hugging Face returns."""
    encoded = model.tokenizer(text, return_tensors="pt")
    found = []
    for module in (model.module, other):
        module.set_attn_implementation("eager")
        out = module(**encoded, output_attentions=True)
        found.append((out.logits[0].softmax(-1), out.attentions[-1][0].mean(0)[0]))  # the row of [CLS]
    (base, own), (answer, row) = found
    apart = (row * (row / own.clamp(min=FLOOR)).log()).sum()
    return (answer - base).abs().sum() / 2 - WEIGHT * apart


def test_the_loss_and_its_gradient_are_those_of_the_paper(model, examples):
    other = copy.deepcopy(model.module)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    adversary = why.open(copy.deepcopy(other), tokenizer=model.tokenizer)
    pair = [0, 3]
    wanted = torch.stack([measure_loss(model, other, TEXTS[i]) for i in pair]).mean()
    wanted.backward()
    own = AuditedAttention(examples.replay(pair), choose(examples))
    still = torch.optim.SGD(adversary.module.parameters(), lr=0.0)
    assert take_step(own, adversary, still) == pytest.approx(float(wanted.detach()), abs=1e-8)
    theirs = {
        name: w.grad for name, w in other.named_parameters() if w.grad is not None and "word_embeddings" not in name
    }
    mine = {name: w.grad for name, w in adversary.module.named_parameters() if w.grad is not None}
    assert theirs.keys() == mine.keys()
    scale = max(1.0, float(torch.stack([grad.norm() for grad in theirs.values()]).norm()))  # clipped
    for name, grad in mine.items():
        torch.testing.assert_close(grad * scale, theirs[name], atol=1e-6, rtol=1e-4)


def test_training_moves_attention_farther_than_answers(model, examples, monkeypatch):
    monkeypatch.setattr(trained_adversary, "RATE", 5e-3)
    before = {name: weight.clone() for name, weight in model.module.named_parameters()}
    choice = choose(examples)
    adversary = train_adversary(examples.replay, model, choice, [range(12)], epochs=20)
    assert all(torch.equal(weight, before[name]) for name, weight in model.module.named_parameters())
    rows = measure_adversary(examples.replay(range(12)), examples.replay(range(12), model=adversary), choice)
    assert sum(row["jsd"] for row in rows) / 12 > 0.1 > sum(row["tvd"] for row in rows) / 12
    again = train_adversary(examples.replay, model, choice, [range(12)], epochs=20)
    assert all(map(torch.equal, adversary.module.parameters(), again.module.parameters()))


def test_the_audit_measures_the_half_that_was_not_trained_on(model, tmp_path):
    labelled = [(text, "positive") for text in TEXTS]
    found = why.audit(model, labelled, ["last", "rollout"], tests=["adversary"], adversary_epochs=2, out=tmp_path)
    for name in found.attention:
        rows = found.of("adversary", name)
        assert len(rows) == 24 and sum(bool(row.get("undefined")) for row in rows) == 12
        summary = found.summary["attention"][name]["adversary"]
        assert summary["jsd"]["n"] == 12 and summary["accuracy"]["n"] == 12
    assert "One model, trained to attend elsewhere at block 1" in str(found)
    assert "none of them trained on" in str(found)
    page = (tmp_path / "audit.html").read_text("utf-8")
    assert "Can one model be trained" in page and "may have been trained too short" in page
    kept = sorted((tmp_path / "rows").rglob("*"))
    assert str(why.audit(model, labelled, ["last", "rollout"], tests=["adversary"], adversary_epochs=2, out=tmp_path))
    assert sorted((tmp_path / "rows").rglob("*")) == kept  # nothing was trained again
    assert str(why.Audit.load(tmp_path / "audit.json")) == str(found)


def test_with_training_data_every_example_is_measured(model):
    found = why.audit(model, TEXTS[:3], tests=["adversary"], adversary_epochs=1, training=TEXTS)
    assert found.summary["attention"][found.attention[0]]["adversary"]["jsd"]["n"] == 3


def test_too_few_examples_are_noted_and_other_audits_train_nothing(model):
    few = why.audit(model, TEXTS[:3], tests=["adversary"], adversary_epochs=1)
    assert "needs at least 20 examples" in str(few)
    assert not why.audit(model, TEXTS[:3], tests=["adversary"]).of("adversary", "block 1, mean of heads")
    with pytest.raises(why.WhyformerError, match="adversary_epochs"):
        why.audit(model, TEXTS[:3], adversary_epochs=-1)
