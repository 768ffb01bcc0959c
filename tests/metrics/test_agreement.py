"""Agreement by hand."""

from dataclasses import replace

import pytest
import torch
from fake_probe import picture, text

from whyformer.metrics import agreement

E = picture([[4.0, 3.0, 2.0, 1.0]], 2, 2)


def test_agreement_by_hand():
    """0.8 with two neighbouring ranks turned, -1 with all turned: mean -0.1. Chance and itself take no part."""
    near = picture([[3.0, 4.0, 2.0, 1.0]], 2, 2)
    turned = picture([[1.0, 2.0, 3.0, 4.0]], 2, 2)
    others = {"self": E, "near": near, "turned": turned, "chance": replace(near, method="chance")}
    found = agreement(E, others)
    assert found.value.item() == pytest.approx(-0.1, abs=1e-12)
    assert found.curve.shape == (1, 2)


def test_special_tokens_take_no_part():
    """[CLS] and [SEP] are the same in both; without them the two are opposite."""
    assert agreement(text([[1.0, 2.0, 3.0]]), {"other": text([[3.0, 2.0, 1.0]])}).value.item() == pytest.approx(-1)


def test_undefined_alone_or_flat():
    assert agreement(E, {"self": E}).value.isnan().all()
    assert agreement(E, {"flat": picture([[1.0] * 4], 2, 2)}).value.isnan().all()


def test_random_scores_agree_with_nobody():
    rows = [torch.rand(100, 12, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    found = agreement(picture(rows[0], 3, 4), {"other": picture(rows[1], 3, 4)})
    assert abs(found.value.mean()) < 0.1
