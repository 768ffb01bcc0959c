"""Raw attention."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import raw_attention

TWO_HEADS = torch.tensor([[[0.25, 0.75], [1.0, 0.0]], [[0.75, 0.25], [0.0, 1.0]]], dtype=torch.double)[None]


def test_two_heads_by_hand(cls):
    """Rows (1/4, 3/4) and (3/4, 1/4) have the mean (1/2, 1/2)."""
    assert_close(raw_attention([TWO_HEADS], *cls(2)), torch.tensor([[0.5, 0.5]], dtype=torch.double))


def test_another_readout_reads_another_row(cls):
    """Token 1: heads (1, 0) and (0, 1)... one head alone shows that it is the row, not the column."""
    readout = torch.tensor([[0.0, 1.0]], dtype=torch.double)
    assert_close(raw_attention([TWO_HEADS[:, :1]], readout, cls(2)[1]), torch.tensor([[1.0, 0.0]], dtype=torch.double))


def test_takes_the_last_layer_unless_told(random_capture, run):
    capture = random_capture(layers=3)
    for layer, same in [(-1, 2), (0, 0), (1, 1), (-3, 0)]:
        expected = capture["attention"][same].mean(1)[:, 0]
        assert_close(run("raw_attention", capture, layer=layer), expected)
    assert_close(run("raw_attention", capture), run("raw_attention", capture, layer=2))


def test_the_mean_over_all_layers(random_capture, run):
    capture = random_capture(layers=3)
    expected = torch.stack([layer.mean(1)[:, 0] for layer in capture["attention"]]).mean(0)
    assert_close(run("raw_attention", capture, layer="mean"), expected)
    own = run("raw_attention", capture, layer="mean", own="zero")
    assert own[0, 0] == 0 and bool((own[:, 1:] == run("raw_attention", capture, layer="mean")[:, 1:]).all())


def test_is_a_distribution_unless_the_own_cell_is_taken_out(random_capture, run):
    capture = random_capture()
    assert_close(run("raw_attention", capture).sum(-1), torch.ones(1, dtype=torch.double))
    without = run("raw_attention", capture, own="zero")
    assert without[0, 0] == 0
    assert_close(without[:, 1:], run("raw_attention", capture)[:, 1:])


def test_refuses_a_layer_that_is_not_there(random_capture, run):
    with pytest.raises(MethodError, match=r"layer must be between .* for this model, got 3"):
        run("raw_attention", random_capture(layers=3), layer=3)
