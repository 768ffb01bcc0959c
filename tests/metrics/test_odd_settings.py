"""Every setting of every metric takes odd values, or refuses them in a sentence, before the model runs."""

import pytest
import torch
from odd_settings import NUMPY_NUMBERS, ODD_SETTINGS
from test_every_metric import given, settings_of

from whyformer.errors import MetricError
from whyformer.metrics import __all__ as EXPORTED
from whyformer.metrics._registry import METRICS, choose_metric, measure

SHIPPED = [name for name in EXPORTED if name in METRICS]
EVERY_SETTING = [(name, setting) for name in SHIPPED for setting in METRICS[name].settings]
every_setting = pytest.mark.parametrize(("name", "setting"), EVERY_SETTING)


def compute(name, settings):
    kind = "texts" if METRICS[name].only == "texts" else "images"
    return measure(choose_metric(name, settings_of(name, kind) | settings), given(kind, 0, 1))


@every_setting
def test_an_odd_value_is_used_or_refused(name, setting):
    for called, value in ODD_SETTINGS.items():
        try:
            assert not compute(name, {setting: value}).value.isinf().any(), called
        except MetricError as error:
            refused = error
        else:
            continue
        assert refused.code == "E_OPTION", f"{called}: {refused}"
        assert setting in str(refused) and len(str(refused)) < 400, called


@every_setting
def test_what_can_be_known_without_the_model_is_refused_before_it_runs(name, setting):
    for value in (object(), torch.ones(3), float("nan"), {"a": 1}, [object()]):
        with pytest.raises(MetricError, match=rf"^{setting} must .*got ") as error:
            choose_metric(name, {setting: value})
        assert error.value.code == "E_OPTION"


@every_setting
def test_a_number_of_numpy_is_a_number(name, setting):
    """Where the plain number is accepted, so is the one of numpy, with the same result."""
    for value in NUMPY_NUMBERS.values():
        try:
            plain = compute(name, {setting: value.item()})
        except MetricError:
            continue
        found = compute(name, {setting: value})
        assert torch.equal(found.value.nan_to_num(), plain.value.nan_to_num())


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("preset", [7, [], {}, object(), torch.ones(2), "no such thing"])
def test_a_preset_that_is_not_there_is_refused(name, preset):
    with pytest.raises(MetricError, match=rf"{name} has no preset .* Available: paper") as error:
        choose_metric(name, {"preset": preset})
    assert error.value.code == "E_OPTION"
