"""LeGrad: the mean over rows of gradients of each layer's own score; `preset="output"` has one score for all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import legrad

GRADIENT = torch.tensor([[[2.0, -4.0], [-1.0, 3.0]], [[-1.0, 2.0], [1.0, -9.0]]]).reshape(1, 1, 2, 2, 2).double()
HALF = torch.full((1, 1, 2, 2, 2), 0.5, dtype=torch.double)


def test_two_heads_one_layer_by_hand(cls):
    """Positive parts: rows (2, 0), (0, 3) of head 0, (0, 2), (1, 0) of head 1; their mean."""
    assert_close(legrad(HALF, *cls(2), GRADIENT), torch.tensor([[0.75, 1.25]], dtype=torch.double))


def test_output_reads_the_row_of_the_readout_by_hand(cls):
    """Of the same numbers the rows 0: (2, 0) and (0, 2)."""
    found = legrad(HALF, *cls(2), HALF, HALF, GRADIENT, preset="output")
    assert_close(found, torch.tensor([[1.0, 1.0]], dtype=torch.double))


def test_each_preset_has_its_gradient_and_layers(random_capture, run):
    capture = random_capture(layers=3)
    sites = {"paper": "layer_attention_grad", "released": "mean_attention_grad", "output": "attention_grad"}
    for preset, site in sites.items():
        changed = {name: torch.zeros_like(capture[name]) for name in sites.values() if name != site}
        assert_close(run("legrad", capture | changed, preset=preset), run("legrad", capture, preset=preset))
    last_two = run(
        "legrad", {k: v[1:] if "attention" in k else v for k, v in capture.items()}, preset="released", start=0
    )
    assert_close(run("legrad", capture, preset="released"), last_two)
    assert_close(run("legrad", capture, preset="released", start=1), last_two)
    assert (run("legrad", capture, preset="released", start=0) > last_two).any()


def test_one_layer_is_enough_for_the_released_form(random_capture, run):
    capture = random_capture(layers=1)
    assert_close(run("legrad", capture, preset="released"), run("legrad", capture, preset="released", start=0))


def test_the_first_layer_must_exist(random_capture, run):
    with pytest.raises(MethodError, match="start must be between -3 and 2"):
        run("legrad", random_capture(layers=3), start=3)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_written_slowly(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    g = capture["layer_attention_grad"]
    expected = torch.zeros(1, tokens, dtype=torch.double)
    for key in range(tokens):
        for layer in range(layers):
            for query in range(tokens):
                cells = [max(g[layer, 0, h, query, key].item(), 0) for h in range(heads)]
                expected[0, key] += sum(cells) / len(cells) / tokens
    assert_close(run("legrad", capture), expected)


def test_a_model_that_reads_the_mean_has_the_mean_of_all_rows(random_capture, run):
    capture = random_capture(layers=2, heads=2, tokens=4)
    mean = torch.full_like(capture["readout"], 1 / 4)
    wanted = capture["attention_grad"].clamp(min=0).mean(dim=(2, 3)).sum(0)
    assert_close(run("legrad", capture | {"readout": mean}, preset="output"), wanted)


def test_what_cannot_be_attended_to_gets_nothing(cls):
    """Under a causal mask the first token sees itself alone."""
    gradient = torch.full((1, 1, 1, 3, 3), 6.0, dtype=torch.double)
    attention = torch.ones(3, 3, dtype=torch.double).tril().expand(1, 1, 1, 3, 3)
    assert_close(legrad(attention, *cls(3), gradient), torch.tensor([[6.0, 4.0, 2.0]], dtype=torch.double))


def test_a_gradient_that_is_nowhere_positive_gives_nothing(random_capture, run):
    capture = random_capture()
    capture["layer_attention_grad"] = -capture["layer_attention_grad"].abs()
    assert not run("legrad", capture).any()


def test_attention_too_small_for_half_precision_is_no_mask(cls):
    """Head 0 pays so little to token 1 that it is 0 in 16 bits; head 1 pays some, so nothing is shut off."""
    attention = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]]).reshape(1, 1, 2, 2, 2).double()
    gradient = torch.ones(1, 1, 2, 2, 2, dtype=torch.double)
    found = legrad(attention, *cls(2), gradient, gradient, gradient, preset="output")
    assert found.tolist() == [[1, 1]]
