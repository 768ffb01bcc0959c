"""Attention that a model computes in parts: head by head, some queries at a time, or as a difference.

Each part is an attention site of its own until the model concatenates or stacks the outputs. Then the parts become one
site, whose output is the concatenation: what arrives there, as a gradient or as relevance, is what arrives at the
parts. That the concatenation holds the outputs of the parts in their order, and nothing else, is checked number by
number. In differential attention, two attentions to the same values are subtracted: one site whose weights are the
difference.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.tracing import provenance
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import Trace, axis_of, trace_of

OF_ONE_PART: dict[str, Any] = dict.fromkeys(("weights", "query", "key", "given_mask", "scores"))  # the whole has none


def stitch(operation: Operation, result: Tensor, sites: Sequence[AttentionSite]) -> AttentionSite | None:
    """The site that consists of those whose outputs were joined; None if that is not what was joined."""
    parts, axis = operation.concatenation_arguments()
    by_number = {site.number: site for site in sites}
    found = [by_number.get(trace_of(part).output_of or 0) for part in parts]
    joined = [site for site in found if site is not None]
    numbers = {site.number for site in joined}
    if len(joined) < len(found) or len(numbers) < len(found) or len(found) < 2 or len({s.epoch for s in joined}) > 1:
        return None
    axis %= result.dim()
    known = [a for part in parts if (a := axis_of(trace_of(part).tokens)) is not None]
    known = [a + 1 if operation.name == "stack" and a >= axis else a for a in known]
    candidates = dict.fromkeys([*known, axis])  # of the tokens: where labels change, or the axis that is joined
    found_sites = (make_stitched(joined, result, axis, tokens) for tokens in candidates)
    return next((made for made in found_sites if made is not None), None)


def stitch_sum(operation: Operation, result: Tensor, sites: Sequence[AttentionSite]) -> AttentionSite | None:
    """The site that is the sum or difference of two over the same values; None if that is not what was added."""
    given, by_number = operation.given, {site.number: site for site in sites}
    parts = [by_number.get(trace_of(part).output_of or 0) for part in given]
    known = [site for site in parts if site is not None]
    if len(given) != 2 or len(known) != 2 or known[0] is known[1] or known[0].epoch != known[1].epoch:
        return None
    first, second = known
    if first.output.shape != result.shape or not torch.equal(first.value, second.value):
        return None
    signs = (
        (1.0, -1.0) if operation.name in ("sub", "subtract") else (-1.0, 1.0) if operation.name == "rsub" else (1, 1)
    )
    scales = tuple(sign * trace_of(part).output_scale for sign, part in zip(signs, given, strict=True))
    total = sum(scale * site.output.detach() for scale, site in zip(scales, known, strict=True))
    if not torch.allclose(total, result.detach(), rtol=1e-4, atol=1e-6):  # type: ignore[arg-type]
        return None
    return replace(first, **OF_ONE_PART, parts=tuple(known), joins="sum", scales=scales, output=result)


def make_stitched(parts: Sequence[AttentionSite], result: Tensor, axis: int, token_axis: int) -> AttentionSite | None:
    """The parts as one site with `result` as its output; None if its numbers are not those of the parts."""
    by_query = axis == token_axis
    values = [part.value for part in parts]
    if by_query:
        if any(v.shape != values[0].shape or not torch.equal(v, values[0]) for v in values[1:]):
            return None
    elif any(v.shape[-2:] != values[0].shape[-2:] or v.size(0) != values[0].size(0) for v in values):
        return None
    outputs = [part.split_heads(part.output.detach()) for part in parts]
    batch_axis = axis_of(trace_of(result).samples) or 0  # None for a batch of one
    if batch_axis == token_axis:
        return None
    first = parts[0]
    made = replace(first, **OF_ONE_PART, folds_heads="", parts=tuple(parts), output=result)
    made.value = values[0] if by_query else torch.cat(values, 1)
    made.joins, made.batch_axis = "query" if by_query else "head", batch_axis
    made.joined_axis = token_axis if batch_axis < token_axis else token_axis + 1  # with examples first
    wanted = torch.cat(outputs, 2 if by_query else 1)
    sizes = result.movedim(batch_axis, 0).shape
    if result.dim() < 3 or result.numel() != wanted.numel():
        return None
    if sizes[0] != wanted.size(0) or sizes[made.joined_axis] != wanted.size(2):
        return None
    if not torch.equal(made.split_heads(result.detach()), wanted):
        return None
    made.rows = join_rows(parts, by_query)
    made.obstacle = made.find_obstacle()
    return made


def join_rows(parts: Sequence[AttentionSite], by_query: bool) -> Trace:
    """The trace of the queries of all parts."""
    rows = parts[0].rows
    if not by_query:
        return rows
    labels = [part.rows.tokens for part in parts]
    if any(label is None for label in labels):
        return replace(rows, tokens=None, samples=None)
    along = torch.cat([label.flatten() for label in labels if label is not None])
    return replace(rows, tokens=provenance.squeeze_constant(along.view(1, 1, -1, 1)))
