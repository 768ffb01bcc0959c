"""A series or a table with missing values (NaN), which the model itself fills in."""

import pytest
import torch
from torch import nn

import whyformer as why
from whyformer.errors import NonFinite


class Series(nn.Module):
    """Reads 8 steps of 3 numbers, missing ones as `filled` says."""

    def __init__(self, filled=lambda x: x):
        super().__init__()
        torch.manual_seed(0)
        self.filled, self.read, self.head = filled, nn.Linear(3, 24), nn.Linear(24, 4)
        self.steps = nn.Parameter(torch.randn(1, 8, 24))
        self.layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, dropout=0.0)
        self.double().eval()

    def forward(self, x):
        return self.head(self.layer(self.read(self.filled(x)) + self.steps).mean(1))


class Table(Series):
    """A column that is missing is a learned vector."""

    def __init__(self):
        super().__init__()
        self.missing, self.scale = (nn.Parameter(torch.randn(8, 24).double()) for _ in range(2))

    def forward(self, x):
        known = torch.nan_to_num(x)[..., None] * self.scale
        return self.head(self.layer(torch.where(x.isnan()[..., None], self.missing, known) + self.steps).mean(1))


def make_series() -> torch.Tensor:
    x = torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(1)).double()
    x[0, 2], x[0, 5, 1] = torch.nan, torch.nan
    return x


@pytest.mark.parametrize(
    "method", ["libragrad", "attnlrp", "gradient_x_input", "integrated_gradients", "leave_one_out", "rollout"]
)
def test_what_the_model_fills_in_is_as_if_it_were_given(method):
    model, x, fill = Series(torch.nan_to_num), make_series(), {}
    if method == "leave_one_out":  # the mean of what is known, not of zeros
        fill = {"fill": "zero"}
    for _ in range(3):  # the full engine, then a plan
        found = why.explain(model, x, method, **fill)
        assert any("4 numbers of the input are missing" in note for note in found.notes)
        given = why.explain(Series(), x.nan_to_num(), method, **fill)
        torch.testing.assert_close(found.scores, given.scores, rtol=1e-9, atol=1e-9)


def test_smooth_grad_moves_what_is_known():
    assert bool((why.explain(Series(torch.nan_to_num), make_series(), "smooth_grad", samples=2).scores > 0)[0, 5])


def test_a_missing_column_is_not_one_without_influence():
    model, x = Table(), torch.linspace(-2, 2, 8)[None].double()
    x[0, 3] = torch.nan
    scores = why.explain(model, x, "leave_one_out", target=0).scores[0]
    without = x.clone()
    without[0, 3] = x[~x.isnan()].mean()
    with torch.no_grad():
        fall = model(x)[0, 0] - model(without)[0, 0]
    assert abs(fall) > 0.05 and float(scores[3]) == pytest.approx(float(fall), abs=1e-9)


def test_a_model_that_fills_nothing_in_says_where_nan_comes_from():
    with pytest.raises(NonFinite, match="comes from read"):
        why.explain(Series(), make_series())


@pytest.mark.parametrize("filled", [lambda x: x.clamp(-1, 1), lambda x: torch.tanh(5 * x)])
def test_curvature_is_no_wrong_gradient(filled):
    for seed in range(6):  # single precision: a larger step
        x = torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(seed))
        x[0, 4] = 9.0
        assert not any(
            "gradients of this model's code" in note for note in why.explain(Series(filled).float(), x).notes
        )


def test_steps_of_whole_numbers_are_no_wrong_gradient():
    """They go to one side only, where curvature does not cancel."""
    for seed in (2, 8):
        x = torch.randint(0, 100, (1, 8, 3), generator=torch.Generator().manual_seed(seed)).float()
        notes = why.explain(Series(torch.log1p).float(), x).notes
        assert not any("gradients of this model's code" in note for note in notes)
