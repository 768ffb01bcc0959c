"""Contributions of tokens to tokens, and the methods that measure them: norm_analysis, globenc, alti."""

import pytest
import torch
from torch.testing import assert_close

from whyformer._engine.capture.residual import LinearNorm
from whyformer.errors import MethodError
from whyformer.methods import _contributions, alti, globenc, norm_analysis
from whyformer.methods._contributions import normalise_rows

A = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.double)[None, None]
U = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.double)[None, None]  # what a head brings from each token
X = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.double)[None]


def noise(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def first(tokens=2, batch=1):
    readout = torch.zeros(batch, tokens, dtype=torch.double)
    readout[:, 0] = 1
    return readout, torch.ones(batch, tokens, dtype=torch.bool)


def block(batch=2, heads=3, tokens=4, channels=6, seed=0, norms=0):
    made = tuple(
        LinearNorm(noise(batch, tokens, seed=seed + 7 + n).abs(), noise(channels, seed=seed + 9 + n), is_centred=True)
        for n in range(norms)
    )
    return (
        noise(batch, heads, tokens, tokens, seed=seed).softmax(-1),
        noise(batch, heads, tokens, channels, seed=seed + 1),
        noise(batch, tokens, channels, seed=seed + 2),
        made,
    )


def slowly(attention, projected, residual, norms, i, j):
    """T_i(x_j) of the first example, term by term."""
    vector = sum(attention[0, h, i, j] * projected[0, h, j] for h in range(attention.size(1)))
    if i == j:
        vector = vector + residual[0, i]
    for norm in norms:
        vector = norm.gain * (vector - vector.mean()) * norm.scale[0, i]
    return vector


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_lengths_by_hand():
    """Token 0 attends 1/4 to itself, (3, 4) of length 5, and 3/4 to token 1, (0, 1) of length 1."""
    found = norm_analysis([A], [U], [X], [()], *first())
    assert_close(found, torch.tensor([[1.25, 0.75]], dtype=torch.double))


def test_a_whole_block_by_hand():
    """With the residual token 0 brings itself (3/4 + 1, 1): the length of (1.75, 1)."""
    found = norm_analysis([A], [U], [X], [()], *first(), form="block")
    assert_close(found, torch.tensor([[(1.75**2 + 1) ** 0.5, 0.75]], dtype=torch.double))


def test_globenc_by_hand():
    """The same lengths, as shares; as they are in the released form."""
    own = (1.75**2 + 1) ** 0.5
    lengths = torch.tensor([[own, 0.75]], dtype=torch.double)
    assert_close(globenc([A], [U], [X], [()], *first()), lengths / (own + 0.75))
    for settings in ({"preset": "released"}, {"normalise": False}):
        assert_close(globenc([A], [U], [X], [()], *first(), **settings), lengths)
    assert_close(globenc([A], [U], [X], [()], *first(), preset="released", normalise=True), lengths / (own + 0.75))


def test_alti_by_hand():
    """y_0 = (1.75, 1) + (0, 0.75) = (1.75, 1.75), length 3.5 in the 1-norm. Without token 0 there remains (0, 0.75): it
    brings 2.75 nearer. Without token 1 there remains (1.75, 1): 0.75."""
    total = torch.tensor([[[1.75, 1.75], [0.0, 0.0]]], dtype=torch.double)
    expected = torch.tensor([[2.75, 0.75]], dtype=torch.double) / 3.5
    assert_close(alti([A], [U], [X], [total], [()], *first()), expected)


def test_a_token_that_leads_away_counts_nothing_for_alti():
    """It brings (3, 4) where the sum is (-1, -1)."""
    total = torch.full((1, 2, 2), -1.0, dtype=torch.double)
    a = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]], dtype=torch.double)
    brought = torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]], dtype=torch.double)
    own = torch.tensor([[[-1.0, 0.0], [0.0, 0.0]]], dtype=torch.double)
    assert_close(alti([a], [brought], [own], [total], [()], *first()), torch.tensor([[1.0, 0.0]], dtype=torch.double))


def test_shares_by_hand():
    matrix = torch.tensor([[[1.0, 3.0, 9.0], [0.0, 0.0, 9.0], [1.0, 1.0, 1.0]]])
    mask = torch.tensor([[True, True, False]])
    assert_close(normalise_rows(matrix, mask), torch.tensor([[[0.25, 0.75, 0.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]]]))


