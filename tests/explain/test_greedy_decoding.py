"""Decoding: one step of it, and what is drawn. Whole continuations are in tests/results/test_generation.py."""

import pytest
import torch
import transformers as hf
from conftest import animal
from tiny_text import byte_pairs, gpt2

import whyformer as why
from whyformer._engine.run.shadow import make_shadow
from whyformer._explain.greedy_decoding import (
    decode_step_by_step,
    draw_token,
    find_end_tokens,
    predict_next_logits,
)
from whyformer.errors import InputError, NonFinite


def test_the_next_token_is_the_most_likely_one():
    model = why.open(animal("gpt").module)
    encoded = model.encode(animal("gpt").alone(0))
    capture = why.record(model, encoded, keep={"mask"})
    logits = predict_next_logits(model, make_shadow(model.module), encoded)
    assert int(logits.argmax()) == capture.targets[0].index


def test_a_classifier_predicts_no_next_token():
    model = why.open(animal("bert").module)
    assert predict_next_logits(model, make_shadow(model.module), model.encode(animal("bert").inputs)) is None


def test_there_is_no_next_token_after_nan():
    model = why.open(animal("gpt").module)
    shadow = make_shadow(model.module)
    shadow.register_forward_hook(lambda module, given, result: torch.full((1, 9, 4), torch.nan))
    with pytest.raises(NonFinite, match="no most likely next token"):
        predict_next_logits(model, shadow, model.encode(animal("gpt").alone(0)))


# --- whole answers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return why.open(gpt2(), tokenizer=byte_pairs())


def test_the_models_own_generate_and_steps_give_the_same_tokens(model):
    prompt = why.generate(model, "the film", max_new_tokens=6)
    start = prompt.ids[: prompt.prompt_length]
    assert list(prompt.answer_ids) == decode_step_by_step(model, start, 6)
    assert prompt.text.startswith("the film") and prompt.answer_text == prompt.text[len("the film") :]


def test_a_module_without_generate(model):
    """A model written by hand, which takes ids only."""
    bare = why.open(animal("gpt").module)
    prompt = why.generate(bare, why.Prompt.from_tokens(bare, [3, 4, 5]), max_new_tokens=4)
    assert list(prompt.answer_ids) == decode_step_by_step(bare, [3, 4, 5], 4)


def test_the_same_seed_draws_the_same_tokens_and_leaves_the_generator_alone(model):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    drawn = [
        why.generate(model, "the film", max_new_tokens=8, temperature=2.0, seed=seed).answer_ids for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.rand(1) == expected
    steps = [decode_step_by_step(model, [5, 6], 8, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert steps[0] == steps[1] != steps[2]


def test_generation_ends_before_an_end_token_of_any_config(model):
    first = why.generate(model, "the film", max_new_tokens=3).answer_ids
    module = gpt2()
    module.generation_config = hf.GenerationConfig(eos_token_id=[first[1], 399])
    ending = why.open(module, tokenizer=byte_pairs())
    assert find_end_tokens(ending) >= {first[1], 399, 0}
    stop = first.index(first[1])
    assert why.generate(ending, "the film", max_new_tokens=3).answer_ids == first[:stop]


def test_the_config_of_the_model_does_not_change_what_is_most_likely(model):
    module = gpt2()
    module.generation_config = hf.GenerationConfig(do_sample=True, temperature=9.0, repetition_penalty=5.0, top_k=3)
    odd = why.open(module, tokenizer=byte_pairs())
    assert (
        why.generate(odd, "the film", max_new_tokens=5).answer_ids
        == why.generate(model, "the film", max_new_tokens=5).answer_ids
    )
    assert module.generation_config.temperature == 9.0 and not module.training


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    """Probabilities 0.5, 0.3, 0.2: up to 0.5 the first, up to 0.8 two, then all."""
    logits = torch.tensor([0.3, 0.5, 0.2]).log()

    def draw(top_p):
        generator = torch.Generator().manual_seed(0)
        return {draw_token(logits, 1.0, top_p, generator) for _ in range(60)}

    assert draw(0.5) == {1} and draw(0.8) == {0, 1} and draw(1.0) == {0, 1, 2}
    generator = torch.Generator().manual_seed(0)
    assert {draw_token(logits, 0.01, 1.0, generator) for _ in range(60)} == {1}  # cold: the likeliest


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(max_new_tokens=0), "max_new_tokens must be a whole number >= 1, got 0"),
        (dict(max_new_tokens=1.5), "max_new_tokens must be a whole number"),
        (dict(temperature=-1), "temperature must be a finite number >= 0, got -1"),
        (dict(temperature=float("nan")), "temperature must be a finite number"),
        (dict(top_p=0), "top_p must be above 0 and at most 1"),
        (dict(seed=-1), "seed must be a whole number >= 0"),
    ],
)
def test_bad_options_are_refused(model, options, reason):
    with pytest.raises(InputError, match=reason):
        why.generate(model, "the film", **options)


def test_a_prompt_that_fills_the_model_leaves_no_room(model):
    with pytest.raises(InputError, match=r"32 tokens.*at most 32, so there is no room for an answer"):
        why.generate(model, why.Prompt.from_tokens(model, [5] * 32))
    with pytest.raises(InputError, match="must be a text, a Prompt or a list of messages, got int"):
        why.generate(model, 3)
