"""Transformer attribution written out formula by formula, for comparison: nothing shared, nothing saved.

The way a reader of the paper would first write it (Chefer, Gur & Wolf, CVPR 2021): every linear layer makes the eight
products of the alpha-beta rule (alpha = 1, beta = 0) from the positive and negative parts of inputs and weights,
attention is computed in the open, gradients of all parameters are on, the rollout multiplies whole matrices, and
images go one at a time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def divide(a: Tensor, b: Tensor) -> Tensor:
    epsilon = torch.finfo(b.dtype).eps / 100
    return a / (b + torch.where(b < 0, -epsilon, epsilon))


def linear_rule(layer: nn.Linear, x: Tensor, relevance: Tensor) -> Tensor:
    """alpha * activator - beta * inhibitor, alpha = 1, beta = 0: eight products."""
    weight = layer.weight.detach()
    w_plus, w_minus = weight.clamp(min=0), weight.clamp(max=0)
    x_plus, x_minus = x.clamp(min=0), x.clamp(max=0)

    def half(w1: Tensor, w2: Tensor) -> Tensor:
        s = divide(relevance, F.linear(x_plus, w1) + F.linear(x_minus, w2))
        return x_plus * (s @ w1) + x_minus * (s @ w2)

    return 1.0 * half(w_plus, w_minus) - 0.0 * half(w_minus, w_plus)


def product_rule(a: Tensor, b: Tensor, z: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    s = divide(relevance, z)
    return a * (s @ b.mT) / 2, b * (a.mT @ s) / 2


def add_rule(u: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    s = divide(relevance, u + v)
    a, b = u * s, v * s
    a_sum, b_sum, total = a.sum(), b.sum(), relevance.sum()
    size = a_sum.abs() + b_sum.abs()
    return a * (a_sum.abs() / size * total / a_sum), b * (b_sum.abs() / size * total / b_sum)


class Block:
    """One block run in the open, and back."""

    def __init__(self, layer: nn.Module, heads: int) -> None:
        attention = layer.attention
        self.q, self.k, self.v = attention.q_proj, attention.k_proj, attention.v_proj
        self.o = attention.o_proj
        self.layer, self.heads = layer, heads

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        self.x, self.normed = x, layer.layernorm_before(x)
        self.query, self.key, self.value = (self.split(f(self.normed)) for f in (self.q, self.k, self.v))
        self.raw = self.query @ self.key.mT
        self.attention = (self.raw / self.query.size(-1) ** 0.5).softmax(-1)
        self.attention.retain_grad()
        self.mixed = self.attention @ self.value
        self.joined = self.join(self.mixed)
        self.attended = self.o(self.joined)
        self.middle = x + self.attended
        self.normed2 = layer.layernorm_after(self.middle)
        self.up = layer.mlp.fc1(self.normed2)
        self.active = F.gelu(self.up)
        self.down = layer.mlp.fc2(self.active)
        return self.middle + self.down

    @torch.no_grad()
    def back(self, relevance: Tensor) -> Tensor:
        skip, branch = add_rule(self.middle, self.down, relevance)
        branch = linear_rule(self.layer.mlp.fc2, self.active, branch)
        branch = linear_rule(self.layer.mlp.fc1, self.normed2, branch)
        skip, branch = add_rule(self.x, self.attended, skip + branch)
        branch = self.split(linear_rule(self.o, self.joined, branch))
        self.relevance, to_value = product_rule(self.attention, self.value, self.mixed, branch)
        to_query, to_key = product_rule(self.query, self.key.mT, self.raw, self.relevance)
        branch = linear_rule(self.q, self.normed, self.join(to_query))
        branch = branch + linear_rule(self.k, self.normed, self.join(to_key.mT))
        branch = branch + linear_rule(self.v, self.normed, self.join(to_value))
        return skip + branch


def transformer_attribution(vit: nn.Module, image: Tensor, target: int) -> Tensor:
    """The map of one image [1 3 height width]: [patches]."""
    body = vit.vit
    blocks = [Block(layer, vit.config.num_attention_heads) for layer in body.layers]
    x = body.embeddings(image)
    for block in blocks:
        x = block.forward(x)
    last = body.layernorm(x)
    logits = vit.classifier(last[:, 0])
    vit.zero_grad()
    logits[0, target].backward()
    with torch.no_grad():
        seed = torch.zeros_like(logits)
        seed[0, target] = 1
        relevance = torch.zeros_like(last)
        relevance[:, 0] = linear_rule(vit.classifier, last[:, 0], seed)
        for block in reversed(blocks):
            relevance = block.back(relevance)
        identity = torch.eye(last.size(1), dtype=last.dtype, device=last.device)
        rolled = identity
        for block in blocks:
            weighted = (block.attention.grad * block.relevance).clamp(min=0).mean(1)[0]
            rolled = (identity + weighted) @ rolled
    vit.zero_grad()
    return rolled[0, 1:].detach()
