"""Several methods from one run, and how far they agree."""

from functools import partial

import pytest
import torch

import whyformer._explain.sharing
from whyformer._engine.target import Target
from whyformer._explain.compare import compare
from whyformer._explain.explain import explain
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError, MethodError, NonFinite, TargetError, UnknownOperation
from whyformer.methods import rollout
from whyformer.methods._registry import METHODS
from whyformer.results.comparison import Comparison, comparison_to_json, mean_ranks, rank_correlation
from whyformer.results.explanation import Explanation
from whyformer.show.terminal import Screen

SPANS = (None, (0, 1), (2, 3), (4, 5), None)
PIECES = Pieces(("[CLS]", "a", "b", "c", "[PAD]"), (True, *(False,) * 4), (False,) * 4 + (True,), SPANS, "a b c")


def an_explanation(scores, tokens, **changes) -> Explanation:
    scores = torch.tensor(scores, dtype=torch.double)
    facts = dict(settings={}, model="tiny", versions={}, method="lrp", class_specific=True, signed=True) | changes
    batch = len(scores)
    return Explanation(
        scores, (tokens,) * batch, (Target(1, "cat", 1.0, 0.5),) * batch, tuple(f"{i}" for i in range(batch)), **facts
    )  # fmt: skip


# --- agreement --------------------------------------------------------------------------------------------------------


def test_ranks_by_hand():
    """10 10 7 30: the two tens share ranks 2 and 3."""
    assert mean_ranks(torch.tensor([10.0, 10.0, 7.0, 30.0])).tolist() == [2.5, 2.5, 1, 4]


def test_agrees_with_the_definition_written_slowly():
    """A rank is one more than the scores below, plus half of the others that are equal; then Pearson's correlation."""
    torch.manual_seed(0)
    scores = torch.randint(0, 6, (5, 20)).double()  # many ties
    ranks = [[1 + sum(b < a for b in row) + (sum(b == a for b in row) - 1) / 2 for a in row] for row in scores.tolist()]
    torch.testing.assert_close(rank_correlation(scores), torch.corrcoef(torch.tensor(ranks, dtype=torch.double)))


def test_the_same_order_is_1_and_the_reverse_is_minus_1():
    scores = torch.tensor([[1.0, 2.0, 3.0], [-9.0, 0.0, 100.0], [3.0, 2.0, 1.0]])
    torch.testing.assert_close(rank_correlation(scores), torch.tensor([[1.0, 1, -1], [1, 1, -1], [-1, -1, 1]]).double())


def test_agreement_is_averaged_over_examples_and_looks_only_at_words():
    """Example 0 agrees (1), example 1 is reversed (-1); class token and padding would say otherwise."""
    one = an_explanation([[9, 1, 2, 3, 0], [9, 1, 2, 3, 0]], PIECES)
    other = an_explanation([[-9, 4, 5, 6, 0], [-9, 6, 5, 4, 0]], PIECES)
    found = Comparison({"one": one, "other": other}).agreement()
    torch.testing.assert_close(found, torch.eye(2, dtype=torch.double))


def test_scores_without_an_order_have_no_agreement():
    flat, other = an_explanation([[1, 1, 1, 1]], Grid(2, 2)), an_explanation([[1, 2, 3, 4]], Grid(2, 2))
    comparison = Comparison({"flat": flat, "other": other})
    assert comparison.agreement()[0].isnan().all()
    assert comparison.agreement()[1, 1] == 1
    assert "all the same" in str(comparison)


# --- reading ----------------------------------------------------------------------------------------------------------


def a_comparison(tokens=None, **more) -> Comparison:
    tokens = tokens or Grid(2, 2)
    rows = [[1, 2, 3, 4]] if isinstance(tokens, Grid) else [[9, 1, 2, 3, 0]]
    one, other = an_explanation(rows, tokens), an_explanation(rows, tokens, class_specific=False, signed=False)
    return Comparison({"one": one, "other(start=1)": other}, **more)


def test_explanations_are_found_by_their_label():
    comparison = a_comparison()
    assert comparison.labels == ("one", "other(start=1)")
    assert len(comparison) == 2
    assert [e.class_specific for e in comparison] == [True, False]
    assert comparison["one"].class_specific
    with pytest.raises(MethodError, match=r"This comparison has no 'two'\. It has: one, other\(start=1\)"):
        comparison["two"]
    assert repr(comparison) == "<Comparison of one, other(start=1): 1 examples>"


def test_the_table_names_agreement_class_and_the_best():
    said = str(a_comparison(failures={"bad": "because\x1b"})).split("\n")
    assert said[0] == "0: cat (50.0%)"
    rows = [line.split() for line in said]
    assert ["one", "+1.00", "yes", "(1,", "1)", "(1,", "0)", "(0,", "1)"] in rows
    assert ["other(start=1)", "+1.00", "any", "(1,", "1)", "(1,", "0)", "(0,", "1)"] in rows
    assert r"not used: bad: because\x1b" in said


def test_in_colour_the_scores_stand_side_by_side():
    screen = Screen(80, "truecolor")
    assert "▀" in a_comparison().render(screen)
    said = a_comparison(PIECES).render(screen)
    assert said.count("[CLS]") == 2


