"""Labels: which example and which token each entry of a tensor belongs to.

A label is a small integer tensor that broadcasts to its tensor, with size 1 along every axis that does not matter: for
a hidden state [batch token channel] the sample label has the shape [batch 1 1]. A view is applied to the label as well,
so folded axes (heads or windows in the batch), [token batch channel] layouts, slices and concatenations need no special
case. `-1` marks entries that come from no input token, such as a class token.

Token labels are renumbered at every attention site: before the first site they are the number of the patch or input
token, afterwards the position in the sequence of the last site.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.operations import Argument
from whyformer._engine.tracing.token_numbers import TokenNumbers


@dataclass(frozen=True)
class SoftmaxStep:
    """What a tensor is between scores and their softmax (softmax.py)."""

    stage: str  # "shifted", "exponential", "total", "inverse", "log_total", "log_weights", "weights" ...
    scores: Tensor
    axis: int = -1  # over which the total is taken, counted from the end
    is_plain: bool = True  # nothing is masked, or added to the total: the weights are the softmax of the scores
    factors: tuple[Tensor, ...] = ()  # of an "undivided" product of exponentials and values


@dataclass(eq=False)
class Trace:
    """What is known about a tensor of a run. It is an attribute of the tensor, so it lives exactly as long.

    Nothing changes a trace: several tensors may have one. It is not frozen because one is made for every operation.
    """

    samples: Tensor | None = None  # label: the example
    tokens: Tensor | None = None  # label: the token
    epoch: int = 0  # number of attention sites passed when the tokens were numbered
    read: Tensor | None = None  # [batch token], after pooling: how much of each token was read
    depends: bool = False  # on the explained input
    is_weighted: bool = False  # tokens have different weights, so a sum over them is no plain mean
    is_attention: bool = False  # a softmax; its product with values is an attention site
    is_statistic: bool = False  # a mean, variance or norm: multiplying by it normalises
    is_ids: bool = False  # the token ids to be explained
    is_one_hot: bool = False  # ... and as rows of zeros and a one
    is_recoded: bool = False  # ... after arithmetic: other numbers at the same places
    is_detached: bool = False  # a decay, or a function of decays: constant in a relevance pass
    is_rate: bool = False  # a product with a constant tensor: its exponential, exp(A dt), is a decay
    is_cumulative: bool = False  # a cumulative sum or a difference of two: its exponential is a decay
    words: Tensor | None = None  # an unused sum of embeddings: the part of it that comes from those ids
    is_pixels: bool = False  # the image itself
    pixels: Tensor | None = None  # label of a view of the image: the pixel, row by row, until it is cut into patches
    rows: "Trace | None" = None  # a sum of rows so far: the labels of the rows that have been added to
    root: Tensor | None = None  # this is an elementwise function of that tensor ...
    is_straight: bool = False  # ... and only a multiple of it
    softmax: SoftmaxStep | None = None  # a step of a softmax that the model writes out
    output_of: int | None = None  # the number of the attention site whose output this is, or a view of it
    output_scale: float = 1.0  # ... times this number
    weights: Tensor | None = None  # like a label: how much each token counts in a sum over tokens, if `is_weighted`
    columns: Tensor | None = None  # label of a matrix of queries and keys: the token along the other axis
    is_asked: bool = False  # scores of queries that do not depend on the explained input, such as learned ones


EMPTY_TRACE = Trace()


def trace_of(tensor: Argument) -> Trace:
    return getattr(tensor, "_whyformer", EMPTY_TRACE) if isinstance(tensor, Tensor) else EMPTY_TRACE


def change_trace(trace: Trace, **changes: Any) -> Trace:
    """As `replace`, but ten times as fast: this runs for every operation."""
    made = object.__new__(Trace)
    made.__dict__.update(trace.__dict__, **changes)
    return made


def is_embedding_sum(tensor: Argument) -> TypeGuard[Tensor]:
    """A sum of embeddings, including those of the explained ids, that no other operation has used yet."""
    return trace_of(tensor).words is not None


def attach_trace(tensor: Tensor, trace: Trace) -> Tensor:
    tensor._whyformer = trace  # type: ignore[attr-defined]
    return tensor


def label_axis(axis: int, size: int, dims: int, device: torch.device) -> Tensor:
    """The label 0, 1, 2, ... along one axis of a tensor with `dims` axes."""
    shape = [1] * dims
    shape[axis] = size
    return torch.arange(size, device=device, dtype=torch.int32).view(shape)


class PlainLabels:
    """The labels of one run that `label_axis` could make, one tensor of each, and what views make of them.

    The layers of a model repeat the same few views of the same few labels, so each is computed once: on a GPU, every
    look at a label waits for the device.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, Tensor] = {}
        self.views: dict[Hashable, tuple[Tensor | None, Any]] = {}

    def label_axis(self, axis: int, size: int, dims: int, device: torch.device) -> Tensor:
        """As the function of this name."""
        key = (axis % dims if size > 1 else None, size, dims, device)
        if key not in self.made:
            self.made[key] = label_axis(axis, size, dims, device)
            self.made[key]._whyformer_plain = True  # type: ignore[attr-defined]
        return self.made[key]

    def replay_view(self, label: Tensor, shape: torch.Size, view: Callable[[Tensor], Any], key: Hashable) -> Any:
        """As the function of this name. key: what identifies the view; None if nothing does."""
        if key is None or not is_plain(label):
            return replay_view(label, shape, view)
        try:
            of, known = self.views.get(key := (id(label), shape, key), (None, None))
        except TypeError:  # an argument that cannot be a key, such as a list
            return replay_view(label, shape, view)
        if of is not label:
            seen = replay_view(label, shape, view)
            known = self.find_made(seen) if isinstance(seen, Tensor) else [self.find_made(part) for part in seen]
            self.views[key] = label, known  # the label is kept alive, so that no other has its id
        return known

    def find_made(self, label: Tensor) -> Tensor:
        """The plain label that is equal to this one, or this one."""
        axis = 0 if label.numel() == 1 else axis_of(label)
        if axis is None or label.dim() == 0:
            return label
        plain = self.label_axis(axis, label.size(axis), label.dim(), label.device)
        return plain if torch.equal(label, plain) else label


