"""Answers that a model is certain of: log-odds still say where they come from, where the slope of log p is 0."""

import math
from functools import cache

import pytest
import torch
import transformers as hf
from tiny_prompts import PASSAGES, decoder, make_prompt

import whyformer as why
from whyformer._engine.targets.terms import CONVERSIONS, compute_tempered_log_odds
from whyformer.demo import reader
from whyformer.targets import Answer, parse

CERTAIN = 40.0  # times the logits


@cache
def certain(dtype=torch.float32, factor=CERTAIN):
    """A stock Llama whose answers have probability 1 in float32."""
    torch.manual_seed(0)
    module = hf.LlamaForCausalLM(decoder().module.config).eval()
    with torch.no_grad():
        module.model.norm.weight.mul_(factor)
    return why.open(module.to(dtype), tokenizer=decoder().tokenizer)


def answer_likeliest(model):
    """The prompt with the two tokens that the model finds likeliest."""
    return why.generate(model, make_prompt().without_answer(), max_new_tokens=2)


def sum_log_odds(prompt):
    """The same score as a function of the output."""
    places = torch.tensor([place - 1 for place in prompt.answer])

    def odds(output):
        rows = output.logits[0, places].float()
        own = rows.gather(1, torch.tensor(prompt.answer_ids)[:, None])
        others = rows.scatter(1, torch.tensor(prompt.answer_ids)[:, None], -torch.inf).logsumexp(1)
        return (own[:, 0] - others).sum()[None]

    return odds


@pytest.mark.parametrize("method", ["attnlrp", "libragrad", "gradient_x_input"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_odds_have_a_slope_where_log_p_has_none(method, dtype):
    model = certain(dtype)
    prompt = answer_likeliest(model)
    log_p = why.explain(model, prompt, method, target=Answer(score="logp"))
    assert log_p.targets[0].score > -1e-3
    found = why.explain(model, prompt, method, target=Answer(score="log_odds"))
    wanted = why.explain(model, prompt, method, target=sum_log_odds(prompt))
    largest = float(wanted.scores.abs().max())
    assert largest > 100 * float(log_p.scores.abs().max()) and found.targets[0].score > 10
    assert float((found.scores - wanted.scores).abs().max()) < (1e-4 if dtype is torch.float32 else 0.03) * largest


@pytest.mark.parametrize("score", ["log_odds", "tempered"])
@pytest.mark.parametrize("method", ["attnlrp", "libragrad", "cp_lrp"])
def test_planned_runs_agree_with_full_ones(method, score):
    prompt = answer_likeliest(certain())
    with why.engine(plan=True):
        planned = why.explain(certain(), prompt, method, target=Answer(score=score))
    with why.engine(plan=False):
        full = why.explain(certain(), prompt, method, target=Answer(score=score))
    torch.testing.assert_close(planned.scores, full.scores, rtol=1e-3, atol=1e-4 * float(full.scores.abs().max()))
    assert planned.targets[0].label == full.targets[0].label and planned.targets[0].label.startswith("log-odds of ")
    assert planned.targets[0].score == pytest.approx(full.targets[0].score, rel=1e-4)


def test_log_odds_are_the_sum_over_the_tokens():
    prompt = make_prompt()
    whole = why.explain(decoder(), prompt, "attnlrp", target=Answer(score="log_odds"))
    tokens = range(len(prompt.answer))
    parts = [why.explain(decoder(), prompt, "attnlrp", target=Answer(n, score="log_odds")) for n in tokens]
    torch.testing.assert_close(whole.scores, sum(part.scores for part in parts), rtol=1e-5, atol=1e-6)
    again = why.explain(decoder(), prompt, "attnlrp", target=parse(whole.targets[0].spec))
    assert whole.targets[0].spec.startswith("logodds:answer-tokens") and torch.equal(again.scores, whole.scores)


def test_tempered_log_odds_by_hand():
    """Three logits with a standard deviation of 10: the temperature is 4. One of -inf does not count."""
    spread = 10 * math.sqrt(3 / 2)
    for row in ([spread, 0.0, -spread], [spread, 0.0, -spread, -math.inf]):
        logits = torch.tensor([row], dtype=torch.double, requires_grad=True)
        found = compute_tempered_log_odds(logits, torch.tensor([0]))
        assert float(found.detach()) == pytest.approx(spread - math.log(1 + math.exp(-spread)))
        (slope,) = torch.autograd.grad(found.sum(), logits)
        share = 1 / (1 + math.exp(-spread / 4))
        assert slope[0].tolist()[:3] == pytest.approx([1.0, -share, share - 1]) and slope[0, 3:].sum() == 0
    flat = torch.tensor([[2.0, 0.0, 1.0]], requires_grad=True)
    slopes = [torch.autograd.grad(of(flat, torch.tensor([0])).sum(), flat)[0] for of in CONVERSIONS.values()]
    assert torch.equal(slopes[1], slopes[2]) and list(CONVERSIONS)[1:] == ["log_odds", "tempered"]


def test_a_sharper_model_is_explained_like_itself_by_tempered_log_odds_alone():
    scores = {}
    for factor in (CERTAIN, 2 * CERTAIN):
        prompt = answer_likeliest(certain(factor=factor))
        for score in ("log_odds", "tempered"):
            found = why.explain(certain(factor=factor), prompt, "attnlrp", target=Answer(score=score))
            scores[score, factor] = found.scores / factor
            assert found.targets[0].label.startswith("log-odds of ") and found.targets[0].score > 10
    size = float(scores["tempered", CERTAIN].abs().max())
    apart = {name: float((scores[name, CERTAIN] - scores[name, 2 * CERTAIN]).abs().max()) / size for name, _ in scores}
    assert apart["tempered"] < 1e-4 < apart["log_odds"]


def choose_questions(count):
    """Questions whose answer is in one passage only."""
    every = reader.generate(20, seed=902)
    return [one for one in every if sum(one.answer in passage.text for passage in one.passages) == 1][:count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_answer_rests_on_the_planted_passage_where_it_is_certain(dtype):
    """The reader with its last norm scaled by 3; with log p the planted passage came first in 1 of 10."""
    bundled = why.open("demo/reader")
    module = bundled.module.to(dtype)
    with torch.no_grad():
        module.model.norm.weight.mul_(3)
    model = why.open(module, tokenizer=bundled.tokenizer)
    for question in choose_questions(1):
        prompt = why.Prompt.from_text(model, question.text, answer=f" {question.answer}")
        cited = why.cite(model, prompt)
        assert cited.log_probability > -1e-3
        assert [one.text for one in cited.rests_on] == [question.passages[question.source].text]
        assert cited[0] == cited.rests_on[0] and cited.claim.how == "one"
        assert [one.name for one in cited.apart] == ["question"] and len(cited) == len(question.passages)


def test_passages_of_the_tiny_decoder_are_scored_in_log_odds():
    cited = why.cite(decoder(), make_prompt(), by=PASSAGES, effort="fast")
    logit = why.explain(decoder(), make_prompt(), "attnlrp", target=Answer(score="logp"))
    assert cited[0].score != pytest.approx(float(logit.scores[0, cited[0].start : cited[0].stop].sum()))