def test_what_was_saved_comes_back(tmp_path):
    saved = a_comparison(failures={"bad": "because"})
    saved.save(tmp_path / "c.json")
    loaded = Comparison.load(tmp_path / "c.json")
    assert loaded.labels == saved.labels
    assert loaded.failures == saved.failures
    for one, other in zip(saved, loaded, strict=True):
        assert torch.equal(one.scores, other.scores)
        assert one.tokens == other.tokens
        assert one.targets == other.targets


def test_an_empty_comparison_is_damage(tmp_path):
    (tmp_path / "c.json").write_bytes(comparison_to_json(Comparison({})))
    with pytest.raises(InputError, match="is no comparison saved by whyformer, or it is damaged"):
        Comparison.load(tmp_path / "c.json")


def test_saving_and_loading_other_things(tmp_path):
    a_comparison().save(tmp_path / "c.txt")
    assert (tmp_path / "c.txt").read_text() == a_comparison().render(Screen(100, None)) + "\n"
    with pytest.raises(InputError, match=r"Names that end in \.json, .*\.txt work"):
        a_comparison().save(tmp_path / "c.safetensors")
    a_comparison()["one"].save(tmp_path / "e.json")
    with pytest.raises(InputError, match="holds a saved explanation, no comparison"):
        Comparison.load(tmp_path / "e.json")


def test_agreement_chart_is_the_old_name_of_draw_agreement():
    comparison = a_comparison()
    with pytest.warns(DeprecationWarning, match=r"Comparison\.agreement_chart is now draw_agreement\."):
        assert comparison.agreement_chart().svg() == comparison.draw_agreement().svg()


# --- making one -------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch):
    """Counts how often the model is run."""
    asked = []
    record = whyformer._explain.sharing.record

    def counted(*given, **wanted):
        asked.append(wanted)
        return record(*given, **wanted)

    monkeypatch.setattr(whyformer._explain.sharing, "record", counted)
    return asked


def test_one_run_serves_all_and_gives_what_each_gives_alone(zoo, runs):
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


def test_quick_means_every_method_of_one_pass(zoo):
    vit = zoo("vit")
    comparison = compare(vit.module, vit.inputs)
    assert set(comparison.labels) == {name for name, method in METHODS.items() if method.is_quick}
    assert not comparison.failures


def test_a_single_name_will_do(zoo):
    vit = zoo("vit")
    assert compare(vit.module, vit.inputs, "rollout").labels == ("rollout",)


@pytest.fixture
def broken(monkeypatch):
    """A model for which relevance cannot be had."""
    record = whyformer._explain.sharing.record

    def no_relevance(*given, recipes=(), **wanted):
        if recipes:
            raise UnknownOperation("chefer has no rule for cumsum in h.0.")
        return record(*given, recipes=recipes, **wanted)

    monkeypatch.setattr(whyformer._explain.sharing, "record", no_relevance)


@pytest.mark.usefixtures("broken")
def test_with_all_methods_that_fail_are_listed_and_the_others_go_on(zoo):
    vit = zoo("vit")
    comparison = compare(vit.module, vit.inputs)
    quick = {name for name, method in METHODS.items() if method.is_quick}
    need_relevance = {name for name in quick if METHODS[name].recipe}
    assert set(comparison.failures) == need_relevance
    assert set(comparison.labels) == quick - need_relevance
    assert "not used: lrp: chefer has no rule for cumsum in h.0." in str(comparison)


@pytest.mark.usefixtures("broken")
def test_a_method_that_was_asked_for_by_name_must_work(zoo):
    vit = zoo("vit")
    with pytest.raises(UnknownOperation, match="no rule for cumsum"):
        compare(vit.module, vit.inputs, ["rollout", "lrp"])


def test_a_method_that_fails_on_its_own_is_listed_too(zoo, monkeypatch):
    vit = zoo("vit")
    explained = whyformer._explain.sharing.make_explanation

    def fails(chosen, *rest):
        if chosen.method.name == "saliency":
            raise NonFinite("saliency gave NaN or infinity.")
        return explained(chosen, *rest)

    monkeypatch.setattr(whyformer._explain.sharing, "make_explanation", fails)
    assert compare(vit.module, vit.inputs).failures == {"saliency": "saliency gave NaN or infinity."}


def test_if_nothing_works_it_is_an_error(zoo, monkeypatch):
    vit = zoo("vit")

    def fails(*_):
        raise NonFinite("NaN in block 3.")

    monkeypatch.setattr(whyformer._explain.sharing, "make_explanation", fails)
    with pytest.raises(MethodError, match=r"No method works on ViTForImageClassification. NaN in block 3."):
        compare(vit.module, vit.inputs)


def test_a_wrong_target_is_never_taken_for_a_failure_of_methods(zoo):
    vit = zoo("vit")
    with pytest.raises(TargetError, match="There is no class 99"):
        compare(vit.module, vit.inputs, target=99)


def test_lists_that_make_no_comparison(zoo):
    vit = zoo("vit")
    with pytest.raises(MethodError, match="No methods to compare"):
        compare(vit.module, vit.inputs, [])
    with pytest.raises(MethodError, match="rollout is listed twice"):
        compare(vit.module, vit.inputs, ["rollout", "rollout"])
    with pytest.raises(MethodError, match="No method 'rolout'"):
        compare(vit.module, vit.inputs, ["rolout"])
