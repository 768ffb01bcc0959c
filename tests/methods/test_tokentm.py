"""TokenTM: attention weighed by what becomes of the tokens."""

import math

import pytest
import torch
from torch.testing import assert_close

from whyformer.methods.tokentm import measure_transformation


def test_the_effect_of_a_transformation_by_hand():
    """Two tokens: one doubled in length and kept in direction (cosine 1), one as long and turned square (cosine 0)."""
    before = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]], dtype=torch.double)
    after = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]], dtype=torch.double)
    mean = (math.e + 1) / 2
    expected = torch.tensor([[2 * math.e / mean, 1 / mean]], dtype=torch.double)
    assert_close(measure_transformation(before, after, torch.ones(1, 2, dtype=torch.bool)), expected)


def test_a_transformation_that_only_scales_scales():
    before = torch.randn(2, 5, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert_close(measure_transformation(before, 3 * before, mask), torch.full((2, 5), 3.0, dtype=torch.double))


def test_padding_does_not_count_in_the_mean():
    generator = torch.Generator().manual_seed(0)
    before, after = (torch.randn(1, 5, 4, dtype=torch.double, generator=generator) for _ in range(2))
    short = measure_transformation(before[:, :3], after[:, :3], torch.ones(1, 3, dtype=torch.bool))
    assert_close(measure_transformation(before, after, torch.tensor([[True] * 3 + [False] * 2]))[:, :3], short)


def slowly(capture):
    """Whole matrices, from the input to the output; one example."""
    tokens = capture["mask"].shape[-1]
    product = torch.diag(capture["residual"][0, 0].norm(dim=-1))
    for layer in range(len(capture["attention"])):
        weights = []
        for before, after in (
            (capture["residual"][layer, 0], capture["projected"][layer, 0].sum(0)),
            (capture["middle"][layer, 0], capture["update"][layer, 0]),
        ):
            cosines = [float(b @ a / b.norm() / a.norm()) for b, a in zip(before, after, strict=True)]
            mean = sum(math.exp(c) for c in cosines) / tokens
            lengths = [float(a.norm() / b.norm()) for b, a in zip(before, after, strict=True)]
            factors = [length * math.exp(c) / mean for length, c in zip(lengths, cosines, strict=True)]
            weights.append(torch.diag(torch.tensor(factors, dtype=torch.double)))
        seen = (capture["attention_grad"][layer, 0] * capture["attention"][layer, 0]).clamp(min=0).mean(0)
        unit = torch.eye(tokens, dtype=torch.double)
        product = (unit + weights[1]) @ (unit + seen @ weights[0]) @ product
    return product[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agrees_with_whole_matrices(random_capture, run, seed):
    capture = random_capture(layers=3, seed=seed)
    assert_close(run("tokentm", capture)[0], slowly(capture))


def test_without_a_gradient_only_the_token_itself_remains(random_capture, run):
    capture = random_capture()
    scores = run("tokentm", capture | {"attention_grad": torch.zeros_like(capture["attention"])})
    assert scores[0, 0] > 0
    assert not scores[0, 1:].any()
