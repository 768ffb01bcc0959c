"""explain(): from what a method returns to an explanation, and what is recorded for it."""

from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import whyformer._explain.explain
import whyformer._explain.scoring
import whyformer._explain.sharing
from whyformer._engine.capture.capture import EngineChoice, RoundingEstimate
from whyformer._engine.targets.target import Target
from whyformer._explain.explain import explain
from whyformer._model.model import EncodedBatch, Model
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import MethodError, NonFinite
from whyformer.methods import rollout
from whyformer.methods._registry import METHODS, describe_method, find_method

EIGHT_TOKENS = Pieces(tuple("abcdefgh"), (False,) * 8, (False,) * 8, (None,) * 8)
ONE_ROW = torch.tensor([[1.0, 0, 0, 0, 0]])


def method_returning(scores, **facts):
    """A method that needs nothing but a mask and returns these scores."""

    def fixed(mask, *, scale: float = 1.0):
        """These numbers."""
        return scores * scale

    return describe_method(fixed, **dict(paper="none", class_specific=True, signed=True, recipe=None) | facts)


@pytest.fixture
def capture(monkeypatch):
    """An image of 2 x 2 patches after a class token, unless changed; `asked` has the arguments of record()."""
    captured = SimpleNamespace(
        targets=(Target(0, "cat", 1.0, 0.5),),
        tokens=(Grid(2, 2),),
        patches=(1, 2, 3, 4),
        notes=("a note",),
        places=None,
        owners=None,
        pick_slots=lambda scores: None,
        select_notes=lambda needs, **reads: ("a note",),
        obstacle="",
        logits=None,
        attending=(),
        parts=(),
        epilogue=None,
        engine=EngineChoice("full"),
        get=lambda site, recipe: {"mask": ONE_ROW.bool()}[site],
        asked=None,
    )

    def run_request(request):
        captured.asked = vars(request)
        return captured

    monkeypatch.setattr(whyformer._explain.sharing, "run_request", run_request)
    monkeypatch.setattr(whyformer._explain.scoring, "add_considered", lambda targets, *_: targets)
    return captured


@pytest.fixture
def model():
    made = Model(torch.nn.Linear(2, 2).double(), "tiny")
    object.__setattr__(made, "encode", lambda inputs: EncodedBatch({}, "x", 1, ("cat.png",)))
    return made


def test_scores_of_tokens_that_are_no_patch_go_to_special(capture, model):
    e = explain(model, "cat.png", method_returning(torch.tensor([[9.0, 1.0, 2.0, 3.0, 4.0]])))
    assert e.scores.tolist() == [[1, 2, 3, 4]]
    assert e.special.tolist() == [[9]]
    assert e.pixels is None
    assert (e.names, e.targets, e.notes, e.model) == (("cat.png",), capture.targets, ("a note",), "tiny")
    assert e.versions["dtype"] == "float64"
    assert set(e.versions) == {"weights", "whyformer", "torch", "transformers", "python", "dtype", "device"}


def test_patches_may_be_in_any_order(capture, model):
    capture.patches = (4, 0, 1, 3)
    e = explain(model, "cat.png", method_returning(torch.tensor([[10.0, 11.0, 12.0, 13.0, 14.0]])))
    assert e.scores.tolist() == [[14, 10, 11, 13]]
    assert e.special.tolist() == [[12]]


def test_a_map_of_pixels_is_kept_and_summed_over_each_patch(capture, model):
    pixels = torch.arange(24.0).reshape(1, 4, 6)
    e = explain(model, "cat.png", method_returning(pixels))
    assert torch.equal(e.pixels, pixels)
    by_hand = [0 + 1 + 2 + 6 + 7 + 8, 3 + 4 + 5 + 9 + 10 + 11, 12 + 13 + 14 + 18 + 19 + 20, 15 + 16 + 17 + 21 + 22 + 23]
    assert e.scores.tolist() == [by_hand]


def test_pixels_that_do_not_divide_into_patches_belong_to_the_cell_that_they_are_in(capture, model):
    pixels = torch.arange(30.0).reshape(1, 5, 6)
    e = explain(model, "cat.png", method_returning(pixels))
    top, bottom = pixels[0, :3], pixels[0, 3:]  # as patches are erased: row i of 5 is in row 2 i // 5 of the grid
    by_hand = [part.sum() for half in (top, bottom) for part in (half[:, :3], half[:, 3:])]
    assert e.scores.tolist() == [by_hand]


def test_padding_is_exactly_zero_even_if_it_was_nan(capture, model):
    capture.tokens, capture.patches = (Pieces(("a", "b"), (False,) * 2, (False, True), (None,) * 2),), None
    e = explain(model, "a", method_returning(torch.tensor([[1.0, float("nan")]])))
    assert e.scores.tolist() == [[1, 0]]
    assert e.special is None


@pytest.mark.parametrize("shape", [(1, 3), (2, 5), (5,), (), (1, 2, 2, 2), (2, 4, 4)])
def test_a_result_of_the_wrong_shape_is_refused(capture, model, shape):
    with pytest.raises(MethodError, match=r"fixed returned \[.*\] for 1 x 4 patches"):
        explain(model, "cat.png", method_returning(torch.zeros(shape)))


