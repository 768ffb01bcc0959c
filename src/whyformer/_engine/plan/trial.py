"""Whether a planned run gives what the full engine gives: every site that it serves, targets, tokens and notes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.capture.capture import Capture, RunRequest
from whyformer._engine.capture.query_tiles import QueryTiles
from whyformer._engine.probe.probe import Probe
from whyformer._engine.targets.target import Target
from whyformer._engine.tracing.tiles import iterate_tiles

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}  # of the largest value of a tensor
# Where the full engine subtracts two passes: in float64, the backward pass of fused attention on a CPU has 8 digits
OF_CONTRAST = 1e-6
OF_16_BITS = 2e-2
OF_PRECISION = "Relevance was propagated in"  # a note of planned runs alone
ALIKE = 0.99  # cosine of scores in 16 bits


def find_difference(request: RunRequest, ours: Capture, theirs: Capture, narrowest: torch.dtype) -> str:
    """In what a planned capture differs from that of the full engine; empty if in nothing."""
    ours = replace(ours, notes=tuple(note for note in ours.notes if not note.startswith(OF_PRECISION)))
    facts = ("tokens", "patches", "attending", "places", "owners", "slots", "obstacle", "notes")
    for name in facts:
        if getattr(ours, name) != getattr(theirs, name):
            return name
    least = max(TOLERANCES.get(narrowest, OF_16_BITS), 0.0 if request.versus is None else OF_CONTRAST)
    if ours.logits.shape == theirs.logits.shape and not is_within(ours.logits, theirs.logits, least):
        return "logits"
    if any(not is_same_target(*pair) for pair in zip(ours.targets, theirs.targets, strict=True)):
        return "targets"
    for key, value in theirs.values.items():
        if key[0] in request.keep and not is_same_value(ours.values.get(key), value, least):
            return key[0]
    if any(not torch.allclose(one.rows, theirs.rounding[key].rows) for key, one in ours.rounding.items()):
        return "rounding"
    return ""


def is_same_target(one: Target, other: Target) -> bool:
    same = (one.index, one.label, one.versus, one.position) == (other.index, other.label, other.versus, other.position)
    return same and abs(one.score - other.score) <= 1e-3 * max(1.0, abs(other.score))


def is_same_value(ours: Any, theirs: Any, least: float) -> bool:
    """Tensors, or sequences of them, that are equal up to rounding."""
    if isinstance(theirs, Probe):
        return isinstance(ours, Probe)
    if isinstance(theirs, Tensor) or hasattr(theirs, "whole"):
        are_tensors = isinstance(ours, Tensor) or hasattr(ours, "whole")
        return are_tensors and is_same_matrix(ours, theirs, least)
    if isinstance(theirs, Sequence) and not isinstance(theirs, str):
        are_both = isinstance(ours, Sequence) and len(ours) == len(theirs)
        return are_both and all(is_same_value(*pair, least) for pair in pair_up(ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def pair_up(ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Layers, one at a time: a matrix is computed when it is read."""
    return zip(iter(ours), iter(theirs), strict=True)


def is_same_matrix(ours: Any, theirs: Any, least: float) -> bool:
    """Matrices that are computed in tiles are compared a tile at a time: whole, they may take too much memory."""
    if not (isinstance(ours, QueryTiles) and isinstance(theirs, QueryTiles)):
        return is_within(take_whole_tensor(ours), take_whole_tensor(theirs), least)
    if ours.shape != theirs.shape:
        return False
    tiles = iterate_tiles(theirs.shape[-2], theirs.rows)
    return are_within(((ours.make(rows).detach(), theirs.make(rows).detach()) for rows in tiles), least)


def take_whole_tensor(value: Any) -> Tensor:
    tensor: Tensor = value if isinstance(value, Tensor) else value.whole()
    return tensor.detach()


def is_within(ours: Tensor, theirs: Tensor, least: float = 0.0) -> bool:
    """least: of the tolerance."""
    return are_within([(ours.detach(), theirs.detach())], least)


def are_within(parts: Iterable[tuple[Tensor, Tensor]], least: float) -> bool:
    """The same of a tensor in parts; the tolerance is one of the largest value of all of them."""
    gaps, sizes, rows, tolerance = [], [], [], least
    for ours, theirs in parts:
        if ours.shape != theirs.shape:
            return False
        if not theirs.is_floating_point():
            if not torch.equal(ours, theirs):
                return False
        elif ours.element_size() < 4 or theirs.element_size() < 4:
            rows.append([t.double().sum(-1).flatten() for t in (ours, theirs)])
        elif theirs.numel():
            tolerance = max(*(TOLERANCES.get(t.dtype, OF_16_BITS) for t in (ours, theirs)), tolerance)
            gaps.append((ours - theirs).abs().amax())
            sizes.append(theirs.abs().amax())
    if rows:
        one, other = (torch.cat(part) for part in zip(*rows, strict=True))
        return bool(torch.cosine_similarity(one, other, dim=0) >= ALIKE) or torch.equal(one, other)
    return not gaps or bool(torch.stack(gaps).amax() <= tolerance * torch.stack(sizes).amax())
