"""Attention sites: "a softmax whose result multiplies values", or a fused attention call."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.labels import trace_of
from whyformer.operations import Operation
from whyformer.rules import softmax_rows


@dataclass
class Site:
    """One attention call. [batch head query key] and so on; `output` is the tensor of the graph itself."""

    place: str
    value: Tensor
    output: Tensor
    weights: Tensor | None = None  # as the model computed them; None for a fused call
    query: Tensor | None = None
    key: Tensor | None = None
    mask: Tensor | None = None
    scale: float = 1.0
    origin: Tensor | None = None  # which patch or input token each key is: [batch or 1, key], -1 for none
    enclosing: tuple[int, ...] = ()  # numbers of the module calls around it, outermost first

    def attention(self) -> Tensor:
        """The matrix, rebuilt if the kernel was fused."""
        if self.weights is not None:
            return self.weights
        assert self.query is not None and self.key is not None
        return softmax_rows((self.query @ self.key.mT) * self.scale, self.mask)

    def heads_apart(self, tensor: Tensor) -> Tensor:
        """[batch head query channel], also where the model folds heads into the batch."""
        return tensor if tensor.dim() == 4 else tensor.unflatten(0, (-1, self.value.size(1)))

    def unfold(self, heads: int) -> None:
        """Three axes, [batch*head query key] or [batch query key], become four."""
        if self.value.dim() == 4:
            return
        for name in ("value", "weights", "query", "key"):
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.unflatten(0, (-1, heads or 1)))


def fused_site(operation: Operation, output: Tensor, place: str) -> Site:
    query, key, value, mask, scale, is_grouped = fused_arguments(operation)
    origin = origin_of(value)
    repeats = query.size(-3) // key.size(-3) if is_grouped else 1
    key, value = (t.repeat_interleave(repeats, -3) if repeats > 1 else t for t in (key, value))
    mask = mask.detach() if mask is not None else None
    return Site(place, value.detach(), output, None, query.detach(), key.detach(), mask, scale, origin)


def plain_site(operation: Operation, output: Tensor, place: str) -> Site | None:
    """The site, if this product is one."""
    factors = einsum_factors(operation.args) if operation.name == "einsum" else operation.args[:2]
    if factors is None or len(factors) < 2 or not all(isinstance(factor, Tensor) for factor in factors):
        return None
    weights, value = factors
    if not trace_of(weights).is_attention or weights.dim() < 3 or weights.dim() != value.dim():
        return None
    return Site(place, value.detach(), output, weights.detach(), origin=origin_of(value))


def einsum_factors(args: Any) -> tuple[Tensor, Tensor] | None:
    """Only the plain form `...ij,...jd->...id`, whatever its letters."""
    if not isinstance(args[0], str) or len(args) != 3:
        return None
    inputs, _, out = args[0].replace(" ", "").partition("->")
    a, _, v = inputs.partition(",")
    fits = len(a) == len(v) == len(out) and a[:-2] == v[:-2] == out[:-2] and a[-1] == v[-2]
    return (args[1], args[2]) if fits and out[-2:] == a[-2] + v[-1] else None


def fused_arguments(operation: Operation) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool]:
    """query, key, value, additive mask, scale, whether several queries share a key."""
    query, key, value = (operation.argument(i, name) for i, name in enumerate(("query", "key", "value")))
    mask = operation.argument(3, "attn_mask")
    if operation.argument(5, "is_causal", default=False):
        allowed = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        mask = allowed if mask is None else mask
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    scale = operation.kwargs.get("scale")
    return (
        query,
        key,
        value,
        mask,
        query.size(-1) ** -0.5 if scale is None else scale,
        bool(operation.kwargs.get("enable_gqa")),
    )


def origin_of(value: Tensor) -> Tensor | None:
    """Which input token each key of a site is: [batch or 1, key]."""
    trace = trace_of(value)
    if trace.tokens is None or trace.epoch > 0 or trace.tokens.size(-2) != value.size(-2):
        return None
    return trace.tokens.select(-1, 0).flatten(0, -2)
