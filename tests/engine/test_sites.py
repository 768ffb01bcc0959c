"""The table of sites: names, axes, and what each is the gradient or relevance of."""

import pytest

from whyformer._engine.capture.sites import SITES


def test_a_site_prints_its_axes():
    assert str(SITES["attention"]) == SITES["attention"].axes == "layer batch head query key"
    assert SITES["attention"].axis_names == ("layer", "batch", "head", "query", "key")


def test_every_site_has_its_own_name_and_a_description():
    assert all(name == site.name and site.description for name, site in SITES.items())


def test_gradients_and_relevance_are_of_something():
    gradients = {name: site.of for name, site in SITES.items() if site.is_gradient}
    other = {f"{paths}_attention_grad": "attention" for paths in ("direct", "layer", "mean")}
    assert gradients == {f"{of}_grad": of for of in ("attention", "attention_output", "hidden", "input")} | other
    relevance = {name: site.of for name, site in SITES.items() if site.is_relevance}
    assert relevance == {f"{of}_relevance": of for of in ("attention", "hidden", "input", "token", "position")}
    assert all((site.of is not None) == (site.is_gradient or site.is_relevance) for site in SITES.values())


@pytest.mark.parametrize("name", [name for name, site in SITES.items() if site.of in SITES])
def test_a_gradient_has_the_axes_of_its_value(name):
    assert SITES[name].axes == SITES[SITES[name].of].axes


def test_what_depends_on_the_class():
    values = {name for name, site in SITES.items() if site.is_class_specific and site.of is None}
    assert values == {"answer_parts", "released_answer_parts"}
    assert {name for name, site in SITES.items() if site.is_costly} == {*values, "probe"}
