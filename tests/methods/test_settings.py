"""Settings: what is refused, and the message."""

import pytest

from whyformer.errors import MethodError
from whyformer.methods._settings import apply_preset, check_choice, resolve_layer

PRESETS = {"plain": {"start": 0, "own": "keep"}, "odd": {"start": 1, "own": "zero"}}


def test_a_choice_is_handed_back():
    assert check_choice("own", "zero", ("keep", "zero")) == "zero"


def test_a_near_miss_is_named():
    with pytest.raises(MethodError, match=r"own must be one of 'keep', 'zero'; got 'kep'\. Did you mean 'keep'\?"):
        check_choice("own", "kep", ("keep", "zero"))


def test_a_word_for_a_yes_or_no_is_refused():
    """'false' would count as true."""
    with pytest.raises(MethodError, match=r"normalise must be one of True, False; got 'false'\."):
        check_choice("normalise", "false", (True, False))


@pytest.mark.parametrize(("given", "meant"), [(0, 0), (11, 11), (-1, 11), (-12, 0)])
def test_layers_count_from_either_end(given, meant):
    assert resolve_layer("layer", given, 12) == meant


@pytest.mark.parametrize("given", [12, -13])
def test_a_layer_that_is_not_there_is_refused(given):
    message = rf"start must be between -12 and 11 for this model, got {given}"
    with pytest.raises(MethodError, match=message):
        resolve_layer("start", given, 12)


@pytest.mark.parametrize("given", ["last", 1.0, None])
def test_a_layer_is_a_whole_number(given):
    with pytest.raises(MethodError, match=rf"layer must be a layer number \(int\), got {given!r}\."):
        resolve_layer("layer", given, 12)


def test_what_is_given_goes_before_the_preset():
    assert apply_preset(PRESETS, "odd", start=None, own=None) == {"start": 1, "own": "zero"}
    assert apply_preset(PRESETS, "odd", start=0, own=None) == {"start": 0, "own": "zero"}


def test_settling_leaves_the_preset_as_it_was():
    apply_preset(PRESETS, "plain", own="min")
    assert PRESETS["plain"] == {"start": 0, "own": "keep"}


def test_an_unknown_preset_is_refused():
    with pytest.raises(MethodError, match=r"preset must be one of 'plain', 'odd'; got 'even'\."):
        apply_preset(PRESETS, "even")
