"""Transformers as people write them: the same small weights, many ways to write attention, blocks and pooling.

Every model is a `Handwritten`: embeddings, layers with the weights of `Weights`, a head. They differ in three
functions: how a layer computes attention from queries, keys and values, how layers and their residuals are arranged,
and how tokens are pooled. `references.py` writes each of them a second time, slowly, with the matrices in plain sight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, LENGTH, BATCH, VOCABULARY, CLASSES = 8, 4, 2, 6, 3, 11, 3
SIZE = WIDTH // HEADS
GROUPS = 2  # of queries that share a key, in grouped attention
IDS = torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))

Attend = Callable[["Weights", Tensor, Tensor, Tensor], Tensor]


class Weights(nn.Module):
    """The weights of one layer. It has no forward: models call its parts."""

    def __init__(self, key_heads: int) -> None:
        super().__init__()
        self.key_heads = key_heads
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, key_heads * SIZE), nn.Linear(WIDTH, key_heads * SIZE)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sink = nn.Parameter(torch.zeros(HEADS))
        self.talk = nn.Parameter(torch.zeros(HEADS, HEADS))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [batch head token channel]."""
        made = (f(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for f in (self.query, self.key, self.value))
        query, key, value = made
        return query, key, value

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def join(heads: Tensor) -> Tensor:
    """[batch token channel] from [batch head token channel]."""
    return heads.transpose(1, 2).flatten(2)


# --- ways to write attention; each returns the concatenated heads, [batch token channel] -----------------------------


def plain(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return join((q @ k.mT / math.sqrt(SIZE)).softmax(-1) @ v)


def exp_over_sum(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(SIZE)
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return join((e / e.sum(-1, keepdim=True)) @ v)


def exp_over_sum_of_maximum(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`max(...)[0]`, detached; the total without its axis, put back by indexing."""
    scores = q @ k.mT / math.sqrt(SIZE)
    e = (scores - scores.max(-1, keepdim=True)[0].detach()).exp()
    total = e.sum(dim=-1)
    return join(e.div(total[..., None]) @ v)


def exp_times_reciprocal(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.mT / math.sqrt(SIZE))
    return join((e * e.sum(-1, keepdim=True).reciprocal()) @ v)


def normalised_exp(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return join(F.normalize(torch.exp(q @ k.mT / math.sqrt(SIZE)), p=1, dim=-1) @ v)


def log_sum_exp(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(SIZE)
    return join(torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True)) @ v)


def exp_of_log_softmax(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return join(F.log_softmax(q @ k.mT / math.sqrt(SIZE), dim=-1).exp() @ v)


def exp_after_values(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(e @ v) / sum(e): the weights are never divided. Flash attention written by hand does this."""
    scores = q @ k.mT / math.sqrt(SIZE)
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return join((e @ v) / e.sum(-1, keepdim=True))


def causal_exp(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask multiplies the exponentials."""
    e = torch.exp(q @ k.mT / math.sqrt(SIZE)) * torch.ones(LENGTH, LENGTH, dtype=q.dtype).tril()
    return join((e / e.sum(-1, keepdim=True)) @ v)


def wide_softmax(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In float32 and back. The model is in float64, so this one rounds."""
    return join((q @ k.mT / math.sqrt(SIZE)).float().softmax(-1).to(v.dtype) @ v)


def softmax_one(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Miller, Attention is off by one, 2023: exp(x) / (1 + sum(exp(x)))."""
    scores = q @ k.mT / math.sqrt(SIZE)
    highest = scores.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(scores - highest)
    return join((e / (e.sum(-1, keepdim=True) + torch.exp(-highest))) @ v)


def sink_column(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A learned score per head joins the softmax and is dropped afterwards."""
    scores = q @ k.mT / math.sqrt(SIZE)
    sink = w.sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return join(torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v)


def talking_heads(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / math.sqrt(SIZE)).softmax(-1)
    return join(torch.einsum("bhij,hg->bgij", weights, w.talk) @ v)


def grouped_einsum(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Five axes; keys and values have no axis for the heads of a group."""
    q = q.unflatten(1, (GROUPS, -1))
    weights = (torch.einsum("bghqd,bgkd->bghqk", q, k) / math.sqrt(SIZE)).softmax(-1)
    return join(torch.einsum("bghqk,bgkd->bghqd", weights, v).flatten(1, 2))


def grouped_token_first(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[batch token group head channel]."""
    q, k, v = q.transpose(1, 2).unflatten(2, (GROUPS, -1)), k.transpose(1, 2), v.transpose(1, 2)
    weights = (torch.einsum("bqghd,bkgd->bghqk", q, k) / math.sqrt(SIZE)).softmax(-1)
    return torch.einsum("bghqk,bkgd->bqghd", weights, v).flatten(2)


def grouped_expand(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).reshape(q.shape) for t in (k, v))
    return plain(w, q, k, v)


def grouped_repeat(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(w, q, *(t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v)))


def grouped_broadcast(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.unflatten(1, (GROUPS, -1)), k[:, :, None], v[:, :, None]
    return join(((q @ k.mT / math.sqrt(SIZE)).softmax(-1) @ v).flatten(1, 2))


def multi_query(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One key head for all: "bhid,bjd->bhij"."""
    k, v = k[:, 0], v[:, 0]
    weights = (torch.einsum("b h i d, b j d -> b h i j", q, k) / math.sqrt(SIZE)).softmax(dim=-1)
    return join(torch.einsum("b h i j, b j d -> b h i d", weights, v))


def head_loop(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = []
    for h in range(HEADS):
        weights = (q[:, h] @ k[:, h].transpose(1, 2) / math.sqrt(SIZE)).softmax(-1)
        made.append(weights @ v[:, h])
    return torch.cat(made, -1)


def head_loop_stacked(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    triples = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
    made = [torch.bmm((torch.bmm(a, b.mT) / math.sqrt(SIZE)).softmax(-1), c) for a, b, c in triples]
    return join(torch.stack(made, 1))


def chunked_queries(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = [(part @ k.mT / math.sqrt(SIZE)).softmax(-1) @ v for part in q.split(4, dim=2)]
    return join(torch.cat(made, 2))


def chunked_and_joined(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fused attention by chunks of two queries, whose heads are concatenated before the chunks are."""
    made = [join(F.scaled_dot_product_attention(q[:, :, i : i + 2], k, v)) for i in range(0, LENGTH, 2)]
    return torch.cat(made, 1)


def folded(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.reshape(-1, LENGTH, SIZE) for t in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 1, 1, dtype=q.dtype), q, k.mT, beta=0, alpha=1 / math.sqrt(SIZE))
    return join(torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, HEADS)))


def folded_heads_first(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[head*batch token channel], as in Kyubyong Park's Transformer."""
    q, k, v = (t.transpose(0, 1).flatten(0, 1) for t in (q, k, v))
    made = torch.bmm((torch.bmm(q, k.mT) / math.sqrt(SIZE)).softmax(-1), v)
    return join(made.unflatten(0, (HEADS, -1)).transpose(0, 1))


def heads_first(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[head batch token channel]."""
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    return join(((q @ k.mT / math.sqrt(SIZE)).softmax(-1) @ v).transpose(0, 1))


def transposed(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys as rows: softmax over axis -2, values from the left."""
    weights = (k @ q.mT / math.sqrt(SIZE)).softmax(-2)
    return join((v.mT @ weights).mT)


def memory_keys(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A learned key and value that belong to no token."""
    extra = w.sink.view(1, HEADS, 1, 1).expand(q.size(0), -1, 1, SIZE)
    return plain(w, q, torch.cat([extra, k], 2), torch.cat([extra, v], 2))


# --- ways to arrange layers ------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, weights: Weights, attend: Attend) -> None:
        super().__init__()
        self.weights, self.attend = weights, attend

    def forward(self, x: Tensor) -> Tensor:
        w = self.weights
        x = x + w.out(self.attend(w, *w.split(w.before(x))))
        return x + w.mlp(w.between(x))


class Attention(nn.Module):
    """Norm and projections included, without the residual, as in vit-pytorch."""

    def __init__(self, weights: Weights, attend: Attend) -> None:
        super().__init__()
        self.weights, self.attend = weights, attend

    def forward(self, x: Tensor) -> Tensor:
        return self.weights.out(self.attend(self.weights, *self.weights.split(self.weights.before(x))))


class FeedForward(nn.Module):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return self.weights.mlp(self.weights.between(x))


def as_blocks(model: "Handwritten", x: Tensor) -> Tensor:
    for block in model.parts:
        x = block(x)
    return x


def as_pairs(model: "Handwritten", x: Tensor) -> Tensor:
    """vit-pytorch: a ModuleList of [attention, feed-forward]."""
    for attention, feed_forward in model.parts:
        x = attention(x) + x
        x = feed_forward(x) + x
    return x


def as_functions(model: "Handwritten", x: Tensor) -> Tensor:
    """No module is a block; the residual is changed in place."""
    for w in model.layers:
        branch = w.out(model.attend(w, *w.split(w.before(x))))
        x = x + branch
        x += w.mlp(w.between(x))
    return x


def as_post_norm(model: "Handwritten", x: Tensor) -> Tensor:
    for w in model.layers:
        x = w.before(x + w.out(model.attend(w, *w.split(x))))
        x = w.between(x + w.mlp(x))
    return x


def as_parallel(model: "Handwritten", x: Tensor) -> Tensor:
    """Attention and MLP side by side, the residual added last."""
    for w in model.layers:
        normed = w.before(x)
        x = w.out(model.attend(w, *w.split(normed))) + w.mlp(normed) + x
    return x


def as_shared(model: "Handwritten", x: Tensor) -> Tensor:
    """The first layer again and again."""
    w = model.layers[0]
    for _ in range(DEPTH):
        x = x + w.out(model.attend(w, *w.split(w.before(x))))
        x = x + w.mlp(w.between(x))
    return x


# --- ways to pool ----------------------------------------------------------------------------------------------------


def read_first(model: "Handwritten", x: Tensor) -> Tensor:
    return x[:, 0]


def read_mean(model: "Handwritten", x: Tensor) -> Tensor:
    return x.mean(1)


def pool_softly(model: "Handwritten", x: Tensor) -> Tensor:
    weights = model.pool(x).softmax(1)  # batch token 1
    return (weights * x).sum(1)


def pool_by_bmm(model: "Handwritten", x: Tensor) -> Tensor:
    weights = model.pool(x).squeeze(-1).softmax(-1)  # batch token
    return torch.bmm(weights.unsqueeze(1), x).squeeze(1)


def pool_by_einsum(model: "Handwritten", x: Tensor) -> Tensor:
    return torch.einsum("bn,bnd->bd", model.pool(x).squeeze(-1).softmax(-1), x)


def pool_maximum(model: "Handwritten", x: Tensor) -> Tensor:
    return x.max(dim=1).values


def pool_amax(model: "Handwritten", x: Tensor) -> Tensor:
    return x.amax(1)


def pool_by_attention(model: "Handwritten", x: Tensor) -> Tensor:
    """A MAP head, as in SigLIP: a learned query attends to all tokens, then an MLP with a residual."""
    w = model.map
    k, v = (f(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for f in (w.key, w.value))
    q = w.query(model.probe).view(1, 1, HEADS, SIZE).transpose(1, 2).expand(len(x), -1, -1, -1)
    pooled = w.out(join(F.scaled_dot_product_attention(q, k, v)))
    return (pooled + w.mlp(w.between(pooled)))[:, 0]


class Handwritten(nn.Module):
    def __init__(self, attend: Attend, arrange: Callable, pool: Callable, key_heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList(Weights(key_heads) for _ in range(DEPTH))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.pool, self.map, self.probe = nn.Linear(WIDTH, 1), Weights(HEADS), nn.Parameter(torch.zeros(WIDTH))
        self.attend, self.arrange, self.read = attend, arrange, pool
        if arrange is as_blocks:
            self.parts: Any = nn.ModuleList(Block(w, attend) for w in self.layers)
        elif arrange is as_pairs:
            self.parts = nn.ModuleList(nn.ModuleList([Attention(w, attend), FeedForward(w)]) for w in self.layers)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places
        return self.head(self.read(self, self.last(self.arrange(self, x))))


@dataclass(frozen=True)
class Case:
    """One model: how its attention, its layers and its pooling are written."""

    name: str
    attend: Attend = plain
    arrange: Callable = as_blocks
    pool: Callable = read_first
    key_heads: int = HEADS

    def build(self) -> Handwritten:
        module = Handwritten(self.attend, self.arrange, self.pool, self.key_heads)
        with torch.no_grad():
            for seed, (name, weight) in enumerate(module.named_parameters()):
                drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
                weight.copy_(0.5 * drawn + (1.0 if weight.dim() == 1 and "weight" in name else 0.0))
        return module.double().eval()


ATTENTION = [
    Case("plain"),
    *(
        Case(f.__name__, f)
        for f in (
            exp_over_sum,
            exp_over_sum_of_maximum,
            exp_times_reciprocal,
            normalised_exp,
            log_sum_exp,
            exp_of_log_softmax,
            exp_after_values,
            causal_exp,
            wide_softmax,
            softmax_one,
            sink_column,
            talking_heads,
            head_loop,
            head_loop_stacked,
            chunked_queries,
            chunked_and_joined,
            folded,
            folded_heads_first,
            heads_first,
            transposed,
            memory_keys,
        )
    ),
    *(
        Case(f.__name__, f, key_heads=GROUPS)
        for f in (grouped_einsum, grouped_token_first, grouped_expand, grouped_repeat, grouped_broadcast)
    ),
    Case("multi_query", multi_query, key_heads=1),
]
ARRANGEMENTS = [Case(f.__name__, arrange=f) for f in (as_pairs, as_functions, as_post_norm, as_parallel, as_shared)]
POOLINGS = [
    Case(f.__name__, pool=f)
    for f in (
        read_mean,
        pool_softly,
        pool_by_bmm,
        pool_by_einsum,
        pool_maximum,
        pool_amax,
        pool_by_attention,
    )
]
MIXED = [Case("pairs_head_loop_map", head_loop, as_pairs, pool_by_attention)]
CASES = {case.name: case for case in (*ATTENTION, *ARRANGEMENTS, *POOLINGS, *MIXED)}
