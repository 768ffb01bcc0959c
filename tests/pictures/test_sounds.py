"""Sounds between words: one explanation over both."""

import pytest
import torch
from families.cases import ModelClass, build_case
from families.outcome import take_second
from torch.testing import assert_close

import whyformer as why

VOXTRAL = ModelClass("seq2seq", "voxtral", "VoxtralForConditionalGeneration")
SOUND_TOKEN = 102


@pytest.fixture(scope="module")
def voxtral():
    case = build_case(VOXTRAL)
    return case.module, take_second(case.inputs)


@pytest.mark.parametrize("method", ["libragrad", "attnlrp", "rollout", "leave_one_out"])
def test_sound_and_words_are_scored(voxtral, method):
    module, inputs = voxtral
    e = why.explain(module, inputs, method, target=7)
    count = int((inputs["input_ids"] == SOUND_TOKEN).sum())
    assert e.streams == {"sound": slice(0, count), "words": slice(count, inputs["input_ids"].size(1))}
    assert bool(e.stream("sound").scores.any()) and bool(e.stream("words").scores.any())


def test_features_of_the_sound_are_scored_by_hand(voxtral):
    """Gradient times what the language model is given, at the placeholders."""
    module, inputs = voxtral
    held = []

    def hold(_, args, given):
        held.append(given["inputs_embeds"].detach().requires_grad_())
        return args, {**given, "inputs_embeds": held[0].clone()}

    handle = module.get_decoder().register_forward_pre_hook(hold, with_kwargs=True)
    module(**inputs).logits[0, -1, 7].backward()
    handle.remove()
    wanted = (held[0] * held[0].grad).sum(-1)[0].detach()
    is_sound = inputs["input_ids"][0] == SOUND_TOKEN
    e = why.explain(module, inputs, "gradient_x_input", target=7)
    assert_close(e.stream("sound").scores[0], wanted[is_sound], rtol=1e-4, atol=1e-6)
    assert_close(e.stream("words").scores[0], wanted[~is_sound], rtol=1e-4, atol=1e-6)


def test_another_sound_changes_the_scores_of_the_sound(voxtral):
    module, inputs = voxtral
    other = {**inputs, "input_features": inputs["input_features"].flip(-1)}
    before, after = (
        why.explain(module, given, "attnlrp", target=7).stream("sound").scores for given in (inputs, other)
    )
    assert not torch.allclose(before, after)
