"""Sanity checks: models whose weights are randomised, by hand and on a real model."""

import copy

import pytest
import torch
from conftest import animal
from fake_probe import FakeProbe, picture
from fake_rerun import FakeRerun
from torch import nn

import whyformer as why
from whyformer._engine.record import record
from whyformer.errors import MetricError
from whyformer.metrics import class_swap, label_randomised_twin, parameter_randomisation
from whyformer.metrics._rerun import Rerun
from whyformer.metrics.sanity import list_weighted_modules, randomise_weights

E = picture([[4.0, 3.0, 2.0, 1.0]], 2, 2)
PIXELS = torch.zeros(1, 1, 2, 2)


class Held:
    def __init__(self, module):
        self.module = module


def test_the_cascade_goes_from_the_output_downwards_and_ends_with_everything():
    """Four parts, two stages. The map is the weights of all parts: the first stage changes the last two."""
    module = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    before = copy.deepcopy(module.state_dict())
    seen = []

    def weights(model, **_):
        seen.append([not torch.equal(part.weight, before[f"{i}.weight"]) for i, part in enumerate(model)])
        return torch.stack([part.weight.sum() for part in model])[None]

    e = picture(weights(module).detach(), 2, 2)
    found = parameter_randomisation(e, FakeRerun(e, PIXELS, weights, model=Held(module)), stages=2)
    assert seen[1:] == [[False, False, True, True], [True] * 4]
    assert found.curve.shape == (1, 2) and found.at == (0.5, 1.0)
    assert all(torch.equal(module.state_dict()[name], held) for name, held in before.items())  # a copy was changed


def test_value_by_hand():
    """After the stages the maps are as before, and turned round: (1 - 1) / 2."""
    maps = iter([E.scores, -E.scores])
    again = FakeRerun(E, PIXELS, lambda **_: next(maps), model=Held(nn.Linear(2, 2)))
    found = parameter_randomisation(E, again, stages=2)
    torch.testing.assert_close(found.curve, torch.tensor([[1.0, -1.0]], dtype=torch.float64))
    assert found.value.item() == pytest.approx(0, abs=1e-12)
    maps = iter([E.scores, -E.scores])
    assert parameter_randomisation(E, again, stages=2, magnitude=True).value.item() == pytest.approx(1, abs=1e-12)


def test_weights_are_drawn_with_their_own_mean_and_spread_and_always_the_same():
    one, other = nn.Linear(200, 100), nn.Linear(200, 100)
    with torch.no_grad():
        one.weight.normal_(3, 2)
    old = one.weight.clone()
    randomise_weights("a", one, seed=0)
    assert one.weight.mean().item() == pytest.approx(3, abs=0.1)
    assert one.weight.std().item() == pytest.approx(2, abs=0.1)
    assert abs(torch.corrcoef(torch.stack([old.flatten(), one.weight.flatten()]))[0, 1]) < 0.05
    other.load_state_dict({"weight": old, "bias": one.bias})
    randomise_weights("a", other, seed=0)
    assert torch.equal(one.weight, other.weight)
    other.load_state_dict({"weight": old, "bias": one.bias})
    randomise_weights("a", other, seed=1)
    assert not torch.equal(one.weight, other.weight)


def test_parts_are_modules_with_weights_of_their_own_from_the_output():
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 1)))
    assert [name for name, _ in list_weighted_modules(module)] == ["2.1", "2.0", "0"]


def test_the_model_is_its_own_twin_and_a_twin_must_be_given():
    twin = nn.Linear(2, 2)
    again = FakeRerun(E, PIXELS, lambda **_: E.scores)
    assert label_randomised_twin(E, again, twin=twin).item() == pytest.approx(1)
    assert again.asked[0]["model"] is twin
    with pytest.raises(MetricError, match="Pass it as twin="):
        label_randomised_twin(E, again)


def test_class_swap_explains_the_least_likely_class():
    probe = FakeProbe(E.scores, grid=(2, 2))
    again = FakeRerun(E, PIXELS, lambda **_: torch.tensor([[3.0, 4.0, 2.0, 1.0]]))
    assert class_swap(E, probe, again).item() == pytest.approx(0.8, abs=1e-12)
    assert again.asked[0]["target"] == [1]


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_on_a_real_model(name):
    """An edge map (chance: it knows the input and not the weights) gets exactly 1 and fails; gradients pass."""
    it = animal(name)
    model = why.open(it.module)
    encoded = model.encode(it.inputs)
    before = {key: value.clone() for key, value in it.module.state_dict().items()}
    probe = record(model, encoded, keep={"probe"})["probe"]
    values = {}
    for method in ("chance", "gradient_x_input", "rollout"):
        e = why.explain(model, encoded, method)
        again = Rerun(model, encoded, e)
        values[method] = parameter_randomisation(e, again, stages=2)
        swapped = class_swap(e, probe, again)
        assert (swapped == 1).all() if method != "gradient_x_input" else (swapped < 0.999).all()
    assert (values["chance"].curve == 1).all()
    assert (values["gradient_x_input"].curve[:, -1].abs() < 0.95).all()
    assert (values["rollout"].value < 1).all()
    assert torch.equal(parameter_randomisation(e, again, stages=2).curve, values["rollout"].curve)
    assert all(torch.equal(it.module.state_dict()[key], held) for key, held in before.items())
