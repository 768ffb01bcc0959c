"""Stability by hand: what the explanations of shaken inputs are is known."""

from dataclasses import replace

import pytest
import torch
from fake_probe import picture, text
from fake_rerun import FakeRerun

from whyformer._plain.random_generator import make_generator
from whyformer.errors import MetricError
from whyformer.metrics import consistency, max_sensitivity, repeatability
from whyformer.metrics.stability import add_input_noise, swap_neighbours

E = picture([[4.0, 3.0, 2.0, 1.0]], 2, 2)
PIXELS = torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 2, 2)


def drawn(inputs, seed=0, **_):
    """A map that is random, and another one for every input."""
    return torch.stack(
        [torch.rand(4, generator=make_generator(seed, hash(tuple(one.flatten().tolist())))) for one in inputs]
    )


def test_repeatability_by_hand():
    """Ranks 4321 and 3421: squared differences 1 + 1, 1 - 6 * 2 / (4 * 15) = 0.8."""
    again = FakeRerun(E, PIXELS, lambda **_: torch.tensor([[3.0, 4.0, 2.0, 1.0]]))
    found = repeatability(E, again, runs=3)
    assert found.value.item() == pytest.approx(0.8, abs=1e-12)
    assert found.curve.shape == (1, 3)


def test_repeatability_turns_the_seed_of_methods_that_have_one():
    seeded = replace(E, settings={"seed": 5})
    again = FakeRerun(E, PIXELS, lambda **_: E.scores)
    assert repeatability(seeded, again).value.item() == pytest.approx(1)
    assert [one["seed"] for one in again.asked] == [6, 7]
    again = FakeRerun(E, PIXELS, lambda **_: E.scores)
    repeatability(E, again)
    assert ["seed" in one for one in again.asked] == [False, False]


def test_special_tokens_take_no_part():
    """[CLS] and [SEP] are 0 in both; the words are turned round."""
    e = text([[3.0, 2.0, 1.0]])
    again = FakeRerun(e, torch.zeros(1, 5, dtype=torch.long), lambda **_: torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.0]]))
    assert repeatability(e, again).value.item() == pytest.approx(-1)


def test_a_random_map_does_not_pass():
    many = picture(torch.rand(60, 4, generator=make_generator(0, 0)), 2, 2, settings={"seed": 0})
    pixels = torch.rand(60, 1, 2, 2, generator=make_generator(0, 1), dtype=torch.float64)
    assert abs(repeatability(many, FakeRerun(many, pixels, drawn)).value.mean()) < 0.2
    assert abs(consistency(many, FakeRerun(many, pixels, drawn)).value.mean()) < 0.2
    assert max_sensitivity(many, FakeRerun(many, pixels, drawn)).value.mean() > 0.7


def test_a_map_that_ignores_the_noise_is_perfectly_stable():
    again = FakeRerun(E, PIXELS, lambda of, **_: E.scores[of])
    assert consistency(E, again).value.item() == pytest.approx(1)
    assert max_sensitivity(E, again).value.tolist() == [0.0]


def test_max_sensitivity_by_hand():
    """Maps 3 and 1 away from (4, 3, 2, 1) in one place: 3 / sqrt(30)."""
    moved = torch.stack([E.scores[0], E.scores[0]])
    moved[0, 0] += 3
    moved[1, 2] -= 1
    found = max_sensitivity(E, FakeRerun(E, PIXELS, lambda **_: moved), samples=2)
    assert found.value.item() == pytest.approx(3 / 30**0.5, abs=1e-12)
    torch.testing.assert_close(found.curve, torch.tensor([[3.0, 1.0]], dtype=torch.float64) / 30**0.5)


def test_noise_is_in_parts_of_the_range_and_bounded():
    one = PIXELS[0]  # range 3
    shaken = add_input_noise(one, 0.1, 500, 0, 7, normal=False) - one
    assert -0.3 <= shaken.min() < -0.29 and 0.29 < shaken.max() <= 0.3  # both ways
    assert add_input_noise(one, 0.1, 500, 0, 7, normal=True).sub(one).std().item() == pytest.approx(0.3, rel=0.1)
    assert torch.equal(add_input_noise(one, 0.1, 3, 0, 7, normal=True), add_input_noise(one, 0.1, 3, 0, 7, normal=True))


def test_texts_have_neighbours_swapped_and_their_scores_put_back():
    """A map that scores the token itself, wherever it stands, does not change at all."""
    ids = torch.tensor([[0, 14, 13, 12, 11, 0]])
    e = text([[14.0, 13.0, 12.0, 11.0]])
    seen = []
    again = FakeRerun(e, ids, lambda inputs, **_: (seen.append(inputs), inputs.double())[1])
    assert consistency(e, again).value.item() == pytest.approx(1)
    assert max_sensitivity(e, again).value.tolist() == [0.0]
    for row in seen[0]:
        assert (row != ids[0]).sum() == 2 and row[0] == row[-1] == 0 and row.sum() == ids.sum()
    by_place = FakeRerun(e, ids, lambda inputs, **_: e.scores.expand(len(inputs), -1))
    assert consistency(e, by_place).value.item() == pytest.approx(0.8)  # two neighbouring ranks turned


def test_a_text_of_one_word_has_no_neighbours():
    assert swap_neighbours(torch.tensor([False, True, False]), 2, 0, 0).tolist() == [[0, 1, 2]] * 2


def test_undefined_for_flat_maps():
    flat = picture([[0.0] * 4], 2, 2)
    again = FakeRerun(flat, PIXELS, lambda of, **_: flat.scores[of])
    for found in (repeatability(flat, again), consistency(flat, again), max_sensitivity(flat, again)):
        assert found.value.isnan().all()


def test_settings_are_checked():
    again = FakeRerun(E, PIXELS, lambda of, **_: E.scores[of])
    with pytest.raises(MetricError, match="runs must be a whole number >= 1, got 0"):
        repeatability(E, again, runs=0)
    with pytest.raises(MetricError, match="samples must be a whole number >= 1"):
        consistency(E, again, samples=0)
