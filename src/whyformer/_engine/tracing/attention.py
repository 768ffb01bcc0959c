"""Attention sites: a softmax whose result multiplies values, or a fused attention call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.tracing.fused_attention import ScoreMask, read_fused_arguments
from whyformer._engine.tracing.operations import FUSED_ATTENTION, PRODUCTS, Operation, expand_equation
from whyformer._engine.tracing.placement import SiteTokens
from whyformer._engine.tracing.provenance import EMPTY_TRACE, Trace, axis_of, is_plain, trace_of
from whyformer._engine.tracing.tiles import current_setting, iterate_tiles

UNSHARED_KEYS = "not all tokens attend to the same tokens (windows, a different order per example, channels as keys)"


def merge_examples(label: Tensor) -> Tensor:
    """The tokens [... token 1] that all examples share: padding that a model sets to 0 in some is none of theirs."""
    others = [axis for axis in range(label.dim()) if axis != label.dim() - 2 and label.size(axis) > 1]
    whole = label.amax(others, keepdim=True) if others else label
    return whole if bool(((label == whole) | (label < 0)).all()) else label


@dataclass
class AttentionSite:
    """One attention call, with tensors of the axes [batch head query key] and so on; `output` is on the graph."""

    path: str  # of the module that calls it
    value: Tensor
    output: Tensor  # in the model's own order of axes; see `split_heads`
    weights: Tensor | None = None  # [batch head query key] as the model computed it; None for a fused call
    query: Tensor | None = None
    key: Tensor | None = None
    given_mask: Tensor | None = None  # as the model passed it to a fused call; see `mask`
    is_causal: bool = False
    scale: float = 1.0
    origin: Tensor | None = None  # [batch or 1, key]: the patch or input token of each key, -1 for none
    keys: Trace = EMPTY_TRACE  # the trace of the values
    obstacle: str = ""  # why it is not self-attention over the same sequence as the sites before
    enclosing: tuple[int, ...] = ()  # numbers of the module calls around it, outermost first
    scores: Tensor | None = None  # the input of the softmax; None for a fused call, and if it was not asked for
    rows: Trace = EMPTY_TRACE  # the trace of the output, before it was renumbered
    number: int = 0  # in the order of the forward; parts that are stitched together are numbered one by one
    epoch: int = 1  # number of the layer; heads or chunks that read the same states share one
    step: int = 0  # of the forward
    folds_heads: str = ""  # `output` is [batch*head ...] ("batch first") or [head*batch ...] ("heads first")
    batch_axis: int = 0  # of `output`, after unfolding
    joined_axis: int | None = None  # the axis of the tokens, if `output` is [batch token head*channel] or the like
    first_key: int = 0  # keys before it, and behind as many as there are queries, belong to no token
    parts: tuple["AttentionSite", ...] = ()  # the sites that this one is stitched together from (stitching.py) ...
    joins: str = ""  # ... by "head", by "query" or as a "sum"
    scales: tuple[float, ...] = ()  # of the parts of a sum
    # Of an encoder and a decoder: where the streams of queries and keys begin in the joined sequence
    first_positions: tuple[int, int] | None = None
    is_asked: bool = False  # by queries that do not depend on the explained input, such as learned ones
    tokens: SiteTokens | None = None  # which it covers, if layers do not all have the same (token_numbers.py)

    @property
    def queries(self) -> int:
        """The number of rows of the attention matrix."""
        if self.parts:
            return sum(p.queries for p in self.parts) if self.joins == "query" else self.parts[0].queries
        of = self.weights if self.weights is not None else self.query
        return self.output.size(-2) if of is None else of.size(-2)

    @property
    def is_pooling(self) -> bool:
        """A single learned query attends to all tokens: the answer is pooled by attention."""
        return self.queries == 1 < self.value.size(-2) and self.first_positions is None and self.tokens is None

    @property
    def mask(self) -> Tensor | None:
        """What is added to the scores of a fused call."""
        return self.read_mask(slice(0, self.queries))

    def read_mask(self, rows: slice) -> Tensor | None:
        """The same for some queries."""
        if self.query is None or self.key is None:
            return self.given_mask
        return ScoreMask(self.given_mask, self.is_causal).read(rows, self.query, self.key.size(-2))

    def attention(self, rows: slice | None = None) -> Tensor:
        """The attention matrix, or some queries of it, recomputed if the kernel is fused. Keys that belong to no token
        are left out."""
        if self.weights is not None:
            return self.weights if rows is None else self.weights[..., rows, :]
        rows = slice(0, self.queries) if rows is None else rows
        if self.joins == "sum":
            pairs = zip(self.scales, self.parts, strict=True)
            return torch.stack([scale * part.attention(rows) for scale, part in pairs]).sum(0)
        if self.parts:
            return self.join_parts(AttentionSite.attention, rows)
        weights = compute_attention_weights(self.compute_products(rows), self.read_mask(rows))
        return weights.narrow(-1, self.first_key, self.value.size(-2))

    def compute_products(self, rows: slice) -> Tensor:
        """The scaled products of some queries and all keys of a fused call."""
        assert self.query is not None and self.key is not None
        return (self.query[..., rows, :] @ self.key.mT) * self.scale

    def join_parts(self, read: Callable[["AttentionSite", slice], Tensor], rows: slice) -> Tensor:
        """What `read` gives for some queries of a site that is stitched together."""
        if self.joins != "query":
            return torch.cat([read(part, rows) for part in self.parts], 1)
        found, first = [], 0
        for part in self.parts:
            start, stop = (min(max(edge - first, 0), part.queries) for edge in (rows.start, rows.stop))
            if start < stop or rows.start == rows.stop:
                found.append(read(part, slice(start, stop)))
            first += part.queries
        return torch.cat(found, 2)

    def read_tokens(self, length: int) -> Tensor:
        """[batch token]: how much a pooling site reads of each of so many tokens, the mean over its heads."""
        assert self.keys.tokens is not None
        label = self.keys.tokens.flatten().long()
        weights = self.attention().detach().mean(1)[:, 0].double()
        read = weights.new_zeros(len(weights), length)
        read[:, label[label >= 0]] = weights[:, label >= 0]
        return read / read.sum(-1, keepdim=True)

    def find_token_keys(self) -> int | None:
        """The first key that is a token, if there are more keys than queries and those in a row are the queries."""
        rows, keys, queries, count = self.rows, self.keys, self.queries, self.value.size(-2)
        if not 1 < queries < count or rows.tokens is None or keys.tokens is None:
            return None
        own, theirs = rows.tokens.flatten(), keys.tokens.flatten()
        if len(own) != queries or len(theirs) != count or rows.epoch != keys.epoch:
            return None
        for first in (count - queries, 0):
            others = torch.cat([theirs[:first], theirs[first + queries :]])
            if torch.equal(theirs[first : first + queries], own) and bool((others < 0).all()):
                return first
        return None

    def find_obstacle(self) -> str:
        """Why it is not self-attention over the sequence of the site before; empty if it is, as far as is known."""
        rows, keys = self.rows, self.keys
        known = all(trace.samples is not None and trace.read is None for trace in (rows, keys))
        if known and (rows.tokens is None) != (keys.tokens is None):
            return "its queries or its keys are not the tokens"
        for label, epoch in ((rows.tokens, rows.epoch), (keys.tokens, keys.epoch)):
            if label is None or self.has_own_orders():
                continue
            label = merge_examples(label)
            if any(size > 1 for axis, size in enumerate(label.shape) if axis != label.dim() - 2):
                return UNSHARED_KEYS
            if epoch and not is_plain(label) and not is_counted(label.flatten()):
                return "the order of the tokens has changed since the last attention"
            if epoch < self.epoch - 1:
                return "it does not follow the attention before it (a second tower, a decoder)"
        if rows.tokens is not None and keys.tokens is not None and rows.epoch != keys.epoch:
            return "queries and keys come from different sequences"
        return ""

    def has_own_orders(self) -> bool:
        """Before the first attention, every example has an order of its own, and queries and keys have the same."""
        of, label, rows = self.keys.samples, self.keys.tokens, self.rows
        if self.keys.epoch or rows.epoch or label is None or rows.tokens is None or of is None or axis_of(of) != 0:
            return False
        changes = [axis for axis, size in enumerate(label.shape) if size > 1]
        return changes == [0, label.dim() - 2] and len(label) == len(of) and torch.equal(label, rows.tokens)

    def detach(self) -> "AttentionSite":
        """This site, with all but its output detached from the graph."""
        for name in ("value", "weights", "query", "key", "scores"):
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.detach())
        return self

    def looks_ahead(self) -> bool:
        """Whether some token attends to a later one."""
        rows = current_setting.get().choose_rows((*self.value.shape[:-2], self.queries, self.value.size(-2)), 4)
        tiles = iterate_tiles(self.queries, rows)
        return any(bool(self.attention(tile).triu(1 + tile.start).any()) for tile in tiles)

    def split_heads(self, tensor: Tensor) -> Tensor:
        """[batch head query channel], from a tensor in the order of axes of `output`."""
        heads = self.value.size(1)
        if self.folds_heads:
            tensor = tensor.unflatten(0, (-1, heads) if self.folds_heads == "batch first" else (heads, -1))
        tensor = tensor.movedim(self.batch_axis, 0) if self.batch_axis else tensor
        if self.joined_axis is not None:
            return tensor.movedim(self.joined_axis, 1).flatten(2).unflatten(2, (heads, -1)).transpose(1, 2)
        return tensor if tensor.dim() == 4 else tensor.flatten(1, -3)

    def merge_heads(self, tensor: Tensor) -> Tensor:
        """The inverse of `split_heads`, for a site that was not stitched together."""
        shape = list(self.output.shape)
        if self.folds_heads:
            return (tensor if self.folds_heads == "batch first" else tensor.transpose(0, 1)).reshape(shape)
        shape.insert(0, shape.pop(self.batch_axis))
        return tensor.reshape(shape).movedim(0, self.batch_axis)

    def unfold(self, heads: int) -> None:
        """Bring values, weights, queries and keys to [batch head token channel]."""
        axes = self.value.dim()
        if axes == 3 and not self.folds_heads:
            self.folds_heads = "batch first"
        groups = self.output.shape[:-2]
        for name in ("value", "weights", "query", "key", "given_mask"):
            tensor = getattr(self, name)
            is_own_mask = name == "given_mask" and axes == 3
            if tensor is None or tensor.dim() < 3 or (is_own_mask and tensor.size(0) != groups[0]):
                continue
            if axes == 3:
                tensor = tensor.unflatten(0, (-1, heads or 1) if self.folds_heads == "batch first" else (heads, -1))
            elif name != "given_mask":
                tensor = tensor.expand(*groups, *tensor.shape[-2:])
            if self.batch_axis and tensor.dim() > self.batch_axis + 2:
                tensor = tensor.movedim(self.batch_axis, 0)
            setattr(self, name, tensor.flatten(1, -3) if tensor.dim() > 4 and name != "given_mask" else tensor)

    def has_tokens_at(self, axis: int) -> bool:
        """Whether this axis of the output of a stitched site is that of its tokens."""
        first = [a for a in range(self.output.dim()) if a != self.batch_axis]
        return self.joined_axis is not None and [self.batch_axis, *first][self.joined_axis] == axis

    def leave_out_keys(self, first: int, count: int) -> None:
        """Keep only the keys from `first` on, as many as there are tokens."""
        self.first_key = first
        self.value = self.value.narrow(-2, first, count)
        if self.weights is not None:
            self.weights = self.weights.narrow(-1, first, count)
        label = self.keys.tokens
        if label is not None and label.size(-2) > 1:
            self.keys = replace(self.keys, tokens=label.narrow(-2, first, count))
        if self.origin is not None:
            self.origin = self.origin.narrow(-1, first, count)


def find_layer_sites(sites: list[AttentionSite]) -> list[AttentionSite]:
    """The sites without the attention that pools at the end, which is the readout; all, if there are no others."""
    layers = list(sites)
    while layers and layers[-1].is_pooling:
        layers.pop()
    return layers or list(sites)


def find_site(operation: Operation, output: Tensor, path: str) -> AttentionSite | None:
    """An operation as a site with its tensors on the graph; None if it is no attention."""
    if operation.name == FUSED_ATTENTION:
        return read_fused_site(operation, output, path)
    return find_plain_site(operation, output, path) if operation.name in PRODUCTS else None


def read_fused_site(operation: Operation, output: Tensor, path: str) -> AttentionSite:
    """A fused call as a site with its tensors on the graph."""
    given = read_fused_arguments(operation)
    key, value = given.repeat_heads() if given.is_grouped else (given.key, given.value)
    mask = given.mask.given.detach() if given.mask.given is not None else None
    site = AttentionSite(path, value, output, query=given.query, key=key, given_mask=mask, scale=given.scale)
    site.is_causal, site.origin, site.keys = given.mask.is_causal, origin_of(given.value), trace_of(given.value)
    site.is_asked = not trace_of(given.query).depends
    return site


def find_plain_site(operation: Operation, output: Tensor, path: str) -> AttentionSite | None:
    """A product as a site with its tensors on the graph; None if it is not an attention product."""
    factors = parse_attention_einsum(operation) if operation.name == "einsum" else operation.args[:2]
    if factors is None or len(factors) < 2 or not all(isinstance(factor, Tensor) for factor in factors):
        return None
    weights, value = factors
    if not trace_of(weights).is_attention or weights.dim() < 3 or weights.dim() != value.dim():
        return None
    label = trace_of(value).tokens
    if label is not None and label.size(-2) == 1 < value.size(-2) and label.numel() > 1:
        return None  # all rows belong to one token: it mixes experts or channels
    site = AttentionSite(path, value, output, weights, origin=origin_of(value), keys=trace_of(value))
    site.is_asked = trace_of(weights).is_asked
    return site


def is_counted(along: Tensor) -> bool:
    return torch.equal(along, torch.arange(len(along), device=along.device, dtype=along.dtype))


def read_einsum(operation: Operation) -> tuple[list[str], str, list[Tensor]] | None:
    """The letters of the two factors, those of the result, and the factors; None if there are not two factors."""
    equation, *factors = operation.args
    if len(factors) != 2:
        return None
    inputs, _, out = expand_equation(equation, factors).partition("->")
    return inputs.split(","), out, factors


def parse_attention_einsum(operation: Operation) -> tuple[Tensor, Tensor] | None:
    """The two factors of the form `...ij,...jd->...id`, in any letters; None for other equations."""
    if (parsed := read_einsum(operation)) is None:
        return None
    (a, v), out, (weights, value) = parsed
    fits = len(a) == len(v) == len(out) and a[:-2] == v[:-2] == out[:-2] and a[-1] == v[-2]
    return (weights, value) if fits and out[-2:] == a[-2] + v[-1] else None


def origin_of(value: Tensor) -> Tensor | None:
    """[batch or 1, key]: which input token each key of a site is. None if its heads have different ones."""
    trace = trace_of(value)
    if trace.tokens is None or trace.epoch > 0 or trace.tokens.size(-2) != value.size(-2):
        return None
    tokens = trace.tokens.select(-1, 0)
    if tokens.dim() == 3 and bool((tokens != tokens[:, :1]).any()):
        return None
    return fill_places(tokens.flatten(0, -2))


def fill_places(tokens: Tensor) -> Tensor:
    """[batch key]: where a learned vector took the place of a token, and others stayed, the place is that token's."""
    at = torch.arange(tokens.size(-1), device=tokens.device, dtype=tokens.dtype)
    last = tokens.amax(-1, keepdim=True)
    own = at + last - torch.where(tokens == last, at, 0).amax(-1, keepdim=True)  # after what the model put before them
    stays = bool(((tokens < 0) | (tokens == own)).all())
    return torch.where((own >= 0) & (own <= last), own, tokens) if stays else tokens


