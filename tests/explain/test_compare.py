"""compare(): several methods from one run of the model."""

from functools import partial

import pytest
import torch

import whyformer._explain.sharing
from whyformer._explain.compare import COMPARED, compare
from whyformer._explain.default_method import WORTH_COMPARING
from whyformer._explain.explain import explain
from whyformer.errors import MethodError, NonFinite, TargetError, UnknownOperation
from whyformer.methods import rollout
from whyformer.methods._registry import METHODS


@pytest.fixture
def runs(monkeypatch):
    """Counts how often the model is run."""
    asked = []
    run_request = whyformer._explain.sharing.run_request

    def counted(request):
        asked.append(vars(request))
        return run_request(request)

    monkeypatch.setattr(whyformer._explain.sharing, "run_request", counted)
    return asked


def test_one_run_gives_the_same_scores_as_separate_runs(zoo, runs):
    bert = zoo("bert")
    names = ["rollout", "attcat", "transformer_attribution", "partial_lrp"]
    comparison = compare(bert.module, bert.inputs, names, target=1)
    assert len(runs) == 1
    assert len(runs[0]["recipes"]) == 1
    for name in names:
        alone = explain(bert.module, bert.inputs, name, target=1)
        torch.testing.assert_close(comparison[name].scores, alone.scores)
        assert comparison[name].settings == alone.settings


def test_settings_and_recipes_may_differ(zoo, runs):
    vit = zoo("vit")
    lrp = METHODS["lrp"].compute
    comparison = compare(
        vit.module, vit.inputs, ["lrp", partial(lrp, recipe="baseline"), partial(rollout, start=1), rollout]
    )
    assert comparison.labels == ("lrp", "lrp(recipe='baseline')", "rollout(start=1)", "rollout")
    assert [recipe.name for recipe in runs[0]["recipes"]] == ["chefer", "chefer_baseline"]
    assert not torch.equal(comparison["lrp"].scores, comparison["lrp(recipe='baseline')"].scores)
    assert len(runs) == 1


def test_quick_is_every_method_of_one_pass(zoo):
    vit = zoo("vit")
    comparison = compare(vit.module, vit.inputs, "quick")
    assert set(comparison.labels) == {name for name, method in METHODS.items() if method.is_quick}
    assert not comparison.failures


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_by_default_six_methods_for_this_kind_of_input(zoo, name, runs):
    comparison = compare(zoo(name).module, zoo(name).inputs)
    assert comparison.labels == WORTH_COMPARING["images" if name == "vit" else "texts"]
    assert len(runs) == 1 and not comparison.failures


@pytest.mark.usefixtures("broken")
def test_others_take_the_place_of_those_that_do_not_work(zoo):
    comparison = compare(zoo("vit").module, zoo("vit").inputs)
    assert len(comparison) == COMPARED and "chance" not in comparison.labels
    assert not {name for name in comparison.labels if METHODS[name].recipe}
    assert {"gamma_attribution", "libragrad"} <= {*comparison.failures}


def test_a_single_name_is_allowed(zoo):
    vit = zoo("vit")
    assert compare(vit.module, vit.inputs, "rollout").labels == ("rollout",)


@pytest.fixture
def broken(monkeypatch):
    """A model on which relevance passes fail."""
    run_request = whyformer._explain.sharing.run_request

    def no_relevance(request):
        if request.recipes:
            raise UnknownOperation("chefer has no rule for cumsum in h.0.")
        return run_request(request)

    monkeypatch.setattr(whyformer._explain.sharing, "run_request", no_relevance)


@pytest.mark.usefixtures("broken")
def test_quick_lists_the_methods_that_fail(zoo):
    vit = zoo("vit")
    comparison = compare(vit.module, vit.inputs, "quick")
    quick = {name for name, method in METHODS.items() if method.is_quick}
    need_relevance = {name for name in quick if METHODS[name].recipe}
    assert set(comparison.failures) == need_relevance
    assert set(comparison.labels) == quick - need_relevance
    text = " ".join(str(comparison).split())
    assert "Not used" in text and "lrp chefer has no rule for cumsum in h.0." in text


@pytest.mark.usefixtures("broken")
def test_a_named_method_must_work(zoo):
    vit = zoo("vit")
    with pytest.raises(UnknownOperation, match="no rule for cumsum"):
        compare(vit.module, vit.inputs, ["rollout", "lrp"])


def test_quick_lists_a_method_whose_own_code_fails(zoo, monkeypatch):
    vit = zoo("vit")
    explained = whyformer._explain.sharing.make_explanation

    def fails(chosen, *rest):
        if chosen.method.name == "saliency":
            raise NonFinite("saliency gave NaN or infinity.")
        return explained(chosen, *rest)

    monkeypatch.setattr(whyformer._explain.sharing, "make_explanation", fails)
    assert compare(vit.module, vit.inputs, "quick").failures == {"saliency": "saliency gave NaN or infinity."}


def test_an_error_if_every_method_fails(zoo, monkeypatch):
    vit = zoo("vit")

    def fails(*_):
        raise NonFinite("NaN in block 3.")

    monkeypatch.setattr(whyformer._explain.sharing, "make_explanation", fails)
    with pytest.raises(MethodError, match=r"No method works on ViTForImageClassification. NaN in block 3."):
        compare(vit.module, vit.inputs)


def test_a_wrong_target_is_not_a_failure_of_the_methods(zoo):
    vit = zoo("vit")
    with pytest.raises(TargetError, match="There is no class 99"):
        compare(vit.module, vit.inputs, target=99)


def test_invalid_lists_are_refused(zoo):
    vit = zoo("vit")
    with pytest.raises(MethodError, match="No methods to compare"):
        compare(vit.module, vit.inputs, [])
    with pytest.raises(MethodError, match="rollout is listed twice"):
        compare(vit.module, vit.inputs, ["rollout", "rollout"])
    with pytest.raises(MethodError, match="No method 'rolout'"):
        compare(vit.module, vit.inputs, ["rolout"])