def test_a_map_of_a_text_is_refused(capture, model):
    capture.tokens, capture.patches = (EIGHT_TOKENS,), None
    with pytest.raises(MethodError, match=r"fixed returned \[1, 4, 4\] for 1 x 8 tokens"):
        explain(model, "a", method_returning(torch.zeros(1, 4, 4)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_result_that_is_not_finite_is_refused(capture, model, value):
    for place in range(2):  # the class token counts too
        scores = torch.zeros(1, 5)
        scores[0, place] = value
        with pytest.raises(NonFinite, match="fixed gave NaN or infinity"):
            explain(model, "cat.png", method_returning(scores))


def test_settings_are_all_kept_defaults_included(capture, model):
    fixed = method_returning(torch.ones(1, 5))
    assert explain(model, "cat.png", fixed).settings == {"scale": 1.0}
    doubled = explain(model, "cat.png", fixed, scale=2.0)
    assert doubled.settings == {"scale": 2.0}
    assert doubled.scores.tolist() == [[2, 2, 2, 2]]


def test_recipe_and_stabiliser_are_settings_of_methods_that_use_relevance(capture, model):
    capture.get = lambda site, recipe: {"input_relevance": torch.ones(1, 4, 4, 3), "readout": ONE_ROW}[site]
    capture.rounding = defaultdict(lambda: RoundingEstimate(torch.zeros(1, 1)))
    capture.logits = torch.ones(1, 2)
    e = explain(model, "cat.png", "lrp", recipe="baseline", stabiliser="released")
    assert e.settings == {"own": "keep", "recipe": "chefer_baseline", "stabiliser": "released"}
    assert [recipe.name for recipe in capture.asked["recipes"]] == ["chefer_baseline"]
    assert explain(model, "cat.png", "lrp").settings == {"own": "keep", "recipe": "chefer", "stabiliser": "signed"}


def test_exactly_what_the_method_needs_is_recorded(capture, model):
    captured = {"attention": [torch.eye(5).expand(1, 1, 5, 5)], "readout": ONE_ROW, "mask": ONE_ROW.bool()}
    capture.get = lambda site, recipe: captured[site]
    explain(model, "cat.png", "rollout", target=3, versus="dog")
    assert capture.asked["epilogue"].key[0][0] is METHODS["rollout"].compute
    asked = {name: capture.asked[name] for name in ("target", "versus", "keep", "recipes")}
    assert asked == {"target": 3, "versus": "dog", "keep": {"attention", "readout", "mask"}, "recipes": ()}


def test_class_agnostic_methods_still_name_the_target(capture, model):
    e = explain(model, "cat.png", method_returning(torch.ones(1, 5), class_specific=False, signed=False))
    assert not e.class_specific
    assert not e.signed
    assert e.targets == capture.targets
    assert "the same for every class" in str(e)


def test_a_configured_method_is_a_partial(capture, model):
    captured = {"attention": [torch.eye(5).expand(1, 1, 5, 5)], "readout": ONE_ROW, "mask": ONE_ROW.bool()}
    capture.get = lambda site, recipe: captured[site]
    assert explain(model, "cat.png", partial(rollout, start=-1)).settings["start"] == -1
    assert explain(model, "cat.png", partial(rollout, start=-1), start=0).settings["start"] == 0


def test_misspelt_methods_and_settings_are_refused_before_anything_runs(capture, model):
    with pytest.raises(MethodError, match=r"No method 'rolout'\. Did you mean 'rollout'"):
        explain(model, "cat.png", "rolout")
    with pytest.raises(MethodError, match=r"rollout has no setting 'strat'\. Did you mean 'start'"):
        explain(model, "cat.png", "rollout", strat=1)
    with pytest.raises(MethodError, match="No recipe 'chefr'"):
        explain(model, "cat.png", "lrp", recipe="chefr")
    assert capture.asked is None


def test_a_name_with_settings_says_how_they_are_passed():
    with pytest.raises(MethodError, match=r"functools\.partial\(whyformer\.methods\.rollout, setting=value\)") as found:
        find_method("rollout(start=1)")
    assert found.value.code == "E_OPTION"


def test_a_name_is_opened(capture, model, monkeypatch):
    monkeypatch.setattr(whyformer._explain.explain, "open_model", lambda source: {"a name": model}[source])
    assert explain("a name", "cat.png", method_returning(torch.ones(1, 5))).model == "tiny"


# --- on a real model --------------------------------------------------------------------------------------------------


def test_an_image_from_end_to_end(zoo):
    vit = zoo("vit")
    e = explain(vit.module, vit.inputs, target=[0, 1, 2])
    assert e.method == "gamma_attribution"
    assert e.scores.shape == (3, 16)
    assert e.special.shape == (3, 1)
    assert [target.index for target in e.targets] == [0, 1, 2]
    assert e.map(2).shape == (4, 4)


def test_pixels_from_end_to_end(zoo):
    vit = zoo("vit")
    e = explain(vit.module, vit.inputs, "gradient_x_input")
    assert e.pixels.shape == (3, 16, 16)
    torch.testing.assert_close(e.scores.sum(1), e.pixels.sum((1, 2)))
    torch.testing.assert_close(e.map(1)[2, 3], e.pixels[1, 8:12, 12:16].sum())


def test_a_text_from_end_to_end(zoo):
    bert = zoo("bert")
    e = explain(bert.module, bert.inputs, "attcat")
    assert e.scores.shape == (3, 9)
    assert (e.scores[2, 4:] == 0).all()
    assert len(e[2].top(99)) == 4
