"""Attention flow: against another solver, for simple cases, and how the subgraph is extended."""

import sys
from itertools import combinations, product
from time import process_time

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import attention_flow

module = sys.modules["whyformer.methods.attention_flow"]


def attention(layers, tokens, *, sharpness=1.0, seed=0, batch=1, heads=2):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(layers, batch, heads, tokens, tokens, dtype=torch.double, generator=generator)
    return (sharpness * noise).softmax(-1)


def pipes(given, example=0):
    mixing = given[:, example].mean(1) + torch.eye(given.size(-1))
    return (mixing / mixing.sum(-1, keepdim=True)).numpy()


def by_networkx(layers, read):
    """The graph as the paper draws it, one maximum flow a token."""
    depth, tokens = len(layers), len(read)
    graph = nx.DiGraph()
    for i in range(tokens):
        graph.add_edge("source", (depth, i), capacity=float(read[i]))
    for layer, i, j in product(range(depth), range(tokens), range(tokens)):
        graph.add_edge((layer + 1, i), (layer, j), capacity=float(layers[layer][i, j]))
    return np.array([nx.maximum_flow_value(graph, "source", (0, token)) for token in range(tokens)])


def one_hot(tokens, at=0):
    return torch.nn.functional.one_hot(torch.tensor([at]), tokens).double()


def test_two_tokens_two_layers_by_hand(cls):
    """Pipes 3/4 and 1/4 out of token 0, 1/2 and 1/2 out of token 1, twice. To token 0: 3/4 + min(1/4, 1/2) = 1. To
    token 1: min(3/4, 1/4) + min(1/4, 1/2) = 1/2. Shares 2/3 and 1/3."""
    a = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.double)
    given = torch.stack([a, a])[:, None, None]
    assert_close(attention_flow(given, *cls(2)), torch.tensor([[2 / 3, 1 / 3]], dtype=torch.double))


def test_one_layer_is_the_attention_itself(random_capture, run):
    capture = random_capture(layers=1, tokens=5)
    assert_close(run("attention_flow", capture), run("rollout", capture))


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 4),
    tokens=st.integers(1, 6),
    sharpness=st.sampled_from([0.3, 2.0, 8.0]),
    is_pooled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_agrees_with_networkx(layers, tokens, sharpness, is_pooled, seed):
    given = attention(layers, tokens, sharpness=sharpness, seed=seed)
    readout = torch.full((1, tokens), 1 / tokens).double() if is_pooled else one_hot(tokens, seed % tokens)
    flows = by_networkx(pipes(given), readout[0].numpy())
    found = attention_flow(given, readout, torch.ones(1, tokens, dtype=torch.bool))
    assert_close(found[0], torch.from_numpy(flows / flows.sum()), atol=1e-9, rtol=0)


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_a_part_of_the_graph_grows_until_it_is_enough(monkeypatch, sharpness):
    """With one pipe a token at first, most of the graph is left out."""
    given = attention(4, 8, sharpness=sharpness, seed=3)
    whole = by_networkx(pipes(given), one_hot(8)[0].numpy())
    monkeypatch.setattr(module, "INITIAL_EDGES", 1)
    flows = module.find_max_flows(pipes(given), one_hot(8)[0].numpy())
    assert np.abs(flows - whole).max() < 1e-8


def test_the_flow_is_the_smallest_of_all_cuts():
    """Every set of tokens in every layer, three tokens and three layers."""
    given = pipes(attention(3, 3, sharpness=3.0, seed=5))
    sides = [set(s) for n in range(4) for s in combinations(range(3), n)]

    def cost(token, upper, lower):
        total = sum(given[2][0, j] for j in range(3) if j not in upper)
        total += sum(given[1][i, j] for i in upper for j in range(3) if j not in lower)
        return total + sum(given[0][i, token] for i in lower)

    smallest = [min(cost(token, *pair) for pair in product(sides, sides)) for token in range(3)]
    assert module.find_max_flows(given, one_hot(3)[0].numpy()) == pytest.approx(smallest, abs=1e-12)


def test_what_crosses_a_cut_by_hand():
    cut = np.array([[True, False], [False, True]])
    pipes_there = np.ones((1, 2, 2), dtype=bool)
    assert module.find_crossing_edges(cut, pipes_there).tolist() == [[[True, False], [False, False]]]


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(1, 4), tokens=st.integers(1, 6), seed=st.integers(0, 99))
def test_is_a_distribution_and_never_below_what_rollout_sends(layers, tokens, seed):
    """Rollout is one way to send: no more can flow to a token by it than by the best way."""
    given = attention(layers, tokens, seed=seed)
    flows = module.find_max_flows(pipes(given), one_hot(tokens)[0].numpy())
    product_of_all = np.linalg.multi_dot([*pipes(given)[::-1], np.eye(tokens)])[0] if layers > 1 else pipes(given)[0][0]
    assert (flows >= product_of_all - 1e-9).all()
    assert (flows <= 1 + 1e-9).all()
    found = attention_flow(given, one_hot(tokens), torch.ones(1, tokens, dtype=torch.bool))
    assert_close(found.sum(-1), torch.ones(1, dtype=torch.double))


def test_tokens_that_nothing_reaches_get_nothing():
    """A causal model read at its first token."""
    causal = torch.ones(4, 4).tril().double()
    given = (causal / causal.sum(-1, keepdim=True)).expand(3, 1, 1, 4, 4)
    assert_close(attention_flow(given, one_hot(4), torch.ones(1, 4, dtype=torch.bool)), one_hot(4))


def test_refuses_a_residual_that_is_no_weight(random_capture, run):
    with pytest.raises(MethodError, match=r"residual must be a finite number >= 0 .*, got -1"):
        run("attention_flow", random_capture(), residual=-1)
    capture = random_capture(layers=1)
    assert_close(run("attention_flow", capture, residual=0), run("raw_attention", capture))


@pytest.mark.slow
def test_a_large_picture_takes_seconds():
    """197 tokens x 12 layers, as in a ViT-B/16; 1.5 s of one core when this was written."""
    given = attention(12, 197, sharpness=2.0, heads=1)
    before = process_time()
    attention_flow(given, one_hot(197), torch.ones(1, 197, dtype=torch.bool))
    assert process_time() - before < 30
