"""The trace of a result, from the traces of the operands.

A trace has which example an entry belongs to, which token, and, after pooling, how much of each token has been read
(provenance.py describes labels). It also has facts that decide which rule applies: whether a tensor is a softmax, a
statistic, or an elementwise function of another tensor.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing import operations, provenance
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import (
    EMPTY_TRACE,
    PlainLabels,
    Trace,
    axis_of,
    change_trace,
    is_embedding_sum,
    trace_of,
)
from whyformer._engine.tracing.softmax import mark_softmax
from whyformer._engine.tracing.token_numbers import TokenNumbers

CUMULATIVE_STEPS = operations.ADDITIONS | operations.IDENTITIES | {"neg"}
LABELS = ("samples", "tokens", "columns", "weights")
LOST_IN_VIEWS = {
    name: getattr(EMPTY_TRACE, name) for name in "words rows root softmax depends is_detached is_straight".split()
}
COUNTED_EXTREMA = frozenset("amax max amin min".split())


class Follower:
    """Computes traces, with the state of the run that this needs."""

    def __init__(self, batch: int, numbers: TokenNumbers | None = None) -> None:
        self.batch = batch
        self.numbers = numbers  # if layers do not all have the same tokens
        self.labels = PlainLabels()
        self.length = 0  # tokens at the last attention site
        # Rows and columns of patches, once a convolution has cut them
        self.grid: tuple[int, int] | None = None if numbers is None else numbers.grid
        self.grids: list[tuple[tuple[int, int], tuple[int, int] | None]] = []  # all so far, with what they cover
        self.image: tuple[int, int] | None = None  # height and width of the image
        self.given: Tensor | None = None  # the image, in the size from which patches are cut ...
        self.prepared: Tensor | None = None  # ... and after arithmetic on its pixels
        self.joins_rows = False  # a number is computed of states of several examples
        self.shrinks = (1.0, 1.0)  # pixels of the given image for one of the image that the patches are cut from
        self.covers: tuple[int, int] | None = None  # pixels that the patches cover, if not all
        self.is_bordered = False  # patches are also cut from a border around the image: where they lie is not known
        self.cuts_elsewhere = False  # the first patch is not cut at the first pixel: a crop, a border, a turned image

    def follow(self, operation: Operation, result: Argument) -> list[Trace]:
        """One trace per tensor of the result."""
        if operation.name in operations.ORDER_STATISTICS and operation.given:
            self.joins_rows |= orders_rows(operation)
        if isinstance(result, Tensor):
            trace = mark_softmax(operation, result, self.follow_tensor(operation, result))
            self.prepared = result if trace.is_pixels and result.dim() == 4 else self.prepared
            return [trace]
        if not isinstance(result, (list, tuple)):
            return []
        if operation.name in operations.EXTREMA and isinstance(values := result[0], Tensor):
            return [self.follow_extremum(operation, values), *[EMPTY_TRACE] * (len(result) - 1)]
        return self.follow_view(operation, len(result)) if operation.name in operations.VIEWS else []

    def follow_extremum(self, operation: Operation, values: Tensor) -> Trace:
        """max(dim), sort and topk: labels stay, except those that change along the searched axis."""
        tensor = operation.given[0]
        trace = trace_of(tensor)
        index, default = {"max": (1, None), "min": (1, None), "sort": (1, -1), "topk": (2, -1)}[operation.name]
        axis = operation.argument(index, "dim", "axis", default=default) % tensor.dim()
        samples, tokens = (contract_label(label, axis - tensor.dim()) for label in (trace.samples, trace.tokens))
        self.joins_rows |= samples is None is not trace.samples and trace.depends
        if tokens is None and trace.tokens is not None and values.numel() * tensor.size(axis) == tensor.numel():
            tokens = self.merge_along(trace.tokens, (axis,), keepdim=True)
        if values.dim() < tensor.dim():
            samples, tokens = (label.squeeze(axis) if label is not None else None for label in (samples, tokens))
        is_statistic = values.dim() == tensor.dim() and values.size(-1) == 1 < tensor.size(-1)
        read = trace.read
        if self.length and trace.tokens is not None and tokens is None:
            read = self.count_extrema(operation, tensor, axis)
        return Trace(samples, tokens, trace.epoch, read, is_statistic=is_statistic)

    def follow_tensor(self, operation: Operation, result: Tensor) -> Trace:
        name = operation.name
        if self.image is None and operation.given and trace_of(operation.given[0]).is_pixels:
            self.image = tuple(operation.given[0].shape[-2:])  # type: ignore[assignment]
            self.given = operation.given[0]
        if name == "unfold" and operation.given[0].dim() == 4 and result.dim() == 3:
            return self.follow_unfold(operation, result)
        if is_row_lookup(operation):
            return follow_embedding(operation, result, self.labels)
        if operation.given and trace_of(operation.given[0]).is_one_hot and name in operations.PRODUCTS | {"linear"}:
            rows = trace_of(operation.given[0])  # times a matrix, these are its rows: the embeddings
            return Trace(rows.samples, rows.tokens, words=result.detach())
        if name in operations.VIEWS:
            return self.follow_view(operation, 1)[0]
        if name == "one_hot":
            return follow_one_hot(operation, self.labels)
        if name in operations.CONSTRUCTORS:
            return follow_constructor(operation, result)
        if name in operations.CONCATENATIONS:
            return self.follow_concatenation(operation, result)
        if name in operations.EMBEDDINGS:
            return follow_embedding(operation, result, self.labels)
        if name in operations.CONVOLUTIONS:
            return self.follow_convolution(operation, result)
        if name in operations.GRID_POOLS and result.dim() == 4 and result.shape[-2:].numel() > 1:
            return self.follow_grid_pool(operation, result)
        if name in operations.RESIZES and trace_of(operation.given[0]).is_pixels and result.dim() == 4:
            return self.follow_resize(operation.given[0], result)
        if name in operations.RESIZES and self.numbers is not None and result.dim() == 4:
            return self.follow_grid_pool(operation, result)
        if name in operations.REDUCTIONS and result.shape != operation.given[0].shape:
            return self.follow_reduction(operation, result)
        if name in operations.ROW_SUMS:
            return follow_row_sum(operation, result)
        if name in ("view_as_complex", "view_as_real"):
            return follow_complex(operation)
        if name == "einsum":
            return follow_einsum(operation)
        if name in operations.PRODUCTS or name == operations.FUSED_ATTENTION:
            return follow_product(operation, result)
        return self.follow_elementwise(operation, result)

    def follow_view(self, operation: Operation, count: int) -> list[Trace]:
        """Apply to the labels the view that was applied to the tensor."""
        tensor, rest = operation.args[0], operation.args[1:]
        trace = trace_of(tensor)
        if trace is EMPTY_TRACE:
            return [EMPTY_TRACE] * count
        view = lambda label: operation.function(label, *rest, **operation.kwargs)  # noqa: E731
        is_known = len(operation.given) == 1 and operation.name != "getitem"  # x[True] and x[1] have equal keys
        key = (operation.name, rest, *operation.kwargs.items()) if is_known else None
        is_padding = operation.name in ("pad", "constant_pad_nd")
        is_image = trace.is_pixels and trace.pixels is None and tensor.dim() == 4
        pixels = number_pixels(tensor) if is_image else trace.pixels
        made = [change_trace(trace, **LOST_IN_VIEWS) for _ in range(count)]
        for name, label in (*((name, getattr(trace, name)) for name in LABELS), ("pixels", pixels)):
            if label is None:
                continue
            if is_padding:
                alone = tensor.shape if self.numbers is not None and name == "tokens" else None
                seen = pad_label(label, operation.argument(1, "pad"), alone)
            else:
                seen = self.labels.replay_view(label, tensor.shape, view, key)
            for part, own in zip(made, [seen] if isinstance(seen, Tensor) else seen, strict=True):
                setattr(part, name, own)
        return made

    def follow_unfold(self, operation: Operation, result: Tensor) -> Trace:
        """F.unfold of an image or grid [batch channel height width] into [batch channel*pixel place]."""
        x, trace = operation.given[0], trace_of(operation.given[0])
        samples = None if trace.samples is None or trace.samples.size(0) == 1 else trace.samples.flatten(2)
        samples = samples if trace.samples is None or trace.samples.size(0) > 1 else trace.samples.new_zeros(1, 1, 1)
        made = change_trace(trace, **LOST_IN_VIEWS, samples=samples, tokens=None, pixels=None, is_pixels=False)
        pixels = number_pixels(x) if trace.is_pixels and trace.pixels is None else trace.pixels
        if pixels is not None:  # counted from 1, since what is added around the image becomes 0
            view = operation.map_arguments(lambda value: (pixels + 1).double().expand(x.shape) if value is x else value)
            made.pixels = provenance.squeeze_constant(view.run().int() - 1)
            patches = None if self.length else self.number_patches(made.pixels.mT)
            made.tokens = None if patches is None else patches.mT
        elif trace.tokens is not None and self.numbers is not None:
            size = count_places(operation, x)
            label = self.numbers.merge_cells(trace.tokens, size) if math.prod(size) == result.size(-1) else None
            made.tokens = None if label is None else label.flatten(2)
        return made

    def follow_concatenation(self, operation: Operation, result: Tensor) -> Trace:
        parts, axis = operation.concatenation_arguments()
        traces = [trace_of(part) for part in parts]
        if operation.name == "stack":
            axis %= result.dim()
            traces = [_unsqueeze_trace(trace, part, axis) for trace, part in zip(traces, parts, strict=True)]
            parts = [part.unsqueeze(axis) for part in parts]
        samples = provenance.join_labels([t.samples for t in traces], parts, axis, None)
        epoch = max(t.epoch for t in traces)
        is_beside_sequence = any(_is_sequence(t) for t in traces)  # a pooled state that joins the tokens again
        if any(t.read is not None for t in traces) and not is_beside_sequence:
            return Trace(samples=samples, epoch=epoch, read=self.mix_reads(parts, traces))
        if axis % result.dim() == 1 and (pixels := join_channels(parts, traces)) is not None:
            return Trace(samples=samples, is_pixels=True, pixels=pixels)
        if self.numbers is not None:
            current = self.number_added(parts, traces, axis % result.dim())
        else:
            current = [t.tokens if t.epoch == epoch else None for t in traces]
        is_ids = any(t.is_ids for t in traces) and not result.is_floating_point()
        is_recoded = any(t.is_recoded for t in traces)
        tokens = provenance.join_labels(current, parts, axis, -1)
        return Trace(samples, tokens, epoch, is_ids=is_ids, is_recoded=is_recoded)

    def number_added(self, parts: list[Tensor], traces: list[Trace], axis: int) -> list[Tensor | None]:
        """The tokens of parts that are joined along an axis of tokens; those of constants (a class token) are new."""
        assert self.numbers is not None
        current = [t.tokens for t in traces]
        if not any(label is not None and label.size(axis) > 1 for label in current):
            return current
        for number, (part, trace) in enumerate(zip(parts, traces, strict=True)):
            if trace.tokens is None and not trace.depends:
                new = self.numbers.add(part.size(axis), part.device)
                current[number] = new.view([-1 if a == axis else 1 for a in range(part.dim())])
        return current

    def mix_reads(self, parts: list[Tensor], traces: list[Trace]) -> Tensor | None:
        """How much several tensors read of each token, weighted by their number of entries."""
        reads = [self.weigh_tokens(trace, part.shape) for part, trace in zip(parts, traces, strict=True)]
        weighed = [(read, part.numel()) for read, part in zip(reads, parts, strict=True) if read is not None]
        total = sum(size for _, size in weighed)
        if not total or len({read.shape for read, _ in weighed}) > 1:  # none, or of two sequences
            return None
        return sum(read * (size / total) for read, size in weighed)  # type: ignore[return-value]

    def follow_convolution(self, operation: Operation, result: Tensor) -> Trace:
        x = operation.given[0]
        trace = trace_of(x)
        if not self.length and (patches := self.number_rearranged(trace, result)) is not None:
            return Trace(samples=trace.samples, tokens=patches)
        is_stem = trace.is_pixels or (self.grid is not None and not self.length and not trace.is_attention)
        is_cut = is_stem and not self.length and result.dim() == 4 and not self.keeps_grid(trace, result)
        if is_cut and not (self.numbers is not None and trace.tokens is not None):
            own = (x.size(2), x.size(3))
            covers = find_covered_pixels(operation, x, result, self.image or own) if trace.is_pixels else None
            self.cuts_elsewhere |= self.is_window(trace.pixels)
            self.is_bordered |= adds_border(operation)
            return Trace(samples=trace.samples, tokens=self.label_grid(result, covers))
        samples, tokens = (provenance.broadcast_label(label, result.shape) for label in (trace.samples, trace.tokens))
        if tokens is None or tokens.size(1) > 1:
            tokens = self.merge_cells(trace, result)
        is_attention = trace.is_attention and x.shape[-2:] == result.shape[-2:]  # heads mixed by a 1 x 1 convolution
        return Trace(samples=samples, tokens=tokens, epoch=trace.epoch, is_attention=is_attention)

    def keeps_grid(self, trace: Trace, result: Tensor) -> bool:
        """Whether the tokens of a grid stay: they are known, and there are as many rows and columns as before."""
        label = trace.tokens
        return label is not None and label.dim() == 4 and label.size(1) == 1 and label.shape[-2:] == result.shape[-2:]

    def label_grid(self, result: Tensor, covers: tuple[int, int] | None = None) -> Tensor | None:
        """The tokens of a grid [batch channel row column] that is cut from the image before the first attention."""
        size = (result.size(2), result.size(3))
        if self.is_bordered:
            self.grid = None
            return None
        self.set_grid(size, covers)
        if self.numbers is not None:
            return self.numbers.label_grid(size, result.device)
        return torch.arange(size[0] * size[1], device=result.device, dtype=torch.int32).view(1, 1, *size)

    def follow_resize(self, image: Tensor, result: Tensor) -> Trace:
        """The image in another size, from whose pixels the patches are cut."""
        trace = trace_of(image)
        self.cuts_elsewhere |= self.is_window(trace.pixels)
        self.shrinks = tuple(
            a * b / c for a, b, c in zip(self.shrinks, image.shape[-2:], result.shape[-2:], strict=True)
        )  # type: ignore[assignment]
        self.image, self.given = (result.size(-2), result.size(-1)), result
        return Trace(samples=trace.samples, is_pixels=True)

    def find_blank(self) -> Tensor | None:
        """[1 channel 1 1]: the colour that the model makes 0, if it normalises its pixels itself; else None."""
        if self.given is None or self.prepared is None or self.given.shape != self.prepared.shape:
            return None
        pixels, made = self.given.detach().double(), self.prepared.detach().double()
        for order in ([0, 1, 2], [2, 1, 0]) if pixels.size(1) == 3 else ([*range(pixels.size(1))],):
            own = pixels[:, order]
            middle, axes = own.mean((0, 2, 3), keepdim=True), (0, 2, 3)
            slope = ((own - middle) * made).sum(axes, keepdim=True) / (own - middle).square().sum(axes, keepdim=True)
            offset = made.mean(axes, keepdim=True) - slope * middle
            if bool(((slope * own + offset - made).abs() <= 1e-4 * made.abs().amax()).all()):
                return (-offset / slope)[:, order].to(self.given.dtype)
        return None

    def set_grid(self, size: tuple[int, int], covers: tuple[int, int] | None) -> None:
        """The patches are those of this grid, as far as is known."""
        if covers is not None:
            covers = (round(covers[0] * self.shrinks[0]), round(covers[1] * self.shrinks[1]))
        if self.numbers is None or size == self.numbers.grid:
            self.grid, self.covers = size, covers
            self.grids.append((size, covers))

    def settle_grid(self, count: int) -> None:
        """Of several grids (of a branch beside the tokens, say), take that of as many patches as attention sees."""
        for size, covers in reversed(self.grids):
            if size[0] * size[1] == count:
                self.grid, self.covers = size, covers
                return

    def follow_grid_pool(self, operation: Operation, result: Tensor) -> Trace:
        """A pool over parts of the grid. Before the first attention its results are the patches."""
        trace = trace_of(operation.given[0])
        samples = provenance.broadcast_label(trace.samples, result.shape)
        if self.length or trace.is_attention or (self.numbers is not None and trace.tokens is not None):
            return Trace(samples=samples, tokens=self.merge_cells(trace, result), epoch=trace.epoch)
        return Trace(samples=samples, tokens=self.label_grid(result))

    def merge_cells(self, trace: Trace, result: Tensor) -> Tensor | None:
        """The label of a grid [batch channel row column] of another size; None if tokens are not numbered."""
        label = trace.tokens
        if self.numbers is None or label is None or label.dim() != 4 or result.dim() != 4:
            return None
        label = self.numbers.merge(label.movedim(1, -1)).unsqueeze(1) if label.size(1) > 1 else label
        height, width = result.shape[-2:]
        if label.size(-2) >= height and label.size(-1) >= width:
            return self.numbers.merge_cells(label, (height, width))
        of_image = self.numbers.label_grid((label.size(-2), label.size(-1)), label.device)
        is_whole = of_image is not None and torch.equal(label, of_image)
        return self.numbers.label_grid((height, width), label.device) if is_whole else None

    def merge_along(self, label: Tensor, axes: tuple[int, ...], *, keepdim: bool) -> Tensor | None:
        """The label of tokens that were joined along these axes; None if they are not numbered, or all were joined."""
        if self.numbers is None or not self.length:
            return None
        axes = tuple(axis % label.dim() for axis in axes)
        if label.numel() == math.prod(label.size(axis) for axis in axes):
            return None
        last = label.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
        merged = self.numbers.merge(last)
        for axis in sorted(axes) if keepdim else ():
            merged = merged.unsqueeze(axis)
        return provenance.squeeze_constant(merged)

    def is_window(self, pixels: Tensor | None) -> bool:
        """Whether pixels are those of another rectangle than one that begins at the first pixel."""
        if self.image is None or pixels is None or pixels.shape[-2:] == self.image:
            return False
        rows, columns = (torch.arange(n, device=pixels.device) for n in pixels.shape[-2:])
        return bool((pixels != rows[:, None] * self.image[1] + columns).any())

    def number_rearranged(self, trace: Trace, result: Tensor) -> Tensor | None:
        """The tokens after a 1 x 1 convolution of an image whose pixels of each patch were made channels."""
        pixels = trace.pixels
        if pixels is None or pixels.dim() != 4 or pixels.size(1) == 1 or pixels.shape[-2:] != result.shape[-2:]:
            return None
        patches = self.number_patches(pixels.movedim(1, -1))
        return None if patches is None else patches.movedim(-1, 1)

    def number_patches(self, pixels: Tensor) -> Tensor | None:
        """The token label after a linear map of rows of pixels: the patch that each row is, counted row by row.

        A patch is a rectangle, so it is known by its first pixel. None if the rows are not the patches of a grid.
        """
        if self.image is None or pixels.size(-1) == 1 or bool((pixels.amax(-1) < 0).any()):
            return None
        width = self.image[1]
        last = pixels.amax(-1, keepdim=True)
        first = torch.where(pixels < 0, last, pixels).amin(-1, keepdim=True)  # without a border around the image
        corners, number = first.unique(return_inverse=True)
        rows, columns = (corners // width).unique(), (corners % width).unique()
        if len(rows) * len(columns) != len(corners):
            return None
        height_of_patch = last // width - first // width + 1
        width_of_patch = last % width - first % width + 1
        covered = (len(rows) * int(height_of_patch.amax()), len(columns) * int(width_of_patch.amax()))
        is_part = covered != self.image and covered[0] <= self.image[0] and covered[1] <= self.image[1]
        size = (len(rows), len(columns))
        self.set_grid(size, covered if is_part else None)
        self.cuts_elsewhere |= bool(corners.min() > 0)
        number = provenance.squeeze_constant(number.view(first.shape).int())
        if self.numbers is None:
            return number
        of_grid = self.numbers.label_grid(size, number.device)
        return None if of_grid is None else of_grid.flatten()[number.long()]

    def follow_reduction(self, operation: Operation, result: Tensor) -> Trace:
        tensor = operation.given[0]
        trace = trace_of(tensor)
        keeps_axes = result.dim() == tensor.dim()
        is_statistic = operation.name in operations.STATISTICS and keeps_axes and result.size(-1) == 1 < tensor.size(-1)
        try:
            samples, tokens = (reduce_label(label, tensor, operation) for label in (trace.samples, trace.tokens))
        except (RuntimeError, TypeError, IndexError):  # a form of the function that is not supported
            return replace(EMPTY_TRACE, is_statistic=is_statistic)
        self.joins_rows |= samples is None is not trace.samples and trace.depends and result.is_floating_point()
        if trace.tokens is not None and tokens is None and (axes := list_reduced_axes(operation, tensor)) is not None:
            tokens = self.merge_along(trace.tokens, axes, keepdim=result.dim() == tensor.dim())
        if trace.tokens is None or tokens is not None:
            image = find_image(operation, result)
            return Trace(
                samples, tokens, trace.epoch, trace.read, is_statistic=is_statistic, is_pixels=image.is_pixels,
                pixels=image.pixels,
            )  # fmt: skip
        read = None
        if self.length and operation.name not in operations.EXTREMA:
            read = self.weigh_tokens(trace, tensor.shape)
        elif self.length:
            axis = operation.argument(1, "dim", "axis")
            read = self.count_extrema(operation, tensor, axis) if isinstance(axis, int) else None
        return Trace(samples, None, trace.epoch, read)

    def count_extrema(self, operation: Operation, tensor: Tensor, axis: int) -> Tensor | None:
        """[batch token]: in which share of the channels a maximum over tokens selects each of them."""
        trace = trace_of(tensor)
        labels = [label for label in (trace.samples, trace.tokens) if label is not None]
        if (
            len(labels) < 2
            or operation.name not in COUNTED_EXTREMA
            or [n.size(axis) > 1 for n in labels] != [False, True]
        ):
            return None
        found = tensor.argmax(axis, keepdim=True) if "max" in operation.name else tensor.argmin(axis, keepdim=True)
        samples, tokens = (label.expand(tensor.shape).gather(axis, found) for label in labels)
        return self.weigh_tokens(Trace(samples, tokens), found.shape)

    def weigh_tokens(self, trace: Trace, shape: torch.Size) -> Tensor | None:
        """[batch token]: how much a tensor of this shape has of each token."""
        return provenance.compute_pooling_weights(trace, shape, self.batch, self.length, self.numbers)

    def follow_elementwise(self, operation: Operation, result: Tensor) -> Trace:
        given, name = operation.given, operation.name
        traces = [trace_of(t) for t in given]
        best = provenance.pick_newest_trace(traces)
        if name == "linear":
            samples, tokens = contract_label(best.samples, -1), contract_label(best.tokens, -1)
            if tokens is None and best.tokens is not None:
                tokens = self.merge_along(best.tokens, (-1,), keepdim=True)
            if samples is not best.samples or tokens is not best.tokens:
                best = change_trace(best, samples=samples, tokens=tokens)
            if traces[0].pixels is not None and not self.length:
                best = change_trace(best, tokens=self.number_patches(traces[0].pixels))
        if name in operations.ADDITIONS:
            best = self.merge_reads(best, given)
        elif best.tokens is None and (pooled := next((t for t in traces if t.read is not None), None)) is not None:
            best = replace(best, read=pooled.read, epoch=pooled.epoch)
        samples, tokens = (provenance.broadcast_label(label, result.shape) for label in (best.samples, best.tokens))
        if best.epoch > 0 and tokens is not None:
            tokens = drop_masked_tokens(tokens, list_masks(operation))
            tokens = add_lost_tokens(tokens, traces, best.epoch) if name in operations.ADDITIONS else tokens
        rest_is_constant = not any(trace_of(t).depends for t in given[1:])
        rest_is_attention = all(t.is_attention or t.is_statistic or not t.depends for t in traces[1:])
        is_scaled = name == "mul" and len(given) == 2 and given[0].numel() == 1 and not traces[0].depends
        leading = traces[1] if is_scaled else traces[0]
        is_softmax = name in operations.SOFTMAXES and (result.dim() >= 3 or is_over_tokens(operation))
        root, is_straight = find_elementwise_root(operation, result)
        image = find_image(operation, result)
        output_of, output_scale = (
            (traces[0].output_of, traces[0].output_scale)
            if name in operations.IDENTITIES
            else follow_output(operation, traces)
            if name == "mul" and any(t.output_of is not None for t in traces)
            else (None, 1.0)
        )
        return Trace(
            samples,
            tokens,
            best.epoch,
            best.read,
            is_attention=is_softmax or (leading.is_attention and rest_is_attention),
            is_statistic=traces[0].is_statistic and rest_is_constant and result.shape == given[0].shape,
            is_weighted=bool(self.length) and (any(t.is_weighted for t in traces) or weighs_tokens(operation)),
            is_pixels=image.is_pixels,
            is_one_hot=traces[0].is_one_hot and name in operations.IDENTITIES,
            is_ids=(is_ids := sum(t.is_ids for t in traces) == 1 and keeps_ids(operation, result)),
            is_recoded=is_ids and (name not in operations.CASTS or any(t.is_recoded for t in traces)),
            is_asked=traces[0].is_asked,
            is_rate=multiplies_by_constants(operation) or (name in operations.IDENTITIES and traces[0].is_rate),
            is_cumulative=name == "cumsum" or (name in CUMULATIVE_STEPS and any(t.is_cumulative for t in traces)),
            words=token_part_of(operation),
            root=root,
            is_straight=is_straight,
            columns=provenance.broadcast_label(best.columns, result.shape),
            weights=provenance.broadcast_label(self.follow_weights(operation, traces), result.shape),
            pixels=image.pixels,
            output_of=output_of,
            output_scale=output_scale,
        )

    def follow_weights(self, operation: Operation, traces: list[Trace]) -> Tensor | None:
        """How much each token counts, after a product with one number per token; those before are multiplied."""
        known = [t.weights for t in traces if t.weights is not None]
        weights = known[0] if len(known) == 1 else None
        if operation.name == "linear":
            weights = contract_label(weights, -1)  # None where heads weigh a token differently: they are mixed here
        if operation.name not in operations.MULTIPLICATIONS or not self.length:
            return weights
        for factor in operation.given:
            if is_per_token(factor):
                own = factor.detach()
                own = own.reciprocal() if operation.name in operations.DIVISIONS else own
                weights = own if weights is None else weights * own
        return weights

    def merge_reads(self, best: Trace, given: list[Tensor]) -> Trace:
        """A sum of two pooled tensors reads what both read."""
        latest = max(trace_of(t).epoch for t in given)
        known = [t for t in given if trace_of(t).tokens is not None or trace_of(t).read is not None]
        current = [t for t in known if trace_of(t).epoch == latest > 0]
        if any(_is_sequence(trace_of(t)) for t in current):  # not pooled yet: scores by row plus scores by column
            return best
        if best.tokens is None:  # several pooling layers, one after the other
            current = [t for t in given if trace_of(t).read is not None]
        if len(current) < 2 or all(_is_same_label(trace_of(t).tokens, best.tokens) for t in current):
            is_known = best.tokens is not None or not current
            return best if is_known else replace(best, read=trace_of(current[0]).read, epoch=latest)
        return replace(best, tokens=None, read=self.mix_reads(current, [trace_of(t) for t in current]), epoch=latest)


def follow_output(operation: Operation, traces: list[Trace]) -> tuple[int | None, float]:
    """The attention site that a product is the output of, and by which number it is multiplied."""
    found = [trace for trace in traces if trace.output_of is not None]
    others = [t for t in operation.given if trace_of(t).output_of is None]
    if len(found) != 1 or len(traces) != 2 or others[0].numel() > 1 or trace_of(others[0]).depends:
        return None, 1.0
    return found[0].output_of, found[0].output_scale * float(others[0].detach())


def keeps_ids(operation: Operation, result: Tensor) -> bool:
    """Whether arithmetic makes whole numbers of whole numbers."""
    is_whole = not result.is_floating_point() and result.dtype != torch.bool
    return is_whole and operation.name in operations.ELEMENTWISE | operations.IDENTITIES | operations.WHOLE


def find_image(operation: Operation, result: Tensor) -> Trace:
    """The trace of the operand whose pixels stay where they are: under arithmetic, norms and mixed colours."""
    for tensor in operation.given if operation.name != "linear" else ():
        trace = trace_of(tensor)
        if trace.pixels is not None and result.shape == tensor.shape:
            return trace if trace.is_pixels and is_plane(trace.pixels) else change_trace(trace, is_pixels=False)
        if trace.is_pixels and trace.pixels is None and result.dim() == 4 and result.shape[-2:] == tensor.shape[-2:]:
            return trace
    return EMPTY_TRACE


def is_plane(pixels: Tensor) -> bool:
    """Whether the label of pixels has rows and columns, and no patches."""
    return sum(size > 1 for size in pixels.shape) == 2


def join_channels(parts: Sequence[Tensor], traces: Sequence[Trace]) -> Tensor | None:
    """The label of an image [batch channel height width], from its channels or from copies that may be shifted."""
    if any(not trace.is_pixels or part.dim() != 4 for part, trace in zip(parts, traces, strict=True)):
        return None
    whole = next((part for part, trace in zip(parts, traces, strict=True) if trace.pixels is None), None)
    if whole is not None:
        return number_pixels(whole) if all(part.shape[-2:] == whole.shape[-2:] for part in parts) else None
    first = traces[0].pixels
    return first if first is not None and all(_is_same_label(trace.pixels, first) for trace in traces) else None


def number_pixels(image: Tensor) -> Tensor:
    """The label of an image [batch channel height width]: the number of each pixel, row by row."""
    height, width = image.shape[-2:]
    return torch.arange(height * width, device=image.device, dtype=torch.int32).view(1, 1, height, width)


def pad_label(label: Tensor, widths: Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """Padding gets the label of its neighbours or, along an axis on which the label changes, -1.

    shape: of the tensor, if an axis of size 1 is padded with tokens too.
    """
    axes = [-1 - i // 2 for i in range(len(widths))]
    is_changing = [label.size(axis) > 1 or (shape is not None and shape[axis] == 1) for axis in axes]
    return F.pad(label, [w if changes else 0 for w, changes in zip(widths, is_changing, strict=True)], value=-1)


def follow_embedding(operation: Operation, result: Tensor, labels: PlainLabels) -> Trace:
    """The input enters at an embedding of the given ids; an embedding of positions is a constant."""
    ids = next((t for t in operation.given if not t.is_floating_point()), None)
    trace = trace_of(ids)
    if ids is None or trace.samples is None:
        return EMPTY_TRACE
    samples, tokens = (
        labels.replay_view(label, ids.shape, lambda label: label.unsqueeze(-1), "embedding")
        if label is not None
        else None
        for label in (trace.samples, trace.tokens)
    )
    return Trace(samples=samples, tokens=tokens, words=result.detach() if trace.is_ids else None)


def is_row_lookup(operation: Operation) -> bool:
    """`weight[ids]`: an embedding by another name."""
    table = operation.args[0] if operation.name == "getitem" else None
    index = operation.args[1] if isinstance(table, Tensor) and table.dim() == 2 else None
    is_read = isinstance(index, Tensor) and trace_of(index).is_ids
    return is_read and isinstance(table, Tensor) and table.is_floating_point() and trace_of(table) is EMPTY_TRACE


def follow_constructor(operation: Operation, result: Tensor) -> Trace:
    """Numbers of the shape of a tensor, with none of its own. States stay in their places; ids, and one token, do not.

    A start token is made like a first one, which it is not.
    """
    trace = trace_of(operation.given[0])
    if result.shape != operation.given[0].shape:
        return EMPTY_TRACE
    is_sequence = trace.tokens is not None and trace.tokens.numel() > 1
    if is_sequence and result.is_floating_point() and operation.given[0].is_floating_point():
        return Trace(trace.samples, trace.tokens, trace.epoch)
    return Trace(samples=trace.samples)


def follow_one_hot(operation: Operation, labels: PlainLabels) -> Trace:
    """A row of zeros and a one for each number: labels get an axis at the end."""
    given, trace = operation.given[0], trace_of(operation.given[0])
    samples, tokens = (
        None if label is None else labels.replay_view(label, given.shape, lambda of: of.unsqueeze(-1), "one_hot")
        for label in (trace.samples, trace.tokens)
    )
    return Trace(samples, tokens, trace.epoch, is_one_hot=trace.is_ids)


def extends_embedding_sum(operation: Operation) -> bool:
    """Adding constants to a sum of embeddings, or scaling it by a number, is part of computing the input.

    A constant that is larger than the sum makes copies of it (streams of hyper connections), which begin the model.
    Putting features of images into it is part of computing the input too: image tokens are tokens.
    """
    sums: list[Tensor] = []
    others: list[Tensor] = []
    for tensor in operation.given:
        (sums if is_embedding_sum(tensor) else others).append(tensor)
    if operation.name in operations.MERGES:
        features = [t for t in others if t.is_floating_point()]
        return bool(features) and not any(t.requires_grad or t.numel() < sums[0].size(-1) for t in features)
    if operation.name in operations.ADDITIONS | {"dropout"}:
        is_copied = any(torch.broadcast_shapes(sums[0].shape, t.shape).numel() > sums[0].numel() for t in others)
        return not is_copied and not any(t.requires_grad for t in others)
    return operation.name in operations.MULTIPLICATIONS and all(t.numel() == 1 for t in others)


def token_part_of(operation: Operation) -> Tensor | None:
    """The part of a sum of embeddings that is input. Constants leave it, numbers scale it, image features join it."""
    sums = [t for t in operation.given if is_embedding_sum(t)]
    if not sums or not extends_embedding_sum(operation):
        return None
    words = trace_of(sums[0]).words
    if len(sums) > 1 and len(sums) == len(operation.given):
        return operation.map_arguments(
            lambda value: trace_of(value).words if isinstance(value, Tensor) else value
        ).run()
    if operation.name not in operations.MULTIPLICATIONS | operations.MERGES:
        return words
    return operation.map_arguments(lambda value: words if value is sums[0] else value).run()


def follow_product(operation: Operation, result: Tensor) -> Trace:
    """The labels of the rows of the first factor or, if it has none, of the columns of the second."""
    factors = operation.given[:3:2] if operation.name == operations.FUSED_ATTENTION else operation.given[-2:]
    if len(factors) == 2 and factors[1].dim() == 1 and not trace_of(factors[1]).depends:  # the last axis is summed away
        trace = trace_of(factors[0])
        of_rows = (contract_label(label, -1) for label in (trace.samples, trace.tokens))
        samples, tokens = (None if label is None else label.squeeze(-1) for label in of_rows)
        return Trace(samples, tokens, trace.epoch, trace.read)
    for factor, contracted in zip(factors, (-1, -2), strict=False):
        trace = trace_of(factor)
        samples, tokens, others = (
            provenance.broadcast_label(contract_label(label, contracted), result.shape)
            for label in (trace.samples, trace.tokens, trace.columns)
        )
        if samples is not None:
            is_first = contracted == -1 and len(factors) == 2
            columns = contract_label(trace_of(factors[1]).tokens, -2) if is_first and tokens is not None else None
            columns = provenance.broadcast_label(columns, result.shape)
            tokens, is_asked = (
                others if tokens is None else tokens,
                contracted == -2 and not trace_of(factors[0]).depends,
            )
            return Trace(samples, tokens, trace.epoch, trace.read, columns=columns, is_asked=is_asked)
    return EMPTY_TRACE


def follow_row_sum(operation: Operation, result: Tensor) -> Trace:
    """Every row of the result has the label of the rows that are added to it."""
    start, axis = operation.argument(0, "input", "self"), operation.argument(1, "dim")
    index, rows = operation.argument(2, "index"), operation.argument(3, "source", "src")
    before, trace = trace_of(start), trace_of(rows)
    if before.rows is None and before.samples is not None:
        return before
    if trace.samples is None or operation.name != "index_add":
        return EMPTY_TRACE
    if len(index.unique()) < index.numel() and trace.epoch:  # rows of several tokens add up: pooling
        return Trace(epoch=trace.epoch)
    filled: dict[str, Tensor] = {}
    for which in ("samples", "tokens"):
        label, known = getattr(trace, which), getattr(before.rows, which, None)
        if label is not None and label.dim() == result.dim():
            size, wide = list(label.shape), list(label.shape)
            size[axis], wide[axis] = result.size(axis), rows.size(axis)
            known = label.new_full(size, -1) if known is None else known
            filled[which] = known.index_copy(axis, index, label.expand(wide))
    return label_rows(Trace(filled.get("samples"), filled.get("tokens"), trace.epoch))


def label_rows(rows: Trace) -> Trace:
    """The trace of a sum of rows so far. A row that nothing was added to is zero: its example does not matter."""
    return replace(rows, samples=None if rows.samples is None else rows.samples.clamp_min(0), rows=rows)


def follow_complex(operation: Operation) -> Trace:
    """Complex numbers have the labels of the pairs that they are made of."""
    trace = trace_of(operation.given[0])
    labels = (trace.samples, trace.tokens)
    if operation.name == "view_as_real":
        samples, tokens = (None if label is None else label.unsqueeze(-1) for label in labels)
    else:
        samples, tokens = (None if label is None or label.size(-1) > 1 else label.select(-1, 0) for label in labels)
    return Trace(samples, tokens, trace.epoch, trace.read)


def follow_einsum(operation: Operation) -> Trace:
    """Each letter of the output keeps its label in the first labelled factor."""
    equation, *factors = operation.args
    equation = operations.expand_equation(equation, factors)
    if "." in equation:
        return EMPTY_TRACE
    inputs, output = equation.split("->")
    labelled = [(letters, trace_of(factor)) for letters, factor in zip(inputs.split(","), factors, strict=True)]
    for letters, trace in labelled:
        samples, tokens, others = (
            map_label_axes(label, letters, output) for label in (trace.samples, trace.tokens, trace.columns)
        )
        if samples is not None:
            behind = [map_label_axes(t.tokens, x, output) for x, t in labelled if t is not trace]
            columns = next((label for label in behind if label is not None), None) if tokens is not None else None
            is_attention = mixes_heads(labelled, output)
            columns = trace.columns if is_attention else columns
            tokens = others if tokens is None else tokens
            is_asked = trace.is_asked or (trace is not labelled[0][1] and not labelled[0][1].depends)
            return Trace(samples, tokens, trace.epoch, is_attention=is_attention, columns=columns, is_asked=is_asked)
    return EMPTY_TRACE


def mixes_heads(labelled: list[tuple[str, Trace]], output: str) -> bool:
    """Attention times constants that only mix its heads: what comes out multiplies values just the same."""
    attention = [letters for letters, trace in labelled if trace.is_attention]
    is_only = len(attention) == 1 and not any(t.depends for _, t in labelled if not t.is_attention)
    return is_only and len(output) >= 3 and attention[0][-2:] == output[-2:]


def map_label_axes(label: Tensor | None, letters: str, output: str) -> Tensor | None:
    """The label after an einsum; None if it changes along an axis that is summed over."""
    if label is None or label.dim() != len(letters):
        return None
    if any(label.size(i) > 1 and letter not in output for i, letter in enumerate(letters)):
        return None
    kept = [letter for letter in letters if letter in output]
    label = label.squeeze([i for i, letter in enumerate(letters) if letter not in output])
    label = label.permute([kept.index(letter) for letter in output if letter in kept])
    for i, letter in enumerate(output):
        if letter not in kept:
            label = label.unsqueeze(i)
    return label


def reduce_label(label: Tensor | None, tensor: Tensor, operation: Operation) -> Tensor | None:
    """The label after a reduction; None if it changes along a reduced axis."""
    if label is None:
        return None
    full = label.double().expand(tensor.shape)
    low, high = -_reduce_as(-full, operation), _reduce_as(full, operation)
    return provenance.squeeze_constant(low.int()) if torch.equal(low, high) else None


def orders_rows(operation: Operation) -> bool:
    """Whether a median, quantile or the like is over numbers of several examples."""
    tensor = operation.given[0]
    label, axis = trace_of(tensor).samples, operation.argument(operations.ORDER_STATISTICS[operation.name], "dim")
    if label is None or label.dim() != tensor.dim() or not trace_of(tensor).depends:
        return False
    return (label.size(axis) if isinstance(axis, int) else label.numel()) > 1


def adds_border(operation: Operation) -> bool:
    """Whether a convolution has kernels that lie with more than half of their width outside of the image."""
    weight, padding = operation.argument(1, "weight"), operation.argument(4, "padding", default=0)
    widths = (padding,) * 2 if isinstance(padding, int) else padding
    if isinstance(widths, str) or weight.dim() != 4:
        return False
    return any(2 * width > size for width, size in zip(widths, weight.shape[-2:], strict=False))


def count_places(operation: Operation, x: Tensor) -> tuple[int, int]:
    """Rows and columns of the places that F.unfold takes."""

    def read(index: int, name: str, default: int) -> tuple[int, int]:
        given = operation.argument(index, name, default=default)
        return (given, given) if isinstance(given, int) else tuple(given)

    kernel, dilation = read(1, "kernel_size", 1), read(2, "dilation", 1)
    padding, stride = read(3, "padding", 0), read(4, "stride", 1)
    sizes = zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True)
    rows, columns = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in sizes)
    return rows, columns


def list_reduced_axes(operation: Operation, tensor: Tensor) -> tuple[int, ...] | None:
    """The axes that a sum, mean or maximum is over; None if it is over all, or no such reduction."""
    if "pool" in operation.name or operation.name in ("norm", "vector_norm", "linalg_norm"):
        return None
    dim = operation.argument(1, "dim", "axis")
    axes = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, list | tuple) else None
    return None if axes is None else tuple(axis % tensor.dim() for axis in axes)


def _reduce_as(full: Tensor, operation: Operation) -> Tensor:
    """Take the maximum over the axes that the operation reduced."""
    name = operation.name
    if "pool" in name:
        extreme = {"adaptive_avg_pool1d": F.adaptive_max_pool1d, "adaptive_avg_pool2d": F.adaptive_max_pool2d}.get(name)
        if extreme is None:
            raise RuntimeError(name)
        return extreme(full, operation.argument(1, "output_size"))
    index = 2 if name in ("norm", "vector_norm", "linalg_norm") else 1
    dim = operation.argument(index, "dim", "axis")
    axes = tuple(range(full.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return full.amax(axes, keepdim=operation.argument(index + 1, "keepdim", default=False) is True)


def find_elementwise_root(operation: Operation, result: Tensor) -> tuple[Tensor | None, bool]:
    """The tensor that the result is an elementwise function of, and whether it is only a multiple of it.

    So an activation written out in primitives counts as one activation.
    """
    if operation.name not in operations.ELEMENTWISE or not (operands := operation.dependent):
        return None, False
    roots = {id(get_root(t)): get_root(t) for t in operands}
    if len(roots) != 1 or result.shape != operands[0].shape:
        return None, False
    is_scaling = operation.name in operations.MULTIPLICATIONS and len(operands) == 1
    return next(iter(roots.values())), is_scaling and is_straight(operands[0])


def get_root(tensor: Tensor) -> Tensor:
    root = trace_of(tensor).root
    return tensor if root is None else root


def is_straight(tensor: Tensor) -> bool:
    """The tensor is its own root, or a multiple of it."""
    return trace_of(tensor).root is None or trace_of(tensor).is_straight


def weighs_tokens(operation: Operation) -> bool:
    """A product with one number per token other than 0 and 1. Norms do not count: they bring all to one scale."""
    if operation.name not in operations.MULTIPLICATIONS:
        return False
    return any(is_per_token(factor) and bool(((factor != 0) & (factor != 1)).any()) for factor in operation.given)


def is_per_token(factor: Tensor) -> bool:
    """One number per token, and no statistic of a norm."""
    return factor.dim() > 1 and factor.size(-1) == 1 < factor.size(-2) and not trace_of(factor).is_statistic


def multiplies_by_constants(operation: Operation) -> bool:
    """Whether a state is multiplied by a tensor of several numbers that does not depend on the input."""
    if operation.name not in operations.MULTIPLICATIONS or len(operation.given) != 2:
        return False
    constants = [tensor for tensor in operation.given if not trace_of(tensor).depends]
    return len(constants) == 1 and constants[0].numel() > 1


def is_over_tokens(operation: Operation) -> bool:
    """A softmax over the tokens of each example, [batch token]: weights for pooling."""
    x, axis = operation.given[0], operation.argument(1, "dim", "axis")
    return isinstance(axis, int) and axis_of(trace_of(x).tokens) == axis % x.dim()


def list_masks(operation: Operation) -> Sequence[Tensor]:
    """The tensors whose zeros make an elementwise result zero: factors, or what `masked_fill` and `where` keep."""
    if operation.name in operations.MULTIPLICATIONS:
        return operation.given
    if operation.name == "masked_fill" and operation.argument(2, "value") == 0:
        return [~operation.argument(1, "mask")]
    other = operation.argument(2, "other") if operation.name == "where" else None
    return [operation.args[0]] if isinstance(other, int | float) and other == 0 else []


def add_lost_tokens(tokens: Tensor, traces: Sequence[Trace], epoch: int) -> Tensor:
    """The labels of a sum: where one operand was masked, the token is that of the other."""
    for label in (trace.tokens for trace in traces if trace.epoch < epoch):
        if label is not None and label.shape == tokens.shape and bool((tokens < 0).any()):
            tokens = torch.where(tokens < 0, label, tokens)
    return tokens


def drop_masked_tokens(tokens: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """Remove the labels of tokens that are multiplied by zero: this is how a masked mean leaves tokens out."""
    for factor in masks:
        is_mask = not factor.requires_grad and trace_of(factor).epoch == 0 and factor.dim() and factor.size(-1) == 1
        if is_mask and factor.numel() > 1 and bool((factor == 0).any()):
            return provenance.squeeze_constant(torch.where(factor == 0, -1, tokens))
    return tokens


def contract_label(label: Tensor | None, axis: int) -> Tensor | None:
    """The label after an axis is summed over; None if it changes along that axis."""
    return label if label is not None and label.dim() >= -axis and label.size(axis) == 1 else None


def _is_sequence(trace: Trace) -> bool:
    """The token label changes within an example."""
    if trace.tokens is None:
        return False
    of = trace.samples
    return any(n > 1 and (of is None or of.size(axis) == 1) for axis, n in enumerate(trace.tokens.shape))


def _is_same_label(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))


def _unsqueeze_trace(trace: Trace, part: Tensor, axis: int) -> Trace:
    add = lambda label: label.unsqueeze(axis) if label is not None and label.dim() == part.dim() else None  # noqa: E731
    return replace(trace, samples=add(trace.samples), tokens=add(trace.tokens), pixels=add(trace.pixels))


def find_covered_pixels(
    operation: Operation, pixels: Tensor, patches: Tensor, image: tuple[int, int]
) -> tuple[int, int] | None:
    """The height and width that adjacent patches cover, if that is not the whole image."""
    kernel, stride = operation.argument(1, "weight").shape[-2:], operation.argument(3, "stride", default=1)
    steps = tuple(stride) if isinstance(stride, (tuple, list)) else (stride, stride)
    size = (patches.size(-2) * kernel[0], patches.size(-1) * kernel[1])
    largest = [min(pair) for pair in zip(pixels.shape[-2:], image, strict=True)]
    is_cut = tuple(kernel) == steps and size[0] <= largest[0] and size[1] <= largest[1]
    return size if is_cut and size != image else None
