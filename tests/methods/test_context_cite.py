"""ContextCite: a sparse linear model of the log-odds, recovered and written slowly."""

import pytest
import torch
from conftest import animal, build
from games import PICTURES, TEXTS, WORTH, WORTH_OF_PICTURES, WORTH_OF_TEXTS, AddsPatches, AddsWords, Game, additive_game
from torch.testing import assert_close

import whyformer as why
from whyformer import targets
from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods import context_cite
from whyformer.methods._players import Players, choose_players
from whyformer.methods.context_cite import draw_ablations

FREE = {"penalty": 0.0, "budget": 64}


def test_ablations_keep_half_and_are_reproducible():
    drawn = draw_ablations(50, 200, make_generator(0, 7))
    assert drawn.shape == (200, 50) and abs(drawn.double().mean().item() - 0.5) < 0.02
    assert torch.equal(drawn, draw_ablations(50, 200, make_generator(0, 7)))
    assert not torch.equal(drawn, draw_ablations(50, 200, make_generator(1, 7)))


def test_recovers_what_adds_up():
    """Two classes whose logits are w and -2 w: the log-odds are 3 w."""
    for module, inputs, worth in (
        (AddsWords(WORTH), TEXTS, WORTH_OF_TEXTS),
        (AddsPatches(), PICTURES, WORTH_OF_PICTURES),
    ):
        e = why.explain(module, inputs, "context_cite", target=0, **FREE)
        assert_close(e.scores, 3 * worth, rtol=0, atol=1e-7)
        assert_close(e.details["r2"], torch.ones(2).double())
        assert_close(e.details["intercept"], torch.zeros(2).double(), rtol=0, atol=1e-7)


def test_is_sparse():
    """Two of 30 words count; the paper's penalty leaves hardly any other weight."""
    game = Game(additive_game([4.0, -3.0, *[0.001] * 28]), 30)
    scores = context_cite(game, penalty=0.1).values[0]
    assert scores.nonzero()[:, 0].tolist() == [0, 1]
    assert game.rows_asked == 64


def test_the_definition_written_slowly():
    """Every ablation by hand, the logit of the span's probability, the mean per token, scikit-learn's lasso."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    ids, span = torch.tensor([[5, 6, 7, 8, 11, 9, 10]]), targets.LogProbability(targets.Tokens(5, 6))
    gpt = build("gpt2")
    team = [Players(torch.tensor([0, 1, 1, 2, -1, -1, -1]), 3, (1, 3))]
    with choose_players(team):
        e = why.explain(gpt, {"input_ids": ids}, "context_cite", target=span, fill="delete", budget=12, seed=3)
    masks = draw_ablations(3, 12, make_generator(3, fingerprint_tensor(ids[0])))
    answers = []
    for first, second, third in masks.tolist():
        short = ids[:, [first, second, second, third, True, True, True]]
        with torch.no_grad():
            p = gpt(short).logits[0].softmax(-1)[[-3, -2], short[0, -2:]].prod()
        answers.append(torch.log(p / (1 - p)) / 2)
    z = masks.double().numpy()
    mean, scale = z.mean(0), z.std(0)
    lasso = linear_model.Lasso(alpha=0.01, tol=1e-12).fit((z - mean) / scale, torch.stack(answers).numpy())
    wanted = torch.tensor(2 * lasso.coef_ / scale)
    owner = team[0].owner
    found = torch.stack([e.scores[0][owner == player].sum() for player in range(3)])
    assert_close(found, wanted, rtol=0, atol=1e-7)
    assert (e.scores[0, 4:] == 0).all()


def test_chosen_players_are_those_of_every_method_without_units():
    game = Game(additive_game([1.0, 2.0, 4.0, 8.0]), 4)
    pairs = Players(torch.tensor([0, 0, 1, 1]), 2, (1, 2))
    with choose_players([pairs]):
        assert why.methods.leave_one_out(game).tolist() == [[1.5, 1.5, 6.0, 6.0]]
        assert why.methods.leave_one_out(game, units="token").tolist() == [[1.0, 2.0, 4.0, 8.0]]
    assert why.methods.leave_one_out(game).tolist() == [[1.0, 2.0, 4.0, 8.0]]


def test_settings_are_checked():
    bert = animal("bert")
    for wrong, match in (({"budget": 1}, "budget must be"), ({"penalty": -1}, "penalty must be")):
        with pytest.raises(MethodError, match=match):
            why.explain(bert.module, bert.inputs, "context_cite", **wrong)
