r"""Attention flow: the maximum flow from the answer to each token, with attention weights as capacities.

$$ s_v = \frac{f_v}{\sum_u f_u}, \qquad f_v = \max\mathrm{flow}\big((L, \text{readout}) \to (0, v)\big), \qquad
   c\big((l, i) \to (l-1, j)\big) = \hat A_l[i, j] \propto \mathbb{E}_h[A_l^h]_{ij} + \rho\,\delta_{ij} $$

with $c$ the capacity, rows of $\hat A$ scaled to sum to 1 and $\rho = 1$ (`residual`). Each token is a separate
problem: the flow to it may use all edges. If the answer is read at several tokens, the source feeds each of them with
its share.
Abnar & Zuidema, Quantifying Attention Flow in Transformers, ACL 2020, section 3. arXiv:2005.00928

We solve on a growing subgraph: the edges of largest capacity of each token, and all edges into $v$ itself. A flow
through the subgraph is a flow through the graph; and if no omitted edge crosses the minimum cut of the subgraph, that
cut is also one of the graph, so the flow is maximal. If omitted edges cross it, they are added and the subgraph is
solved again. The solver (Dinic's algorithm, in scipy) works on capacities as integers, in units of $2^{-30}$; the score
is the capacity of the minimum cut in full precision.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whyformer.methods._readout_row import mask_padding
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings
from whyformer.methods.rollout import allow_residual_weight

CAPACITY_SCALE = 2**30  # the total flow, 1, fits into 32 bits
INITIAL_EDGES = 16  # edges out of and into each token in the first subgraph


@method(paper="Abnar & Zuidema, ACL 2020", class_specific=False, signed=False)
@check_method_settings(residual=allow_residual_weight)
def attention_flow(attention: Sequence[Tensor], readout: Tensor, mask: Tensor, *, residual: float = 1.0) -> Tensor:
    """The maximum flow from the answer to each token, with attention and skip connections as edge capacities.

    residual: weight of the skip connection relative to attention; 0 is attention alone.
    """
    # The capacities of all layers, [batch layer query key], as numpy.
    capacities = []
    for layer in attention:
        mixing = layer.mean(dim=1).double()
        mixing = mixing + residual * torch.eye(mixing.size(-1), dtype=mixing.dtype, device=mixing.device)
        total = mixing.sum(-1, keepdim=True)
        capacities.append((mixing / total.masked_fill(total == 0, 1)).cpu().numpy())
    edges = np.stack(capacities, axis=1)  # batch layer query key
    scores = torch.zeros(mask.shape, dtype=torch.float64)
    for example, (real, read) in enumerate(zip(mask.cpu().numpy(), readout.double().cpu().numpy(), strict=True)):
        flows = find_max_flows(edges[example][:, real][:, :, real], read[real])
        scores[example, torch.from_numpy(real)] = torch.from_numpy(flows / max(flows.sum(), np.finfo(float).tiny))
    return mask_padding(scores.to(mask.device), readout, mask)


def find_max_flows(edges: np.ndarray, read: np.ndarray) -> np.ndarray:
    """The maximum flow to each token: edges [layer query key], read [token] (sums to 1)."""
    source, layers = read, edges[::-1]  # from the answer to the input
    if np.count_nonzero(read) == 1:  # the source has a single edge: start from the edges of its token
        source, layers = layers[0][np.argmax(read)], layers[1:]
    if len(layers) == 0:
        return source
    between, last = layers[:-1], layers[-1]
    kept, is_edge = find_widest_edges(between), to_capacity_units(between) > 0
    flows = np.zeros(len(source))
    for token in range(len(source)):
        into_token = np.zeros_like(kept)
        into_token[:, :, token] = is_edge[:, :, token]
        while True:
            subgraph = kept | into_token
            cut = find_min_cut(source, between, subgraph, last[:, token])
            if not (missing := find_crossing_edges(cut, is_edge & ~subgraph)).any():
                break
            kept |= missing
        # The total capacity of all edges from the source side, cut [layer token] bool, to the sink side.
        total = source[~cut[0]].sum() + last[:, token][cut[-1]].sum()
        for layer, above, below in zip(between, cut, cut[1:], strict=False):
            total += layer[np.ix_(above, ~below)].sum()
        flows[token] = float(total)
    return flows


def find_widest_edges(layers: np.ndarray) -> np.ndarray:
    """True at the edges of largest capacity out of and into each token."""
    kept = np.zeros(layers.shape, dtype=bool)
    count = min(INITIAL_EDGES, layers.shape[-1])
    for axis in (1, 2):
        order = np.argpartition(-layers, count - 1, axis=axis)
        np.put_along_axis(kept, np.take(order, range(count), axis=axis), True, axis=axis)
    return kept & (layers > 0)


def find_crossing_edges(cut: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The given edges [layer query key] that lead from the source side of the cut to the sink side."""
    return edges & cut[:-1, :, None] & ~cut[1:, None, :]


def find_min_cut(source: np.ndarray, between: np.ndarray, kept: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """[layer token] bool: the tokens on the source side of a minimum cut of the subgraph with the edges `kept`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    nodes = 1 + np.arange((len(between) + 1) * len(source)).reshape(-1, len(source))
    end = nodes.size + 1
    layer, above, below = np.nonzero(kept)
    heads = np.concatenate([np.zeros(len(source), int), nodes[layer, above], nodes[-1]])
    tails = np.concatenate([nodes[0], nodes[layer + 1, below], np.full(len(source), end)])
    given = np.concatenate(
        [to_capacity_units(source), to_capacity_units(between[layer, above, below]), to_capacity_units(sink)]
    )
    graph = coo_array((given, (heads, tails)), shape=(end + 1, end + 1)).tocsr()
    left = graph - maximum_flow(graph, 0, end).flow
    left.eliminate_zeros()
    reached = np.zeros(end + 1, dtype=bool)
    reached[breadth_first_order(left, 0, return_predecessors=False)] = True
    return reached[1:-1].reshape(nodes.shape)


def to_capacity_units(widths: np.ndarray) -> np.ndarray:
    return (widths * CAPACITY_SCALE).round().astype(np.int32)
