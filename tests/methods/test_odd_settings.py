"""Every setting of every method takes odd values, or refuses them in a sentence, before the model runs."""

from functools import cache

import pytest
import torch
from conftest import IMAGES_ONLY, QUICK, animal
from odd_settings import NUMPY_NUMBERS, ODD_SETTINGS

import whyformer as why
from whyformer._explain.method_call import choose_method
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer.errors import MethodError
from whyformer.methods import __all__ as SHIPPED
from whyformer.methods._registry import METHODS

EVERY_SETTING = [(name, setting) for name in SHIPPED for setting in METHODS[name].settings]
# For settings that ask for more to be captured, a value that does.
NOT_DEFAULT = {
    ("saliency", "at"): 1,
    ("gradient_x_input", "at"): 1,
    ("agcam", "preset"): "centred",
    ("legrad", "preset"): "released",
    ("decompx", "preset"): "released",
}
every_setting = pytest.mark.parametrize(("name", "setting"), EVERY_SETTING)


@cache
def recorded(kind):
    """One run of the model that every call here shares, whatever it asks for."""
    model = why.open(animal(kind).module)
    encoded = model.encode(animal(kind).alone(0))
    names = [name for name in SHIPPED if kind == "vit" or name not in IMAGES_ONLY]
    calls = [choose_method(name, {s: NOT_DEFAULT[name, s] for s in METHODS[name].extra_needs}) for name in names]
    return model, encoded, record_for_methods(calls, model, encoded, 0, None)


def compute(name, settings):
    model, encoded, capture = recorded("vit" if name in IMAGES_ONLY else "encoder")
    return make_explanation(choose_method(name, QUICK.get(name, {}) | settings), model, encoded, capture)


@every_setting
def test_an_odd_value_is_used_or_refused(name, setting):
    for called, value in ODD_SETTINGS.items():
        try:
            assert compute(name, {setting: value}).scores.isfinite().all(), called
        except MethodError as error:
            refused = error
        else:
            continue
        assert refused.code == "E_OPTION", f"{called}: {refused}"
        assert setting in str(refused) and len(str(refused)) < 400, called


@every_setting
def test_what_can_be_known_without_the_model_is_refused_before_it_runs(name, setting):
    for value in (object(), torch.ones(3), float("nan"), {"a": 1}, [0.5, 0.1]):
        with pytest.raises(MethodError, match=rf"^{setting} must be .*got ") as error:
            choose_method(name, {setting: value})
        assert error.value.code == "E_OPTION"


@every_setting
def test_a_number_of_numpy_is_a_number(name, setting):
    """Where the plain number is accepted, so is the one of numpy, with the same result."""
    for value in NUMPY_NUMBERS.values():
        try:
            plain = compute(name, {setting: value.item()})
        except MethodError:
            continue
        assert torch.equal(compute(name, {setting: value}).scores, plain.scores)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_method_called_as_a_function_checks_its_settings_too(name):
    for setting in METHODS[name].settings:
        with pytest.raises(MethodError, match=rf"^{setting} must be .*got"):
            METHODS[name].compute(**{setting: object()})
