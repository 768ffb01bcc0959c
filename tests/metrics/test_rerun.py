"""Rerun: the same method on other inputs, targets, weights and settings."""

import copy

import pytest
import torch
from conftest import animal
from PIL import Image

import whyformer as why
from whyformer.errors import InputError
from whyformer.methods._registry import describe_method
from whyformer.metrics._rerun import Rerun


def rerun_of(name, method="gradient_x_input", **settings):
    it = animal(name)
    model = why.open(it.module)
    encoded = model.encode(it.inputs)
    e = why.explain(model, encoded, method, **settings)
    return Rerun(model, encoded, e), e


@pytest.mark.parametrize("name", ["vit", "bert", "encoder_token_first", "gpt2"])
def test_unchanged(name):
    rerun, e = rerun_of(name)
    assert torch.equal(rerun().scores, e.scores)
    assert rerun().targets == e.targets and rerun().names == e.names


def test_a_method_that_is_not_registered():
    it = animal("vit")
    model = why.open(it.module)
    encoded = model.encode(it.inputs)
    method = describe_method(lambda mask: mask.double(), paper="", class_specific=False, signed=False, recipe=None)
    e = why.explain(model, encoded, method)
    assert torch.equal(Rerun(model, encoded, e, method)().scores, e.scores)


def test_the_target_stays_when_the_input_changes():
    rerun, e = rerun_of("vit")
    found = rerun(torch.zeros_like(rerun.inputs))
    assert [target.index for target in found.targets] == [target.index for target in e.targets]
    assert not torch.equal(found.scores, e.scores)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_rows_are_variants_of_their_examples(name):
    """Seven rows of a batch of three run in three chunks and come back in order."""
    rerun, e = rerun_of(name)
    of = [2, 0, 1, 1, 2, 0, 0]
    found = rerun(of=of)
    torch.testing.assert_close(found.scores, e.scores[of], rtol=0, atol=1e-12)
    assert found.names == tuple(e.names[i] for i in of)
    changed = rerun.inputs[of].clone()
    changed[3] = rerun.inputs[0]
    if name == "vit":
        torch.testing.assert_close(rerun(changed, of=of).scores[[0, 1]], e.scores[[2, 0]], rtol=0, atol=1e-12)


def test_other_targets_weights_and_settings():
    rerun, e = rerun_of("bert")
    wanted = why.explain(rerun.model, rerun.encoded, "gradient_x_input", target=[3, 2, 1]).scores
    assert torch.equal(rerun(target=[3, 2, 1]).scores, wanted)
    assert torch.equal(rerun(target=torch.tensor([3, 2, 1])).scores, wanted)
    other = copy.deepcopy(rerun.model.module)
    with torch.no_grad():
        other.classifier.weight.neg_()
        other.classifier.bias.neg_()
    torch.testing.assert_close(rerun(model=other).scores, -e.scores)
    rerun, e = rerun_of("bert", "chance")
    assert torch.equal(rerun(seed=0).scores, e.scores) and not torch.equal(rerun(seed=1).scores, e.scores)


def test_settings_and_contrast_of_the_first_run_are_kept():
    rerun, e = rerun_of("bert", "rollout", start=1)
    assert rerun().settings == e.settings and torch.equal(rerun().scores, e.scores)
    rerun, e = rerun_of("bert", "gradient_x_input", target=0, versus=1)
    assert torch.equal(rerun().scores, e.scores)
    assert [target.versus for target in rerun(target=2).targets] == [None] * 3


def test_variants_keep_the_images_of_their_examples(tmp_path):
    for i, colour in enumerate(("red", "green")):
        Image.new("RGB", (40, 40), colour).save(tmp_path / f"{i}.png")
    model = why.open("demo/untrained-vit")
    encoded = model.encode([tmp_path / "0.png", tmp_path / "1.png"])
    e = why.explain(model, encoded, "rollout")
    variants = Rerun(model, encoded, e)(of=[1, 0, 1])
    assert variants.images == (e.images[1], e.images[0], e.images[1])
    assert variants.notes == e.notes and variants.spent == e.spent


def test_wrong_numbers_of_rows_are_refused():
    rerun, _ = rerun_of("vit")
    with pytest.raises(InputError, match="3 inputs for 2 rows"):
        rerun(rerun.inputs, of=[0, 1])
    with pytest.raises(InputError, match="2 targets for 3 rows"):
        rerun(target=[0, 1])
