"""Greedy decoding: one step of it. Whole continuations are in tests/results/test_generation.py."""

import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer._engine.shadow import make_shadow
from whyformer._explain.greedy_decoding import predict_likeliest_token
from whyformer.errors import NonFinite


def test_the_next_token_is_the_most_likely_one():
    model = why.open(animal("gpt").module)
    encoded = model.encode(animal("gpt").alone(0))
    capture = why.record(model, encoded, keep={"mask"})
    assert predict_likeliest_token(model, make_shadow(model.module), encoded) == capture.targets[0].index


def test_a_classifier_predicts_no_next_token():
    model = why.open(animal("bert").module)
    assert predict_likeliest_token(model, make_shadow(model.module), model.encode(animal("bert").inputs)) is None


def test_there_is_no_next_token_after_nan():
    model = why.open(animal("gpt").module)
    shadow = make_shadow(model.module)
    shadow.register_forward_hook(lambda module, given, result: torch.full((1, 9, 4), torch.nan))
    with pytest.raises(NonFinite, match="no most likely next token"):
        predict_likeliest_token(model, shadow, model.encode(animal("gpt").alone(0)))