# --- the definition written slowly ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norms", [0, 1, 2])
@pytest.mark.parametrize("at_once", [1, 2**24])
def test_vectors_term_by_term(monkeypatch, norms, at_once):
    """In one go or query by query."""
    monkeypatch.setattr(_contributions, "MAX_VECTOR_ENTRIES", at_once)
    given = block(norms=norms)
    for channel in range(6):
        found = _contributions.measure_contributions(*given, lambda t, _, channel=channel: t[..., channel])
        expected = [[slowly(*given, i, j)[channel] for j in range(4)] for i in range(4)]
        assert_close(found[0], torch.tensor(expected, dtype=torch.double))


@pytest.mark.parametrize("norms", [0, 2])
def test_globenc_and_alti_as_products_of_matrices(norms):
    layers = [block(batch=1, seed=20 * layer, norms=norms) for layer in range(3)]
    totals = [noise(1, 4, 6, seed=100 + layer) for layer in range(3)]
    shares, lengths, nearer = (torch.eye(4).double() for _ in range(3))
    for given, y in zip(layers, totals, strict=True):
        first_norm = (*given[:3], given[3][:1])
        n = torch.tensor([[float(slowly(*given, i, j).norm()) for j in range(4)] for i in range(4)]).double()
        c = torch.tensor(
            [
                [
                    max(0.0, float(y[0, i].abs().sum() - (y[0, i] - slowly(*first_norm, i, j)).abs().sum()))
                    for j in range(4)
                ]
                for i in range(4)
            ]
        ).double()
        shares, lengths = n / n.sum(-1, keepdim=True) @ shares, n @ lengths
        nearer = c / c.sum(-1, keepdim=True).clamp(min=1e-300) @ nearer
    attention, projected, residual, behind = zip(*layers, strict=True)
    given = (attention, projected, residual, behind, *first(4))
    assert_close(globenc(*given)[0], shares[0], atol=1e-6, rtol=1e-6)
    assert_close(globenc(*given, preset="released")[0], lengths[0], atol=1e-6, rtol=1e-6)
    found = alti(attention, projected, residual, totals, behind, *first(4))[0]
    assert_close(found, nearer[0], atol=1e-6, rtol=1e-6)


# --- properties -------------------------------------------------------------------------------------------------------


def test_lengths_scale_with_values_and_shares_do_not():
    attention, projected, residual, _ = block()
    once = norm_analysis([attention], [projected], [residual], [()], *first(4, 2))
    assert_close(norm_analysis([attention], [3 * projected], [residual], [()], *first(4, 2)), 3 * once)
    shares = globenc([attention], [projected], [residual], [()], *first(4, 2))
    assert_close(globenc([attention], [3 * projected], [3 * residual], [()], *first(4, 2)), shares)
    assert_close(shares.sum(-1), torch.ones(2, dtype=torch.double))


def test_alti_keeps_its_digits_in_float32_where_each_token_brings_little():
    """The norm of the sum and its norm without one of 200 tokens agree in their first digits, so that their difference
    lost them: an error of 5e-4."""
    given, total = block(batch=1, heads=1, tokens=200), 20 * noise(1, 200, 6, seed=5)
    exact, found = (
        alti(*([t.to(dtype)] for t in (*given[:3], total)), [()], *(first(200)[0].to(dtype), first(200)[1]))
        for dtype in (torch.float64, torch.float32)
    )
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() <= 2e-6 * exact.max()


def test_unit_vectors_make_it_attention(random_capture, run):
    """One head and values of length 1, without the residual: lengths are the attention."""
    attention = noise(1, 1, 1, 4, 4).softmax(-1)
    projected = torch.nn.functional.normalize(noise(1, 1, 1, 4, 5, seed=1), dim=-1)
    found = norm_analysis(attention, projected, [None], [()], *first(4))
    assert_close(found, attention[0, :, 0, 0])


def test_alti_measures_with_either_norm():
    given = block()
    total = [noise(2, 4, 6, seed=5)]
    both = [alti([given[0]], [given[1]], [given[2]], total, [()], *first(4, 2), norm=n) for n in (1, 2)]
    assert not torch.allclose(*both)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("norm_analysis", {"form": "mlp"}, "form must be one of 'attention', 'block'; got 'mlp'"),
        ("norm_analysis", {"layer": 3}, "layer must be between .* for this model, got 3"),
        ("alti", {"norm": 3}, "norm must be one of 1, 2; got 3"),
    ],
)
def test_refuses_what_it_does_not_have(random_capture, run, name, wrong, message):
    with pytest.raises(MethodError, match=message):
        run(name, random_capture(), **wrong)
