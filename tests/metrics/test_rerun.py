"""Again: the same method on other inputs, targets, weights and settings."""

import copy

import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer.errors import InputError
from whyformer.metrics._rerun import Rerun


def again_for(name, method="gradient_x_input", **settings):
    it = animal(name)
    model = why.open(it.module)
    encoded = model.encode(it.inputs)
    e = why.explain(model, encoded, method, **settings)
    return Rerun(model, encoded, e), e


@pytest.mark.parametrize("name", ["vit", "bert", "encoder_token_first", "gpt2"])
def test_as_it_was(name):
    again, e = again_for(name)
    assert torch.equal(again().scores, e.scores)
    assert again().targets == e.targets and again().names == e.names


def test_the_target_stays_when_the_input_changes():
    again, e = again_for("vit")
    found = again(torch.zeros_like(again.inputs))
    assert [target.index for target in found.targets] == [target.index for target in e.targets]
    assert not torch.equal(found.scores, e.scores)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_rows_are_variants_of_the_examples_they_name(name):
    """Seven rows of a batch of three go in three chunks and come back in order."""
    again, e = again_for(name)
    of = [2, 0, 1, 1, 2, 0, 0]
    found = again(of=of)
    torch.testing.assert_close(found.scores, e.scores[of], rtol=0, atol=1e-12)
    assert found.names == tuple(e.names[i] for i in of)
    changed = again.inputs[of].clone()
    changed[3] = again.inputs[0]
    if name == "vit":
        torch.testing.assert_close(again(changed, of=of).scores[[0, 1]], e.scores[[2, 0]], rtol=0, atol=1e-12)


def test_other_targets_weights_and_settings():
    again, e = again_for("bert")
    wanted = why.explain(again.model, again.encoded, "gradient_x_input", target=[3, 2, 1]).scores
    assert torch.equal(again(target=[3, 2, 1]).scores, wanted)
    assert torch.equal(again(target=torch.tensor([3, 2, 1])).scores, wanted)
    other = copy.deepcopy(again.model.module)
    with torch.no_grad():
        other.classifier.weight.neg_()
        other.classifier.bias.neg_()
    torch.testing.assert_close(again(model=other).scores, -e.scores)
    again, e = again_for("bert", "chance")
    assert torch.equal(again(seed=0).scores, e.scores) and not torch.equal(again(seed=1).scores, e.scores)


def test_settings_and_contrast_of_the_first_run_are_kept():
    again, e = again_for("bert", "rollout", start=1)
    assert again().settings == e.settings and torch.equal(again().scores, e.scores)
    again, e = again_for("bert", "gradient_x_input", target=0, versus=1)
    assert torch.equal(again().scores, e.scores)
    assert [target.versus for target in again(target=2).targets] == [None] * 3


def test_what_does_not_fit_is_refused():
    again, _ = again_for("vit")
    with pytest.raises(InputError, match="3 inputs for 2 rows"):
        again(again.inputs, of=[0, 1])
    with pytest.raises(InputError, match="2 targets for 3 rows"):
        again(target=[0, 1])