def is_plain(label: Tensor) -> bool:
    """0, 1, 2, ... along one axis, as far as is known without a look at the numbers."""
    return hasattr(label, "_whyformer_plain")


def squeeze_constant(label: Tensor) -> Tensor:
    """Reduce every axis along which the label is constant to size 1."""
    for axis in range(label.dim()):
        if label.size(axis) > 1 and label.stride(axis) == 0:
            label = label.narrow(axis, 0, 1)
    for axis in range(label.dim()):  # comparing numbers is cheap now: few are left
        if label.size(axis) > 1 and bool((label == label.narrow(axis, 0, 1)).all()):
            label = label.narrow(axis, 0, 1)
    return label


def replay_view(label: Tensor, shape: torch.Size, view: Callable[[Tensor], Any]) -> Any:
    """Apply to the label the view that was applied to its tensor."""
    full = label.expand(shape)
    try:
        seen = view(full)
    except NotImplementedError:  # unfold does not support integers
        seen = view(full.double()).int()
    except RuntimeError:  # `view` on a label whose strides do not allow it
        seen = view(full.contiguous())
    return squeeze_constant(seen) if isinstance(seen, Tensor) else [squeeze_constant(part) for part in seen]


def join_labels(
    labels: Sequence[Tensor | None], tensors: Sequence[Tensor], axis: int, missing: int | None
) -> Tensor | None:
    """The label of a concatenation. Parts without one get `missing` or, if that is None, the label of the others."""
    if all(label is None for label in labels):
        return None
    dims = tensors[0].dim()
    axis %= dims
    known = next(label for label in labels if label is not None)
    if missing is None and any(label is None for label in labels):
        agree = all(label is None or label.size(axis) == 1 for label in labels)
        return known if agree else None
    wide = [max(label.size(d) for label in labels if label is not None) for d in range(dims)]
    parts = []
    for label, tensor in zip(labels, tensors, strict=True):
        shape = [tensor.size(axis) if d == axis else wide[d] for d in range(dims)]
        filled = known.new_full((1,) * dims, missing or 0) if label is None else label
        parts.append(filled.expand(shape))
    return squeeze_constant(torch.cat(parts, axis))


def broadcast_label(label: Tensor | None, shape: torch.Size) -> Tensor | None:
    """The label for a result of this shape, aligned from the right as in broadcasting; None if it does not fit."""
    if label is None or label.dim() > len(shape):
        return None
    missing = len(shape) - label.dim()
    for size, wanted in zip(label.shape, shape[missing:], strict=True):
        if size != 1 and size != wanted:
            return None
    if not missing:
        return label
    view = label.view((1,) * missing + tuple(label.shape))
    if is_plain(label):
        view._whyformer_plain = True  # type: ignore[attr-defined]
    return view


