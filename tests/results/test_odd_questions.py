"""Odd questions to a result are refused by an error that says what can be asked."""

import pytest
from attack.every_result import make_comparison, make_text, make_view
from conftest import name_value

from whyformer.errors import InputError, MethodError

ODD = [None, "x", 1.5, float("nan"), [], {}, object(), b"1"]


@pytest.mark.parametrize("value", ODD, ids=name_value)
def test_numbers_and_names_are_checked(value):
    e, view = make_text("plain"), make_view("plain")
    questions = [lambda: e.top(value), lambda: e.top(by=value), lambda: e.words(reduce=value)]
    questions += [lambda: view.tokens(layer=value), lambda: view.draw(value), lambda: view.matrix(kind=value)]
    for ask in questions:
        with pytest.raises(InputError, match="must be") as raised:
            ask()
        assert raised.value.code == "E_OPTION"
    with pytest.raises(MethodError, match="This comparison has no"):
        make_comparison("plain")[value]


@pytest.mark.parametrize("place", [2, -3, 10**30, True])
def test_layers_and_heads_are_those_of_the_model(place):
    for asked in ({"layer": place}, {"head": place}):
        with pytest.raises(InputError, match=r"(layer|head) must be a whole number from 0 to 1, got") as raised:
            make_view("plain").matrix(**asked)
        assert raised.value.code == "E_OPTION"


def test_what_was_not_recorded_says_how_to_record_it():
    for ask in (lambda e: e.health, lambda e: e.draw_build_up()):
        with pytest.raises(InputError) as raised:
            ask(make_text("plain"))
        assert raised.value.code == "E_NOT_CAPTURED"
