"""The log-odds of an answer: from logits, from the log-probability of a span, and where there is no probability."""

import math

import pytest
import torch
from conftest import animal, build
from games import Game
from torch.testing import assert_close

import whyformer as why
from whyformer import targets
from whyformer._engine.record import record
from whyformer.methods._answers import count_span_tokens, read_clean_answers, to_log_odds

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def log_odds_of(module, inputs, **more):
    model = why.open(module)
    probe = record(model, model.encode(inputs), keep={"probe"}, **more)["probe"]
    return read_clean_answers(probe, "log_odds"), probe


def test_by_hand():
    """p = 1/2 has 0, p = 4/5 has log 4; a probability of one is not infinite, and neither is one that is tiny."""
    found = to_log_odds(torch.tensor([0.5, 0.8], dtype=torch.double).log())
    assert found.tolist() == pytest.approx([0, math.log(4)], abs=1e-12)
    assert 15 < to_log_odds(torch.zeros(1)).item() < 17
    assert to_log_odds(torch.tensor([-1000.0])).item() == -1000


def test_a_class_against_all_others():
    vit = animal("bert")
    found, probe = log_odds_of(vit.module, vit.inputs, target=1)
    p = probe.before.probability.double()
    assert_close(found, torch.log(p / (1 - p)), rtol=0, atol=1e-9)


def test_a_contrast_is_its_own_log_odds():
    bert = animal("bert")
    found, probe = log_odds_of(bert.module, bert.inputs, target=1, versus=0)
    assert_close(found, probe.before.score.double())


def test_a_confident_class_does_not_saturate():
    game = Game(lambda there: 0.0, 1)
    answers = type(game.before)(torch.tensor([90.0]), torch.ones(1), torch.tensor([[90.0, 0.0, 0.0]]))
    game.answers = lambda _: answers
    assert read_clean_answers(game, "log_odds").item() == pytest.approx(90 - math.log(2))


def test_a_span_by_definition():
    """The probability of a span is the product of its tokens', each after those before it."""
    module = build("gpt2")
    span = targets.LogProbability(targets.Tokens(3, 5))
    found, probe = log_odds_of(module, {"input_ids": IDS}, target=span)
    with torch.no_grad():
        p = module(IDS).logits[0].softmax(-1)[[2, 3, 4], IDS[0, 3:]].prod()
    assert_close(found[0], torch.log(p / (1 - p)), rtol=0, atol=1e-9)
    assert count_span_tokens(probe, 0, "logp") == 3


def test_a_sum_of_logits_is_read_as_it_is():
    found, probe = log_odds_of(build("gpt2"), {"input_ids": IDS}, target=targets.Tokens(3, 5))
    assert_close(found, probe.before.score.double())
    assert count_span_tokens(probe, 0, "logp") == 0


def test_a_multi_label_class_is_its_own_log_odds():
    bert = animal("bert")
    before = bert.module.config.problem_type
    bert.module.config.problem_type = "multi_label_classification"
    try:
        found, probe = log_odds_of(bert.module, bert.inputs, target=1)
    finally:
        bert.module.config.problem_type = before
    assert_close(found, probe.before.score.double())
