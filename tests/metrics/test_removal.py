"""Metrics that remove units, by hand: three or four units with known effects on one logit."""

import math

import pytest
import torch
from fake_probe import FakeProbe, picture, sigmoid, text

from whyformer.errors import InputError, MetricError
from whyformer.metrics import (
    aopc,
    comprehensiveness,
    deletion,
    insertion,
    log_odds,
    negative_perturbation,
    positive_perturbation,
    sufficiency,
)
from whyformer.metrics._ordering import rank_units, to_nearest_unit_count, to_unit_count
from whyformer.metrics._registry import choose_metric, measure

EFFECTS = [[3.0, 2.0, 1.0, -1.0]]  # logit 5
LABEL = torch.tensor([0])


def near(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


# --- order ------------------------------------------------------------------------------------------------------------


def test_the_highest_score_goes_first_and_what_is_not_real_never():
    scores = torch.tensor([[0.5, 9.0, 0.7, 0.1]])
    real = torch.tensor([[True, False, True, True]])
    assert rank_units(scores, real, [7]).tolist() == [[1, 4, 0, 2]]


def test_equal_scores_are_drawn_for_each_example_and_not_taken_as_they_stand():
    scores, real = torch.zeros(2, 50), torch.ones(2, 50, dtype=torch.bool)
    first, second = rank_units(scores, real, [1, 2])
    assert first.sort().values.tolist() == list(range(50))
    assert first.tolist() != list(range(50)) and first.tolist() != second.tolist()
    assert rank_units(scores[1:], real[1:], [2])[0].tolist() == second.tolist()  # in another batch, the same
    assert rank_units(scores[1:], real[1:], [2], seed=1)[0].tolist() != second.tolist()


def test_equal_scores_in_reading_order_on_request():
    """Highest first; of the three zeros and the two ones, the first in the input first."""
    scores, real = torch.tensor([[0.0, 1.0, 0.0, 2.0, 1.0, 0.0]]), torch.ones(1, 6, dtype=torch.bool)
    assert rank_units(scores, real, [1], ties="first").tolist() == [[3, 1, 4, 0, 2, 5]]
    real[0, 2] = False
    assert rank_units(scores, real, [1], seed=5, ties="first").tolist() == [[3, 1, 6, 0, 2, 4]]


@pytest.mark.parametrize("name", ["aopc", "comprehensiveness", "deletion", "log_odds", "positive_perturbation", "saco"])
def test_a_constant_map_loses_the_first_tokens_first_on_request(name):
    """As if the scores fell from the first token to the last."""
    effects = [[3.0, 2.0, 1.0, -1.0, 0.5, -0.5, 4.0, 1.0, 2.0, -2.0]]
    constant, falling = text([[0.0] * 10]), text([[-float(i) for i in range(10)]])

    def curve(e, **settings):
        given = {"explanation": e, "probe": FakeProbe(effects), "label": LABEL}
        chosen = choose_metric(name, settings)
        return measure(chosen, {need: given[need] for need in chosen.metric.needs}).curve

    torch.testing.assert_close(curve(constant, ties="first"), curve(falling))
    assert not torch.equal(curve(constant), curve(constant, ties="first"))


@pytest.mark.parametrize("name", ["aopc", "log_odds", "positive_perturbation", "negative_perturbation"])
def test_the_released_presets_take_ties_in_reading_order(name):
    assert choose_metric(name, {"preset": "released"}).settings["ties"] == "first"
    assert choose_metric(name, {}).settings["ties"] == "random"


def test_the_quick_order_is_the_order():
    """Without ties there is only one, and a single tie makes all of them drawn."""
    scores = torch.rand(3, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[2, 5] = scores[2, 700]
    found = rank_units(scores, torch.ones(3, 1000, dtype=torch.bool), [1, 2, 3])
    for row, place in zip(scores, found, strict=True):
        assert (row[place.argsort()].diff() <= 0).all() and place.sort().values.tolist() == list(range(1000))


def test_shares_are_not_lost_to_rounding():
    assert [to_unit_count(k / 100, 100) for k in range(101)] == list(range(101))  # 0.29 * 100 is 28.999...
    assert to_unit_count(0.1, 224 * 224) == 5017
    assert [to_nearest_unit_count(f, 9) for f in (0, 0.01, 0.1, 0.5, 1)] == [0, 1, 1, 5, 9]
    assert to_nearest_unit_count(0.5, 0) == 0


# --- comprehensiveness and sufficiency --------------------------------------------------------------------------------


def test_comprehensiveness_by_hand():
    """Without the best token the logit is 2, without the best two it is 0."""
    found = comprehensiveness(text(EFFECTS), FakeProbe(EFFECTS), fractions=(0.25, 0.5))
    near(found.curve, [[sigmoid(5) - sigmoid(2), sigmoid(5) - sigmoid(0)]])
    near(found.value, [sigmoid(5) - (sigmoid(2) + sigmoid(0)) / 2])
    assert found.at == (0.25, 0.5)


def test_sufficiency_by_hand():
    """The best token alone gives 3, the best two give 5: nothing is lost any more."""
    found = sufficiency(text(EFFECTS), FakeProbe(EFFECTS), fractions=(0.25, 0.5))
    near(found.curve, [[sigmoid(5) - sigmoid(3), 0.0]])


def test_the_paper_divides_by_one_more():
    given = {"explanation": text(EFFECTS), "probe": FakeProbe(EFFECTS)}
    by_code = measure(choose_metric("comprehensiveness", {"fractions": (0.25, 0.5), "preset": "released"}), given).value
    by_paper = measure(choose_metric("comprehensiveness", {"fractions": (0.25, 0.5), "preset": "paper"}), given).value
    torch.testing.assert_close(by_paper, by_code * 2 / 3)


def test_tokens_are_deleted_and_patches_left_to_the_probe():
    for probe, e in ((FakeProbe(EFFECTS), text(EFFECTS)), (FakeProbe(EFFECTS, grid=(2, 2)), picture(EFFECTS, 2, 2))):
        comprehensiveness(e, probe)
        comprehensiveness(e, probe, fill="drop")
        assert probe.asked == [(5, None if probe.is_image else "delete"), (5, "drop")]


def test_all_variants_of_a_batch_go_in_one_call_and_come_back_to_their_examples():
    effects = [[3.0, 2.0, 1.0], [1.0, 0.5, 4.0]]  # logits 6 and 5.5
    probe = FakeProbe(effects)
    found = aopc(text(effects), probe, fractions=(0.34, 0.67, 1.0))
    assert probe.asked == [(6, "delete")]
    left = [[3, 1, 0], [1.5, 0.5, 0]]
    near(found.curve, [[sigmoid(before) - sigmoid(x) for x in row] for before, row in zip((6, 5.5), left, strict=True)])


# --- AOPC and log-odds ------------------------------------------------------------------------------------------------


def test_aopc_by_hand_keeps_its_sign():
    """The worst order: without -1 the logit is 6, then 5, then 3, then 0."""
    worst = [[1.0, 2.0, 3.0, 4.0]]
    found = aopc(text(worst), FakeProbe(EFFECTS), fractions=(0.25, 0.5, 0.75, 1.0))
    near(found.curve, [[sigmoid(5) - sigmoid(x) for x in (6, 5, 3, 0)]])
    absolute = aopc(text(worst), FakeProbe(EFFECTS), fractions=(0.25, 0.5, 0.75, 1.0), absolute=True)
    near(absolute.value, [sum(abs(sigmoid(5) - sigmoid(x)) for x in (6, 5, 3, 0)) / 4])


def test_log_odds_by_hand():
    found = log_odds(text(EFFECTS), FakeProbe(EFFECTS), fractions=(0.25, 0.5))
    near(found.value, [(math.log(sigmoid(2) / sigmoid(5)) + math.log(sigmoid(0) / sigmoid(5))) / 2])


def test_log_odds_of_no_probability_is_undefined():
    probe = FakeProbe(EFFECTS)
    plain = probe.answers
    probe.answers = lambda score: type(plain(score))(score, score, score[:, None])  # a regression
    probe.before = probe.answers(probe.before.score)
    assert log_odds(text(EFFECTS), probe).value.isnan().all()
    assert aopc(text(EFFECTS), probe, fractions=(0.25,)).value.tolist() == [3.0]


def test_released_aopc_is_what_the_released_code_does():
    """12 tokens: sizes round(12 k / 9) = 1, 3, 4, 5, 7, 8, 9, 11, 12; special ones are skipped, and the token ranked
    last of all is never removed. Effects are 2^i, so that every sum says which tokens are left."""
    effects = torch.tensor([[2.0**i for i in range(10)]])
    e, probe = text(effects * -1), FakeProbe(effects, bias=-500.0)  # token 0 goes first, token 9 is ranked last
    found = measure(choose_metric("aopc", {"preset": "released"}), {"explanation": e, "probe": probe})
    left = [1023 - (2**n - 1) for n in (1, 3, 4, 5, 7, 8, 9, 9, 9)]
    near(found.curve, [[abs(1.0 - sigmoid(x - 500)) for x in left]])


@pytest.mark.parametrize("edge", [0.0, 1.0], ids=["special_tokens_are_tied_too", "special_tokens_are_not"])
def test_released_aopc_with_ties_written_slowly(edge):
    """As in the released loop over a stable order: it stops before the last position, whatever stands there."""
    scores = [0.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    effects = [float(2**i) / 100 for i in range(10)]
    e, probe = text([scores]), FakeProbe([effects])
    e.scores[:, [0, -1]] = edge
    all_scores, all_effects = [edge, *scores, edge], [0.0, *effects, 0.0]
    order = sorted(range(12), key=lambda i: -all_scores[i])
    curve = []
    for size in (round(12 * k / 9) for k in range(1, 10)):
        removed = [i for i in order[:-1] if 0 < i < 11][:size]
        left = sum(effect for i, effect in enumerate(all_effects) if i not in removed)
        curve.append(abs(sigmoid(sum(effects)) - sigmoid(left)))
    near(measure(choose_metric("aopc", {"preset": "released"}), {"explanation": e, "probe": probe}).curve, [curve])


def test_released_aopc_leaves_out_short_texts():
    e, probe = text(torch.rand(1, 7)), FakeProbe(torch.rand(1, 7))  # 9 tokens with the special ones
    assert (
        measure(choose_metric("aopc", {"preset": "released"}), {"explanation": e, "probe": probe}).value.isnan().all()
    )


# --- perturbation -----------------------------------------------------------------------------------------------------


def test_perturbation_by_hand():
    """Ten patches of equal effect, logit 4.5 at first: wrong from the fifth on. Right at 0, 10, .. 40 %:
    four intervals of 0.1 full and a half one, 0.45; the other way round as well, since all are equal."""
    effects, label = [[1.0] * 10], torch.tensor([0])
    probe = FakeProbe(effects, grid=(2, 5), bias=-5.5)
    found = positive_perturbation(picture([list(range(10))], 2, 5), probe, label, per="patch")
    assert found.curve.tolist() == [[1.0] * 5 + [0.0] * 5]
    near(found.value, [45.0])
    near(positive_perturbation(picture(effects, 2, 5), probe, label, per="patch", renormalise=True).value, [50.0])
    assert found.at == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def test_positive_takes_the_highest_first_and_negative_the_lowest():
    """Effects 4, 3, 2, 1 with bias -5.5, logit 4.5. Without 4: 0.5, right. Without 4 and 3: wrong. From below:
    without 1 and 2: 1.5, right; without 3 as well: wrong."""
    effects = [[4.0, 3.0, 2.0, 1.0]]
    probe, e = FakeProbe(effects, grid=(2, 2), bias=-5.5), picture(effects, 2, 2)
    settings = dict(fractions=(0.25, 0.5, 0.75), per="patch")
    assert positive_perturbation(e, probe, LABEL, **settings).curve.tolist() == [[1.0, 1.0, 0.0, 0.0]]
    assert negative_perturbation(e, probe, LABEL, **settings).curve.tolist() == [[1.0, 1.0, 1.0, 0.0]]


def test_accuracy_is_against_what_is_asked_for():
    effects = [[4.0, 3.0, 2.0, 1.0]] * 2
    probe, e = FakeProbe(effects, grid=(2, 2), bias=-5.5), picture(effects, 2, 2)
    settings = dict(fractions=(0.25, 0.5), per="patch")
    found = positive_perturbation(e, probe, torch.tensor([1, -1]), **settings)
    assert found.curve[0].tolist() == [0.0, 0.0, 1.0]  # the label is the other class
    assert found.value.isnan().tolist() == [False, True]  # no label, no value
    for against in ("prediction", "target"):
        curve = positive_perturbation(e, probe, torch.tensor([-1, -1]), against=against, **settings).curve
        assert curve.tolist() == [[1.0, 1.0, 0.0]] * 2
    probe.before = type(probe.before)(probe.before.score, probe.before.score, probe.before.score[:, None])
    plain = probe.answers
    probe.answers = lambda score: type(plain(score))(score, score, score[:, None])
    assert positive_perturbation(e, probe, torch.tensor([0, 0]), **settings).value.isnan().all()  # one number, no class
    probe = FakeProbe(effects, grid=(2, 2), bias=-5.5)
    soft = positive_perturbation(e, probe, torch.tensor([-1, -1]), against="probability", **settings).curve
    near(soft, [[sigmoid(4.5), sigmoid(0.5), sigmoid(-2.5)]] * 2)
    assert choose_metric("positive_perturbation", {"against": "prediction"}).needs_truth is None
    assert choose_metric("positive_perturbation").needs_truth == "label"


def test_pixels_are_taken_from_the_enlarged_map():
    """2 x 2 patches of 2 x 2 pixels. Enlarged (weights 1, 3/4, 1/4, 0 along each axis) the top left patch has the
    highest four pixels: 1, 3/4, 3/4 and 9/16. One of them is a quarter of the patch's effect of 4."""
    effects = [[4.0, 3.0, 2.0, 1.0]]
    probe = FakeProbe(effects, grid=(2, 2), side=2, bias=-5.5)
    e = picture([[1.0, 0.0, 0.0, 0.0]], 2, 2)
    found = positive_perturbation(e, probe, LABEL, fractions=(0.0625, 0.25), against="probability")
    near(found.curve, [[sigmoid(4.5), sigmoid(3.5), sigmoid(0.5)]])
    assert probe.asked == [(2, "black")]


def test_a_map_of_pixels_is_taken_as_it_is():
    probe = FakeProbe([[4.0, 3.0, 2.0, 1.0]], grid=(2, 2), side=2, bias=-5.5)
    pixels = torch.zeros(1, 4, 4)
    pixels[0, 3, 3] = 1  # of the last patch, a quarter of 1
    e = picture([[0.0] * 4], 2, 2, pixels=pixels)
    found = positive_perturbation(e, probe, LABEL, fractions=(0.0625,), against="probability")
    near(found.curve, [[sigmoid(4.5), sigmoid(4.25)]])


def test_dropping_tokens_is_dropping_whole_patches():
    probe = FakeProbe(EFFECTS, grid=(2, 2), side=2)
    with pytest.raises(MetricError, match="per='patch'"):
        positive_perturbation(picture(EFFECTS, 2, 2), probe, LABEL, fill="drop")
    positive_perturbation(picture(EFFECTS, 2, 2), probe, LABEL, fill="drop", per="patch")
    assert probe.asked == [(9, "drop")]


# --- games ------------------------------------------------------------------------------------------------------------


def test_games_by_hand():
    """Fractions 0, 1/2, 1 of logits 5, 0, 0 going out and 0, 5, 5 coming in: trapezoid."""
    probe, e = FakeProbe(EFFECTS, grid=(2, 2)), picture(EFFECTS, 2, 2)
    settings = dict(fractions=(0, 0.5, 1), per="patch")
    near(deletion(e, probe, **settings).value, [(sigmoid(5) + sigmoid(0)) / 4 + sigmoid(0) / 2])
    near(insertion(e, probe, **settings).value, [(sigmoid(0) + sigmoid(5)) / 4 + sigmoid(5) / 2])
    assert probe.asked == [(3, "zero"), (3, "blur")]


# --- what cannot be done ----------------------------------------------------------------------------------------------


def test_nothing_left_of_a_text_is_undefined_and_its_neighbour_is_not():
    """Without special tokens, deleting every token leaves no input."""
    probe = FakeProbe([[1.0, 1.0], [2.0, 1.0]])
    probe.real = torch.ones(2, 4, dtype=torch.bool)
    e = text([[1.0, 1.0], [2.0, 1.0]])
    assert aopc(e, probe, fractions=(0.25, 1.0)).value.isnan().all()
    assert aopc(e, probe, fractions=(0.25, 0.5)).value.isfinite().all()
    assert positive_perturbation(e, probe, torch.tensor([0, 0]), fractions=(1.0,), fill="delete").value.isnan().all()


def test_an_example_without_units_is_undefined():
    probe, e = FakeProbe([[1.0, 1.0]] * 2), text([[1.0, 1.0]] * 2)
    probe.real[1] = False
    for found in (aopc(e, probe), comprehensiveness(e, probe), deletion(e, probe), sufficiency(e, probe)):
        assert found.value.isnan().tolist() == [False, True]
    assert positive_perturbation(e, probe, torch.tensor([0, 0])).value.isnan().tolist() == [False, True]


def test_wrong_questions_are_refused():
    e, probe = text(EFFECTS), FakeProbe(EFFECTS)
    for fractions in ((), (0.5, 0.2), (0.1, 1.5), (0.1, 0.1)):
        with pytest.raises(MetricError, match="fractions must increase from 0 to 1"):
            aopc(e, probe, fractions=fractions)
    with pytest.raises(MetricError, match="'fractions', 'ninths'"):
        aopc(e, probe, sizes="tenths")
    with pytest.raises(MetricError, match="'pixel', 'patch'"):
        deletion(e, probe, per="row")
    with pytest.raises(MetricError, match="against must be one of 'label', 'prediction', 'target', 'probability'; got"):
        positive_perturbation(e, probe, LABEL, against="luck")
    with pytest.raises(InputError, match="1 explanations for a probe with 2"):
        aopc(e, FakeProbe(EFFECTS * 2))
    with pytest.raises(InputError, match="patches are unknown"):
        aopc(picture(EFFECTS, 2, 2), FakeProbe([[1.0, 2.0]], grid=(1, 2)))