def axis_of(label: Tensor | None) -> int | None:
    """The only axis along which a label changes; None if there is none, or several."""
    changing = [axis for axis in range(label.dim()) if label.size(axis) > 1] if label is not None else []
    return changing[0] if len(changing) == 1 else None


def pick_newest_trace(traces: Sequence[Trace]) -> Trace:
    """The trace with the newest token labels, and the first sample label."""
    best = EMPTY_TRACE
    for trace in traces:
        if trace.tokens is not None and (best.tokens is None or trace.epoch > best.epoch):
            best = trace
    samples = next((t.samples for t in traces if t.samples is not None), None)
    return best if samples is None or samples is best.samples else change_trace(best, samples=samples)


@dataclass(frozen=True)
class SampleGroups:
    """Sums per example, and the reverse.

    If examples lie one after the other along one axis (`is_plain`), a sum over the other axes does it, always in the
    same order. Otherwise entries are added one by one to the sum of their example, on a GPU in any order.
    """

    label: Tensor
    count: int

    @cached_property
    def is_plain(self) -> bool:
        """Example 0, 1, 2, ... along one axis."""
        return is_plain(self.label) and self.label.numel() == self.count

    @cached_property
    def constant_axes(self) -> list[int]:
        """The axes along which the example is the same."""
        return [axis for axis, size in enumerate(self.label.shape) if size == 1]

    def sum(self, tensor: Tensor) -> Tensor:
        """[count]: the sum of the entries of each example."""
        if self.count == 1:
            return tensor.sum().view(1)
        tensor = tensor.sum(self.constant_axes, keepdim=True) if self.constant_axes else tensor
        if self.is_plain:
            return tensor.reshape(self.count)
        return tensor.new_zeros(self.count).index_add_(0, self.label.flatten(), tensor.flatten())

    def sum_magnitudes(self, tensor: Tensor) -> Tensor:
        """[count]: the sum of the absolute values of the entries of each example."""
        if self.count == 1:
            return torch.linalg.vector_norm(tensor, 1).view(1)
        if not self.constant_axes:
            return self.sum(tensor.abs())
        return self.sum(torch.linalg.vector_norm(tensor, 1, self.constant_axes, keepdim=True))

    def spread(self, values: Tensor) -> Tensor:
        """One value per example, in a shape that broadcasts to the tensor."""
        if self.count == 1:
            return values.view((1,) * self.label.dim())
        return values.view(self.label.shape) if self.is_plain else values[self.label.long()]


def compute_pooling_weights(
    trace: Trace, shape: torch.Size, samples: int, tokens: int, numbers: TokenNumbers | None = None
) -> Tensor | None:
    """[samples tokens]: how much an output [batch ...] of this shape reads of each token; rows sum to 1.

    numbers: if layers do not all have the same tokens; the result is then of the positions in the joined sequence.
    """
    if trace.read is not None:
        return trace.read if numbers is None else F.pad(trace.read, (0, numbers.length - trace.read.size(1)))
    if trace.tokens is None or trace.samples is None:
        return None
    label = broadcast_label(trace.tokens, shape)
    sample = broadcast_label(trace.samples, shape)
    if label is None or sample is None:
        return None
    sample, label = torch.broadcast_tensors(sample, label)
    kept = (label >= 0) & (sample >= 0)
    if numbers is not None:
        known, label = label.unique(return_inverse=True)
        tokens = len(known)
    if bool((label >= tokens).any()) or bool((sample >= samples).any()):
        return None  # the labels were numbered at another site
    flat = sample[kept].long() * tokens + label[kept].long()
    weights = None
    if trace.is_weighted:
        if trace.weights is None or broadcast_label(trace.weights, shape) is None:
            return None
        weights = torch.broadcast_to(trace.weights, label.shape)[kept].double()
        if bool((weights < 0).any()):
            return None
    counted = torch.bincount(flat, weights, minlength=samples * tokens).view(samples, tokens).double()
    total = counted.sum(-1, keepdim=True)
    if not bool((total > 0).all()):
        return None
    return counted / total if numbers is None else numbers.spread(counted / total, known)
