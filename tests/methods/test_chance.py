"""Chance."""

import copy
from dataclasses import replace

import pytest
import torch
from conftest import animal
from PIL import Image
from torch.testing import assert_close

import whyformer as why
from whyformer import explain
from whyformer._model.variants import pick_examples
from whyformer.methods import chance


def mask_of(*lengths, tokens=6, left=False):
    places = torch.arange(tokens).expand(len(lengths), tokens)
    length = torch.tensor(lengths)[:, None]
    return places >= tokens - length if left else places < length


def test_is_uniform():
    """Mean 1/2, variance 1/12, about 2000 in each tenth."""
    scores = chance(mask_of(20_000, tokens=20_000), [3])
    assert_close(scores.mean().item(), 0.5, atol=0.01, rtol=0)
    assert_close(scores.var().item(), 1 / 12, atol=0.005, rtol=0)
    assert torch.histc(scores, 10, 0, 1).min() > 1800


def test_is_the_same_every_time_and_leaves_the_dice_of_others_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = chance(mask_of(6), [3])
    torch.manual_seed(2)
    assert torch.equal(chance(mask_of(6), [3]), first)
    torch.manual_seed(1)
    chance(mask_of(6), [3])
    assert torch.equal(torch.get_rng_state(), before)


def test_depends_on_the_example_not_on_its_place():
    together = chance(mask_of(6, 4, 5), [7, 8, 9])
    turned = chance(mask_of(5, 4, 6), [9, 8, 7])
    assert torch.equal(turned, together.flip(0))
    assert torch.equal(chance(mask_of(4), [8]), together[1:2])


@pytest.mark.parametrize("left", [False, True])
def test_padding_gets_nothing_and_changes_nothing(left):
    mask = mask_of(4, left=left)
    scores = chance(mask, [8])
    assert torch.equal(scores[mask], chance(mask_of(4, tokens=4), [8])[0])
    assert (scores[~mask] == 0).all()


def test_another_seed_or_example_gives_other_scores():
    scores = [chance(mask_of(6), [mark], seed=seed) for seed in (0, 1, 12) for mark in (0, 1, 3, 23)]
    distinct = {tuple(each[0].tolist()) for each in scores}
    assert len(distinct) == len(scores)


def test_seed_and_example_do_not_run_together():
    """(1, 23) is not (12, 3)."""
    assert not torch.equal(chance(mask_of(6), [23], seed=1), chance(mask_of(6), [3], seed=12))


def test_takes_fingerprints_of_any_size_and_kind():
    huge = 2**63 - 1
    scores = chance(mask_of(6, 6), [huge, -5])
    assert torch.equal(chance(mask_of(6, 6), torch.tensor([huge, -5])), scores)
    assert torch.equal(chance(mask_of(6, 6), (huge, -5)), scores)


def test_an_example_without_tokens_gets_none():
    assert torch.equal(chance(mask_of(0), [1]), torch.zeros(1, 6, dtype=torch.double))


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", ["vit", "bert"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_does_not_depend_on_the_dtype_of_the_model(name, dtype):
    """Float32 inputs lose digits in bfloat16; the scores are drawn for the example before that."""
    it = animal(name)
    inputs = {key: value.float() if value.is_floating_point() else value for key, value in it.inputs.items()}
    modules = [copy.deepcopy(it.module).to(kind) for kind in (torch.float32, dtype)]
    expected, found = (explain(module, inputs, "chance").scores for module in modules)
    assert torch.equal(found, expected)
    assert len({tuple(row.tolist()) for row in expected}) == len(expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_image_gets_the_same_scores_in_every_dtype(dtype):
    model = why.open("demo/untrained-vit")
    image = Image.effect_noise((32, 32), 80)
    other = replace(model, module=copy.deepcopy(model.module).to(dtype))
    assert torch.equal(explain(other, image, "chance").scores, explain(model, image, "chance").scores)


def test_a_changed_input_gets_other_scores_although_the_original_is_kept():
    """The kept original identifies the example only as long as the model gets its rounded copy."""
    it = animal("vit")
    model = why.open(copy.deepcopy(it.module).bfloat16())
    encoded = model.encode({key: value.float() for key, value in it.inputs.items()})
    before = encoded.fingerprints()
    assert pick_examples(encoded, torch.tensor([2, 0])).fingerprints() == (before[2], before[0])
    changed = encoded.inputs[encoded.main].clone()
    changed[0] += 1
    after = replace(encoded, inputs={encoded.main: changed}).fingerprints()
    assert after[0] != before[0] and after[1:] == before[1:]
