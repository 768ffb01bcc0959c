"""KernelSHAP is the Shapley value: by hand, by its definition, by its axioms."""

from functools import cache

import pytest
import torch
from conftest import TorchEncoder, animal
from games import (
    PICTURES,
    TEXTS,
    WORTH,
    WORTH_OF_PICTURES,
    WORTH_OF_TEXTS,
    AddsPatches,
    AddsWords,
    Game,
    additive_game,
    random_game,
    shapley,
)
from torch.testing import assert_close

import whyformer as why
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError, NonFinite
from whyformer.methods import kernel_shap
from whyformer.methods.kernel_shap import plan_coalitions, solve_shapley_values

LOOSE = {"rtol": 1e-9, "atol": 1e-9}


def test_by_hand():
    """The glove game: one left glove, two right ones, a pair is worth 1."""
    game = Game(lambda there: float(0 in there and bool({1, 2} & there)), 3)
    assert_close(kernel_shap(game).values, torch.tensor([[4 / 6, 1 / 6, 1 / 6]]).double())


@pytest.mark.parametrize("players", [1, 2, 3, 4, 5, 6])
def test_is_the_shapley_value_by_definition(players):
    worth = random_game(players, seed=players)
    game = Game(worth, players)
    found = kernel_shap(game, budget=2**players)
    assert_close(found.values[0], shapley(worth, players), **LOOSE)
    assert game.rows_asked == 2**players - 1  # all but the whole, which is known


def test_is_the_shapley_value_of_a_model():
    """Six tokens of a BERT, its answers to all 64 coalitions asked for by hand."""
    bert, ids = animal("bert").module, animal("bert").inputs["input_ids"][1:2, :6]
    e = why.explain(bert, {"input_ids": ids}, "kernel_shap", target=3)

    def worth(there):
        mask = torch.tensor([[int(j in there) for j in range(6)]])
        left = ids * mask
        with torch.no_grad():
            return float(bert(left, attention_mask=mask if there else None).logits[0, 3])

    assert_close(e.scores[0], shapley(cache(worth), 6), **LOOSE)
    assert_close(e.details["empty"][0].item(), worth(frozenset()), **LOOSE)


def test_recovers_what_adds_up():
    for module, inputs, worth in (
        (AddsWords(WORTH), TEXTS, WORTH_OF_TEXTS),
        (AddsPatches(), PICTURES, WORTH_OF_PICTURES),
    ):
        assert_close(why.explain(module, inputs, "kernel_shap", target=0).scores, worth, **LOOSE)


@pytest.mark.parametrize("budget", [4, 20, 60, 100, 300])
def test_adds_up_at_any_budget(budget):
    worth = random_game(8)
    found = kernel_shap(Game(worth, 8), budget=budget)
    total = worth(frozenset(range(8))) - worth(frozenset())
    assert abs(found.values.sum().item() - total) < 1e-9
    assert found.details["efficiency_error"].item() < 1e-9


def test_equals_get_the_same_and_dummies_get_nothing():
    """Players 0 and 1 do the same, player 4 does nothing."""
    inner = random_game(3, seed=9)

    def worth(there):
        return inner(frozenset(place for place, who in enumerate(({0, 1}, {2}, {3})) if who & there))

    game = Game(worth, 5)
    values = kernel_shap(game, budget=40).values[0]
    assert_close(values[0], values[1], **LOOSE)
    assert abs(values[4].item()) < 1e-9


def test_weights_of_all_coalitions_are_the_kernel():
    """Of four players the kernel is 3 / (4 * 1 * 3) = 1/4 for one or three, 3 / (6 * 2 * 2) = 1/8 for two."""
    some, weights = plan_coalitions(4, 14, make_generator(0, 0))
    assert len({tuple(row) for row in some.tolist()}) == 14
    sizes = some.sum(1)
    assert_close(weights[sizes != 2], torch.full((8,), 1 / 4).double())
    assert_close(weights[sizes == 2], torch.full((6,), 1 / 8).double())


def test_the_heaviest_sizes_come_first_and_the_rest_in_pairs():
    some, weights = plan_coalitions(10, 60, make_generator(0, 0))
    sizes = some.sum(1)
    assert len(some) == 60
    assert (sizes[:20] % 8 == 1).all()  # one or nine, each of them once
    assert len({tuple(row) for row in some[:20].tolist()}) == 20
    drawn = some[20:]
    assert torch.equal(drawn[:20], ~drawn[20:])
    assert set(drawn.sum(1).tolist()) <= set(range(2, 9))
    total = sum(9 / (k * (10 - k)) for k in range(1, 10))
    assert_close(weights.sum().item(), total)


def test_samples_come_near_the_exact_values():
    """On a game with interactions, and nearer the more of them."""
    pairs = torch.randn(10, 10, generator=torch.Generator().manual_seed(1)).double()
    triples = torch.randn(10, 10, 10, generator=torch.Generator().manual_seed(2)).double()

    def worth(there):
        at = sorted(there)
        return float(pairs[at][:, at].sum() + triples[at][:, at][:, :, at].sum())

    game = Game(worth, 10)
    exact = kernel_shap(game, budget=1024).values
    errors = [
        torch.stack(
            [(kernel_shap(game, budget=b, seed=s).values - exact).norm() / exact.norm() for s in range(5)]
        ).mean()
        for b in (40, 400)
    ]
    assert errors[1] < errors[0] / 2
    assert errors[1] < 0.15


def test_seeds():
    game = Game(random_game(9), 9)
    one, again, other = (kernel_shap(game, budget=30, seed=seed).values for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_of_several_minima_the_most_even_one():
    """One coalition of four players says nothing about who in it did it."""
    some = torch.tensor([[True, True, False, False]])
    values = solve_shapley_values(some, torch.ones(1), torch.tensor([3.0]).double(), torch.tensor(4.0).double())
    assert_close(values, torch.tensor([1.5, 1.5, 0.5, 0.5]).double())


def test_settings_are_checked():
    with pytest.raises(MethodError, match=r"budget must be a whole number >= .*, got 0"):
        kernel_shap(Game(additive_game([1.0]), 1), budget=0)


def test_a_text_of_nothing_gets_nothing():
    assert kernel_shap(Game(additive_game([]), 0)).values.shape == (1, 0)


class MasksItsPadding(torch.nn.Module):
    """Takes ids alone and hides the id 0 from its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = TorchEncoder(batch_first=True)

    def forward(self, input_ids):
        return self.encoder(input_ids, (input_ids != 0).long())


def test_a_model_that_masks_its_padding_has_no_answer_to_nothing():
    torch.manual_seed(0)
    model = why.open(MasksItsPadding().double().eval())
    ids = torch.tensor([[5, 9, 7, 12]])
    advice = r"every token replaced by padding \(token 0\) .* masks that token by itself.* Use fill='drop'"
    with pytest.raises(NonFinite, match=advice):
        why.explain(model, ids, "kernel_shap")
    e = why.explain(model, ids, "kernel_shap", fill="drop")
    assert e.scores.any() and e.details["efficiency_error"].max() < 1e-12
    loo = [why.explain(model, ids, "leave_one_out", fill=fill).scores for fill in ("pad", "delete")]
    torch.testing.assert_close(*loo)  # one token less is what the model sees, either way
