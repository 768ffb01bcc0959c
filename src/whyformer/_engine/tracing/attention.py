"""Attention sites: a softmax whose result multiplies values, or a fused attention call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.tracing.operations import Operation, expand_equation
from whyformer._engine.tracing.provenance import EMPTY_TRACE, Trace, axis_of, trace_of


@dataclass
class AttentionSite:
    """One attention call, with tensors of the axes [batch head query key] and so on; `output` is on the graph."""

    place: str  # path of the module that calls it
    value: Tensor
    output: Tensor
    weights: Tensor | None = None  # [batch head query key] as the model computed it; None for a fused call
    query: Tensor | None = None
    key: Tensor | None = None
    mask: Tensor | None = None
    scale: float = 1.0
    origin: Tensor | None = None  # [batch or 1, key]: the patch or input token of each key, -1 for none
    keys: Trace = EMPTY_TRACE  # the trace of the values
    obstacle: str = ""  # why it is not self-attention over the same sequence as the sites before
    enclosing: tuple[int, ...] = ()  # numbers of the module calls around it, outermost first
    scores: Tensor | None = None  # the input of the softmax; None for a fused call, and if it was not asked for

    def attention(self) -> Tensor:
        """The attention matrix, recomputed if the kernel is fused."""
        if self.weights is not None:
            return self.weights
        assert self.query is not None and self.key is not None
        return compute_attention_weights((self.query @ self.key.mT) * self.scale, self.mask)

    def split_heads(self, tensor: Tensor) -> Tensor:
        """[batch head query channel], also if the model folds heads into the batch axis."""
        if tensor.dim() > 4:
            return tensor.flatten(1, -3)
        return tensor if tensor.dim() == 4 else tensor.unflatten(0, (-1, self.value.size(1)))

    def unfold(self, heads: int) -> None:
        """Reshape [batch*head query key], [batch query key] or more than four axes to [batch head query key]."""
        if self.value.dim() == 4:
            return
        if self.value.dim() > 4:
            groups = self.output.shape[:-2]
            for name in ("value", "weights", "query", "key"):
                if (tensor := getattr(self, name)) is not None:
                    setattr(self, name, tensor.expand(*groups, *tensor.shape[-2:]).flatten(1, -3))
            return
        for name in ("value", "weights", "query", "key"):
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.unflatten(0, (-1, heads or 1)))


def read_live_fused_site(operation: Operation, output: Tensor, place: str) -> AttentionSite:
    """A fused call as a site with its tensors on the graph."""
    query, key, value, mask, scale, is_grouped = read_fused_arguments(operation)
    origin, keys = origin_of(value), trace_of(value)
    repeats = query.size(-3) // key.size(-3) if is_grouped else 1
    key, value = (t.repeat_interleave(repeats, -3) if repeats > 1 else t for t in (key, value))
    mask = mask.detach() if mask is not None else None
    return AttentionSite(place, value, output, None, query, key, mask, scale, origin, keys)


def find_live_plain_site(operation: Operation, output: Tensor, place: str) -> AttentionSite | None:
    """A product as a site with its tensors on the graph; None if it is not an attention product."""
    factors = parse_attention_einsum(operation.args) if operation.name == "einsum" else operation.args[:2]
    if factors is None or len(factors) < 2 or not all(isinstance(factor, Tensor) for factor in factors):
        return None
    weights, value = factors
    if not trace_of(weights).is_attention or weights.dim() < 3 or weights.dim() != value.dim():
        return None
    if has_constant_token(trace_of(value), value):
        return None  # it mixes experts or channels, not tokens
    return AttentionSite(place, value, output, weights, origin=origin_of(value), keys=trace_of(value))


def read_fused_site(operation: Operation, output: Tensor, place: str) -> AttentionSite:
    return detach_site(read_live_fused_site(operation, output, place))


def find_plain_site(operation: Operation, output: Tensor, place: str) -> AttentionSite | None:
    site = find_live_plain_site(operation, output, place)
    return detach_site(site) if site is not None else None


def detach_site(site: AttentionSite) -> AttentionSite:
    """The site with all but its output detached."""
    for name in ("value", "weights", "query", "key", "scores"):
        if (tensor := getattr(site, name)) is not None:
            setattr(site, name, tensor.detach())
    return site


def has_constant_token(trace: Trace, tensor: Tensor) -> bool:
    """All rows of this tensor are known to belong to the same token."""
    return trace.tokens is not None and trace.tokens.size(-2) == 1 < tensor.size(-2) and trace.tokens.numel() > 1


def find_obstacle(rows: Trace, keys: Trace, passed: int) -> str:
    """Why a site is not self-attention over the sequence of the site before; empty if it is, as far as is known."""
    known = all(trace.samples is not None and trace.read is None for trace in (rows, keys))
    if known and (rows.tokens is None) != (keys.tokens is None):
        return "its queries or its keys are not the tokens"
    for trace in (rows, keys):
        if trace.tokens is None:
            continue
        if any(size > 1 for axis, size in enumerate(trace.tokens.shape) if axis != trace.tokens.dim() - 2):
            return "not all tokens attend to the same tokens (windows, a different order per example, channels as keys)"
        along = trace.tokens.flatten()
        if trace.epoch and not torch.equal(along, torch.arange(len(along), device=along.device, dtype=along.dtype)):
            return "the order of the tokens has changed since the last attention"
        if trace.epoch < passed:
            return "it does not follow the attention before it (a second tower, a decoder)"
    if rows.tokens is not None and keys.tokens is not None and rows.epoch != keys.epoch:
        return "queries and keys come from different sequences"
    return ""


def read_einsum(args: Any) -> tuple[list[str], str, list[Tensor]] | None:
    """The letters of the two factors, those of the result, and the factors; None for other forms of einsum."""
    factors = list(args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:])
    if not isinstance(args[0], str) or "->" not in args[0] or len(factors) != 2:
        return None
    inputs, _, out = expand_equation(args[0], factors).partition("->")
    return inputs.split(","), out, factors


def parse_attention_einsum(args: Any) -> tuple[Tensor, Tensor] | None:
    """The two factors of the form `...ij,...jd->...id`, in any letters; None for other equations."""
    if (parsed := read_einsum(args)) is None:
        return None
    (a, v), out, (weights, value) = parsed
    fits = len(a) == len(v) == len(out) and a[:-2] == v[:-2] == out[:-2] and a[-1] == v[-2]
    return (weights, value) if fits and out[-2:] == a[-2] + v[-1] else None


def read_fused_arguments(operation: Operation) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool]:
    """query, key, value, additive mask, scale, and whether query heads share key heads."""
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
    """[batch or 1, key]: which input token each key of a site is."""
    trace = trace_of(value)
    if trace.tokens is None or trace.epoch > 0 or trace.tokens.size(-2) != value.size(-2):
        return None
    return trace.tokens.select(-1, 0).flatten(0, -2)


def reorder_attention_product(operation: Operation) -> Callable[[], Tensor] | None:
    """A function that computes attention @ values in the order `...qk,...kd->...qd`; None if it already has it."""
    if operation.name == "einsum":
        return _reorder_einsum(operation.args)
    if operation.name not in ("matmul", "rmatmul", "bmm") or len(operation.args) < 2:
        return None
    first, second = operation.args[:2]
    if operation.name == "rmatmul" or not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return None
    if first.dim() != second.dim() or first.dim() < 3 or trace_of(first).is_attention:
        return None
    if not trace_of(second).is_attention:
        return None
    return lambda: torch.matmul(second.mT, first.mT).mT.contiguous()


def _reorder_einsum(args: Any) -> Callable[[], Tensor] | None:
    """Letters that only one factor has, besides queries and channels, are heads that share the other factor."""
    parsed = read_einsum(args)
    if parsed is None or "." in "".join(parsed[0]) or parse_attention_einsum(args) is not None:
        return None
    letters, out, factors = parsed
    pairs = list(zip(letters, factors, strict=True))
    if trace_of(pairs[1][1]).is_attention and not trace_of(pairs[0][1]).is_attention:
        pairs.reverse()
    (a, weights), (v, value) = pairs
    if not trace_of(weights).is_attention or any(len(set(x)) != len(x) for x in (a, v, out)):
        return None
    if not trace_of(value).carries:
        return None  # a constant matrix mixes heads
    shared = [x for x in out if x in a and x in v]
    key = [x for x in a if x in v and x not in out]
    rows, channels = [x for x in out if x in a and x not in v], [x for x in out if x in v and x not in a]
    if len(key) != 1 or not rows or not channels or len(shared) + len(rows) + 1 != len(a) or len(out) < 3:
        return None
    if len(shared) + len(channels) + 1 != len(v):
        return None
    query, channel = find_query_letter(rows, a, weights), channels[-1]
    of_queries, of_values = [x for x in rows if x != query], channels[:-1]
    heads = [*shared, *of_queries, *of_values]
    return lambda: lay_out_axes(
        [*heads, query, channel],
        lay_out_axes(a, weights, [*heads, query, *key]) @ lay_out_axes(v, value, [*heads, *key, channel]),
        list(out),
    ).contiguous()


def find_query_letter(rows: list[str], letters: str, weights: Tensor) -> str:
    """The axis of the queries: the one along which the token changes, or else the last."""
    axis = axis_of(trace_of(weights).tokens)
    marked = letters[axis] if axis is not None and axis < len(letters) else ""
    return marked if marked in rows else max(rows, key=letters.index)


def lay_out_axes(letters: Any, tensor: Tensor, wanted: list[str]) -> Tensor:
    """The tensor with its axes in this order; an axis that it does not have gets size 1."""
    tensor = tensor.permute([letters.index(x) for x in wanted if x in letters])
    for place, letter in enumerate(wanted):
        if letter not in letters:
            tensor = tensor.unsqueeze(place)
    return tensor


def compute_attention_weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Attention weights from scores; a row whose keys are all masked is zero."""
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1).nan_to_num(0.0)