def reorder_attention_product(operation: Operation) -> Callable[[], Tensor] | None:
    """A function that computes attention @ values in the order `...qk,...kd->...qd`; None if it already has it."""
    if operation.name == "einsum":
        return _reorder_einsum(operation)
    if operation.name not in ("matmul", "bmm") or len(operation.args) < 2:
        return None
    first, second = operation.args[:2]
    if trace_of(first).is_attention or not trace_of(second).is_attention:
        return None
    if not isinstance(first, Tensor) or first.dim() != second.dim() or first.dim() < 3:
        return None
    return lambda: torch.matmul(second.mT, first.mT).mT.contiguous()


def _reorder_einsum(operation: Operation) -> Callable[[], Tensor] | None:
    """Letters that only one factor has, besides queries and channels, are heads that share the other factor."""
    parsed = read_einsum(operation)
    if parsed is None or "." in "".join(parsed[0]) or parse_attention_einsum(operation) is not None:
        return None
    letters, out, factors = parsed
    pairs = list(zip(letters, factors, strict=True))
    if trace_of(pairs[1][1]).is_attention and not trace_of(pairs[0][1]).is_attention:
        pairs.reverse()
    (a, weights), (v, value) = pairs
    if not trace_of(weights).is_attention or any(len(set(x)) != len(x) for x in (a, v, out)):
        return None
    if not trace_of(value).depends:
        return None  # a constant matrix mixes heads
    shared = [x for x in out if x in a and x in v]
    key = [x for x in a if x in v and x not in out]
    rows, channels = [x for x in out if x in a and x not in v], [x for x in out if x in v and x not in a]
    sizes = (len(shared) + len(rows) + 1, len(shared) + len(channels) + 1)
    if len(key) != 1 or not channels or not shared or sizes != (len(a), len(v)) or (not rows and len(channels) > 1):
        return None
    query, channel = find_query_letter(rows, a, weights) if rows else "", channels[-1]
    heads = [*shared, *(x for x in rows if x != query), *channels[:-1]]

    def run() -> Tensor:
        values = lay_out_axes(v, value, [*heads, *key, channel])
        if not rows:  # pooling, `bn,bnd->bd`: a product with a single query, so that it is seen as attention
            pooled = (lay_out_axes(a, weights, [*heads, *key]).unsqueeze(-2) @ values).squeeze(-2)
            return lay_out_axes([*heads, channel], pooled, list(out))
        product = lay_out_axes(a, weights, [*heads, query, *key]) @ values
        return lay_out_axes([*heads, query, channel], product, list(out)).contiguous()

    return run


def find_query_letter(rows: list[str], letters: str, weights: Tensor) -> str:
    """The axis of the queries: the one along which the token changes, or else the last."""
    axis = axis_of(trace_of(weights).tokens)
    marked = letters[axis] if axis is not None and axis < len(letters) else ""
    return marked if marked in rows else max(rows, key=letters.index)


def lay_out_axes(letters: Sequence[str], tensor: Tensor, wanted: list[str]) -> Tensor:
    """The tensor with its axes in this order; an axis that it does not have gets size 1."""
    tensor = tensor.permute([letters.index(x) for x in wanted if x in letters])
    for axis, letter in enumerate(wanted):
        if letter not in letters:
            tensor = tensor.unsqueeze(axis)
    return tensor


def compute_attention_weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Attention weights from scores; a row whose keys are all masked is zero."""
    return (scores if mask is None else scores + mask).softmax(-1).nan_to_num(0.0)
