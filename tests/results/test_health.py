"""Health: the conservation check, by hand and on models, and saved with an explanation."""

import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer._engine.capture.capture import AbsorbedRelevance, Capture
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import CHEFER, CHEFER_BASELINE, LIBRA, RECIPES
from whyformer._engine.targets.target import Target
from whyformer._explain.conservation import REQUIRED_SITES, check_health
from whyformer.errors import InputError, NotCaptured
from whyformer.results.health import Health


def by_hand(arrived: float = 6.0) -> Capture:
    """One block: 10 is sent, the head's bias absorbs 1, the block's softmax 2, a position 1; 6 should arrive."""
    states = [torch.tensor([[[7.0, 0.0]]]), torch.tensor([[[-3.0, 12.0]]])]
    taken = (
        AbsorbedRelevance("positions", 3, torch.tensor([1.0])),
        AbsorbedRelevance("softmax", 9, torch.tensor([2.0])),
        AbsorbedRelevance("biases", 20, torch.tensor([1.0])),
    )
    held = {("hidden_relevance", LIBRA): states, ("input_relevance", LIBRA): torch.tensor([[[arrived]]])}
    return Capture((Target(0, "a", 10.0),), (), None, torch.zeros(1, 2), (5, 15), {LIBRA: taken}, (), held)


def test_totals_by_hand():
    health = check_health(by_hand(), LIBRA)
    assert health.sent.tolist() == [10]
    assert health.relevance.tolist() == [[7, 9]]
    assert health.magnitude.tolist() == [[7, 15]]
    assert {who: amount.tolist() for who, amount in health.absorbed_by.items()} == {
        "positions": [[1, 0, 0]],
        "softmax": [[0, 2, 0]],
        "biases": [[0, 0, 1]],
    }
    assert health.error.tolist() == [[0, 0, 0]]
    assert health.is_conserved
    assert health.verdict == (
        "Relevance totals balance (error 0e+00): 60% of the relevance sent reached the input; "
        "most of the rest was absorbed by softmax."
    )


def test_the_verdict_names_where_relevance_is_missing():
    """4 of 15, the largest magnitude at any boundary, are missing before the first block."""
    health = check_health(by_hand(arrived=2.0), LIBRA)
    assert health.error[0].tolist() == pytest.approx([4 / 15, 0, 0])
    assert not health.is_conserved
    assert health.verdict == "Relevance totals do not balance: 2.7e-01 of the relevance is missing in the embedding."


def test_the_table_goes_from_the_output_to_the_input():
    shown = str(check_health(by_hand(), LIBRA)).splitlines()
    assert shown[0] == "relevance under libra: 10 sent"
    assert shown[1].split() == ["below", "relevance", "positions", "softmax", "biases", "error"]
    assert shown[2].split() == ["the", "head", "9", "0", "0", "1", "0e+00"]
    assert shown[3].split() == ["block", "0", "7", "0", "2", "0", "0e+00"]
    assert shown[4].split() == ["the", "embedding", "6", "1", "0", "0", "0e+00"]
    assert shown[5].startswith("Relevance totals balance")
    assert len({len(line) for line in shown[1:5]}) == 1


def test_round_trip_through_details():
    health = check_health(by_hand(), LIBRA)
    restored = Health.from_details(health.to_details(), "libra")
    assert str(restored) == str(health)
    assert str(health[0:1]) == str(health)
    assert Health.from_details({"per_layer": torch.ones(1)}, "libra") is None


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "encoder_token_first"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_the_totals_of_every_recipe_balance(name, recipe):
    """This includes the recipe that doubles: what it creates counts as absorbed with a minus sign."""
    it = animal(name)
    model = why.open(it.module)
    capture = record(
        model,
        model.encode(it.inputs),
        target=[0, 1, 2],
        keep=set(REQUIRED_SITES),
        recipes=[recipe],
        track_absorbed=True,
    )
    health = check_health(capture, recipe)
    assert health.is_conserved
    assert health.error.amax() < 1e-9
    assert health.relevance.shape == (3, len(capture.boundaries))
    if recipe is CHEFER_BASELINE:
        assert "not conserved" in health.verdict and health.absorbed_by["doubling (negative: made from nothing)"].any()
    if recipe is CHEFER:
        torch.testing.assert_close(health.relevance, torch.ones_like(health.relevance), rtol=0, atol=1e-7)


def test_a_rule_that_loses_relevance_is_detected():
    """Half of the relevance is lost at each activation, in the MLP of every block."""
    broken = {**LIBRA.rules, "activation": lambda *given: tuple(s / 2 for s in LIBRA.rules["activation"](*given))}
    recipe = type(LIBRA)("broken", broken, sends="slope", attention_part=0)
    it = animal("vit")
    model = why.open(it.module)
    capture = record(model, model.encode(it.inputs), keep=set(REQUIRED_SITES), recipes=[recipe], track_absorbed=True)
    health = check_health(capture, recipe)
    assert not health.is_conserved
    assert "missing in block" in health.verdict
    assert (health.error[:, [0, -1]] < 1e-9).all()


def test_a_contrast_sends_the_difference():
    it = animal("bert")
    for method in ("attnlrp", "lrp"):
        e = why.explain(why.open(it.module), it.inputs, method, target=1, versus=2, health=True)
        assert e.health.is_conserved
        wanted = [target.score for target in e.targets] if method == "attnlrp" else [0, 0, 0]
        assert e.health.sent.tolist() == pytest.approx(wanted)


def test_an_explanation_saves_the_check(tmp_path):
    it = animal("bert")
    e = why.explain(why.open(it.module), it.inputs, "libragrad", health=True)
    assert e.health.recipe == "libra"
    assert e[1].health.sent.tolist() == [e.targets[1].score]
    for file in ("e.json", "e.safetensors"):
        e.save(tmp_path / file)
        assert str(why.load(tmp_path / file).health) == str(e.health)
    plain = why.explain(why.open(it.module), it.inputs, "libragrad")
    torch.testing.assert_close(plain.scores, e.scores)  # with health, attention is taken step by step
    with pytest.raises(InputError, match=r"Relevance totals were not recorded\. Pass health=True to explain\(\)\."):
        plain.health  # noqa: B018
    with pytest.raises(InputError, match="rollout propagates no relevance"):
        why.explain(why.open(it.module), it.inputs, "rollout").health  # noqa: B018


def test_a_method_without_relevance_has_no_health_setting():
    it = animal("bert")
    with pytest.raises(why.WhyformerError, match="rollout has no setting 'health'"):
        why.explain(why.open(it.module), it.inputs, "rollout", health=True)


def test_absorbed_relevance_must_be_tracked():
    it = animal("bert")
    model = why.open(it.module)
    capture = record(model, model.encode(it.inputs), keep=set(REQUIRED_SITES), recipes=[LIBRA])
    with pytest.raises(NotCaptured, match=r"not tracked for the recipe libra\. Pass track_absorbed=True"):
        check_health(capture, LIBRA)


def test_a_contrast_that_sends_no_relevance_has_no_share():
    """1 - 1 = 0 is sent. The verdict is about the example without a contrast."""
    it = animal("bert")
    model = why.open(it.module.float())
    try:
        e = why.explain(model, it.inputs, "lrp", target=0, versus=1, health=True)
        mixed = why.explain(model, it.inputs, "lrp", target=0, versus=[1, None, 1], health=True)
        alone = why.explain(model, it.inputs, "lrp", target=0, health=True)
    finally:
        it.module.double()
    assert "no share of it can be given" in e.health.verdict
    assert mixed.health.verdict.split(":")[1] == alone[1:2].health.verdict.split(":")[1]
