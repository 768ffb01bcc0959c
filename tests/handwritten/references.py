"""The models of the zoo written a second time, slowly: every attention matrix is a tensor on the graph.

Head by head and row by row, from the same weights, with no function that the zoo uses for its attention.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from handwritten import zoo
from handwritten.zoo import HEADS, LENGTH, SIZE, Case, Handwritten, Weights
from torch import Tensor


@dataclass
class Reference:
    """What a model computes, on the graph of autograd."""

    matrices: list[Tensor]  # [batch head query key] for each layer
    values: list[Tensor]  # [batch head key channel]
    states: list[Tensor]  # at the boundaries of the layers
    readout: Tensor  # [batch token]
    logits: Tensor


def attend_slowly(case: Case, w: Weights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The attention matrix, the values and their product with concatenated heads."""
    query, key, value = (
        f.weight @ x[..., None] + f.bias[:, None] for f in (w.query, w.key, w.value)
    )  # batch token channel 1
    shared = HEADS // case.key_heads  # queries per key head
    matrices, values, outputs = [], [], []
    for h in range(HEADS):
        own, theirs = slice(h * SIZE, (h + 1) * SIZE), slice(h // shared * SIZE, (h // shared + 1) * SIZE)
        q, k, v = query[:, :, own, 0], key[:, :, theirs, 0], value[:, :, theirs, 0]
        scores = torch.stack([(q * k[:, j : j + 1]).sum(-1) for j in range(x.size(1))], -1) / SIZE**0.5
        beside = (q * w.sink[h]).sum(-1, keepdim=True) / SIZE**0.5  # the score of a key that is no token
        matrices.append(weigh_slowly(case.name, w, scores, beside, h))
        values.append(v)
    matrix = torch.stack(matrices, 1)
    if case.name == "talking_heads":
        matrix = torch.stack([sum(w.talk[h, g] * matrix[:, h] for h in range(HEADS)) for g in range(HEADS)], 1)
    for h in range(HEADS):
        outputs.append(sum(matrix[:, h, :, j : j + 1] * values[h][:, j : j + 1] for j in range(x.size(1))))
        if case.name == "memory_keys":
            outputs[h] = outputs[h] + (1 - matrix[:, h].sum(-1, keepdim=True)) * w.sink[h]
    return matrix, torch.stack(values, 1), torch.cat(outputs, -1)


def weigh_slowly(name: str, w: Weights, scores: Tensor, beside: Tensor, head: int) -> Tensor:
    """The weights of one head, [batch query key]."""
    if name == "wide_softmax":
        scores = scores.float()
    e = scores.exp()
    if name == "causal_exp":
        e = e * torch.tensor([[float(j <= i) for j in range(LENGTH)] for i in range(LENGTH)])
    total = e.sum(-1, keepdim=True)
    if name == "softmax_one":
        total = total + 1
    if name == "sink_column":
        total = total + w.sink[head].exp()
    if name == "memory_keys":
        total = total + beside.exp()
    return (e / total).double()


def run_slowly(case: Case, module: Handwritten, ids: Tensor) -> Reference:
    x = module.words.weight[ids] + module.places
    x = x.detach().requires_grad_()
    matrices, values, states = [], [], [x]
    for layer in range(zoo.DEPTH):
        w = module.layers[0 if case.arrange is zoo.as_shared else layer]
        is_post = case.arrange is zoo.as_post_norm
        matrix, value, mixed = attend_slowly(case, w, x if is_post else w.before(x))
        added = mixed @ w.out.weight.T + w.out.bias
        if is_post:
            x = w.before(x + added)
            x = w.between(x + w.mlp(x))
        elif case.arrange is zoo.as_parallel:
            x = x + added + w.mlp(w.before(x))
        else:
            x = x + added
            x = x + w.mlp(w.between(x))
        matrices.append(matrix)
        values.append(value)
        states.append(x)
    readout, pooled = pool_slowly(case, module, module.last(x))
    return Reference(matrices, values, states, readout, pooled @ module.head.weight.T + module.head.bias)


def pool_slowly(case: Case, module: Handwritten, x: Tensor) -> tuple[Tensor, Tensor]:
    """How much is read of each token, and the pooled state."""
    batch = len(x)
    if case.pool is zoo.read_first:
        readout = F.one_hot(torch.zeros(batch, dtype=torch.long), LENGTH).double()
    elif case.pool is zoo.read_mean:
        readout = torch.full((batch, LENGTH), 1 / LENGTH, dtype=torch.float64)
    elif case.pool in (zoo.pool_softly, zoo.pool_by_bmm, zoo.pool_by_einsum):
        e = (x @ module.pool.weight[0] + module.pool.bias).exp()
        readout = e / e.sum(-1, keepdim=True)
    elif case.pool in (zoo.pool_maximum, zoo.pool_amax):
        pooled = torch.stack([x[b].max(0).values for b in range(batch)])
        counted = [[(x[b, j] == pooled[b]).double().mean() for j in range(LENGTH)] for b in range(batch)]
        return torch.tensor(counted, dtype=torch.float64), pooled
    else:
        return attend_with_probe(module, x)
    return readout.detach(), (readout[..., None] * x).sum(1)


def attend_with_probe(module: Handwritten, x: Tensor) -> tuple[Tensor, Tensor]:
    """The MAP head: what is read of a token is the mean of the weights that the heads give it."""
    w = module.map
    query, keys, values = w.query(module.probe), w.key(x), w.value(x)
    rows, made = [], []
    for h in range(HEADS):
        own = slice(h * SIZE, (h + 1) * SIZE)
        e = (keys[..., own] @ query[own] / SIZE**0.5).exp()
        rows.append(e / e.sum(-1, keepdim=True))
        made.append((rows[-1][..., None] * values[..., own]).sum(1))
    pooled = w.out(torch.cat(made, -1))
    return torch.stack(rows).mean(0).detach(), pooled + w.mlp(w.between(pooled))
