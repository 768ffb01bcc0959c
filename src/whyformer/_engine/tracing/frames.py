r"""Frames: which entries of a signal each token of the model is computed from.

A waveform, a spectrogram or a time series is cut into fewer tokens by convolutions, pooling or `unfold`. Output j of
such an operation, with kernel k, stride s, padding p and dilation d, is centred at the input position

$$ c(j) = s j - p + d (k - 1) / 2 $$

and reads d (k - 1) / 2 positions to either side of it. Composed over all operations, token j is centred at a j + b and
reads r positions to either side. Fields overlap; so that every entry belongs to one token, an entry belongs to the one
whose centre is nearest, and to none if it lies outside of that one's field.

A video [time channel height width] is cut into tubelets, by one convolution over time, height and width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import Trace, axis_of, trace_of

WINDOWED = frozenset("conv1d conv2d conv3d avg_pool1d max_pool1d unfold".split())
CUT_AXES = {"conv2d": 2, "conv3d": 3}  # 1 for others
SIGNAL_AXES = {1: (1, 2), 2: (2,), 3: (4,)}  # axes that are cut -> axes of the signals that are cut so


@dataclass(frozen=True)
class Axis:
    """One axis of a signal, as far as it has been cut: token j is centred at a j + b and reads r to either side."""

    size: int
    a: float = 1.0
    b: float = 0.0
    r: float = 0.0

    def cut(self, size: int, kernel: int, stride: int, padding: int, dilation: int) -> "Axis":
        half = dilation * (kernel - 1) / 2
        return Axis(size, self.a * stride, self.b + self.a * (half - padding), self.r + self.a * half)

    def find_owners(self, entries: int) -> Tensor:
        """[entry]: the token that each entry of the axis belongs to, or -1."""
        at = torch.arange(entries, dtype=torch.float64)
        # Two centres may be equally near. The entry goes to the earlier one.
        nearest = torch.ceil((at - self.b) / self.a - 0.5).clamp(0, self.size - 1)
        return torch.where((at - self.a * nearest - self.b).abs() <= self.r + 1e-6, nearest, -1).long()


@dataclass(frozen=True)
class Cut:
    """One windowed operation: the sizes of its axes before and after it, and the settings along each."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    windows: tuple[tuple[int, int, int, int], ...]  # kernel, stride, padding, dilation
    token_axis: int | None  # the axis along which the token changes, where it is known

    @property
    def shortens(self) -> bool:
        return any(stride > 1 for _, stride, _, _ in self.windows)


class Frames:
    """The windowed operations that a signal [batch time] or [batch time channel] passes before the first attention."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)  # of one example
        self.cuts: list[Cut] = []

    def note(self, operation: Operation, result: Argument, trace: Trace) -> Trace:
        """Remember a windowed operation. If it shortens the signal, its results are the tokens from here on."""
        if operation.name not in WINDOWED or not isinstance(result, Tensor) or not trace.depends:
            return trace
        cut = read_cut(operation, result)
        if cut is None or len(self.shape) not in SIGNAL_AXES[len(cut.before)]:
            return trace
        self.cuts.append(cut)
        if not cut.shortens:
            return trace
        x, axes = operation.given[0], list(range(-len(cut.before), 0))
        samples = trace_of(x).samples
        if operation.name == "unfold":  # adds an axis at the end
            axes = [operation.argument(1, "dimension") % x.dim()]
            samples = samples.unsqueeze(-1) if samples is not None and samples.dim() == result.dim() - 1 else None
        shape = [1] * result.dim()
        for axis in axes:
            shape[axis] = result.size(axis)
        frames = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=result.device).view(shape)
        return replace(trace, samples=samples, tokens=frames)

    def find_owners(self, tokens: int) -> Tensor | None:
        """[*shape]: the token that each entry of an example belongs to, or -1; None if that is not known."""
        shortening = [index for index, cut in enumerate(self.cuts) if cut.shortens]
        cuts = self.cuts[: shortening[-1] + 1] if shortening else []
        if any(len(cut.before) == 2 for cut in cuts):
            return self.find_owners_of_patches(cuts, tokens)
        if len(self.shape) == 4:
            return self.find_owners_of_tubelets(cuts, tokens)
        axes = {self.shape[0]: Axis(self.shape[0])}  # by size: branches start from the same axis
        for cut in cuts:
            if cut.before[0] in axes and cut.before != cut.after:
                axes[cut.after[0]] = axes[cut.before[0]].cut(cut.after[0], *cut.windows[0])
        if not cuts or tokens not in axes:
            return None
        owners = axes[tokens].find_owners(self.shape[0])
        return owners.view(-1, *[1] * (len(self.shape) - 1)).expand(self.shape)

    def find_owners_of_patches(self, cuts: list[Cut], tokens: int) -> Tensor | None:
        """As `find_owners`, for patches of a spectrogram [time channel], which the model may have turned."""
        cut = cuts[0]
        turned = self.shape[::-1]
        is_turned = cut.before == turned if cut.token_axis is None else cut.token_axis == 1
        if len(cuts) > 1 or cut.before != (turned if is_turned else self.shape):
            return None
        rows, columns = (
            Axis(before).cut(after, *window).find_owners(before)
            for before, after, window in zip(cut.before, cut.after, cut.windows, strict=True)
        )
        count = cut.after[0] * cut.after[1]
        owners = rows[:, None] * cut.after[1] + columns[None, :]
        owners = torch.where((rows[:, None] < 0) | (columns[None, :] < 0), -1, owners)
        return (owners.mT if is_turned else owners) if count == tokens else None

    def find_owners_of_tubelets(self, cuts: list[Cut], tokens: int) -> Tensor | None:
        """As `find_owners`, for a video [time channel height width]; its tubelets go by time, row and column."""
        time, _, height, width = self.shape
        if len(cuts) != 1 or cuts[0].before != (time, height, width) or math.prod(cuts[0].after) != tokens:
            return None
        (cut,) = cuts
        times, rows, columns = (
            Axis(before).cut(after, *window).find_owners(before)
            for before, after, window in zip(cut.before, cut.after, cut.windows, strict=True)
        )
        at = (times[:, None, None, None], rows[:, None], columns)
        owners = (at[0] * cut.after[1] + at[1]) * cut.after[2] + at[2]
        is_outside = (at[0] < 0) | (at[1] < 0) | (at[2] < 0)
        return torch.where(is_outside, -1, owners).expand(self.shape)


def read_cut(operation: Operation, result: Tensor) -> Cut | None:
    """The sizes and settings of a windowed operation; None for a form of it that is not supported."""
    x = operation.given[0]
    if operation.name == "unfold":
        axis, kernel, stride = (operation.argument(i, name) for i, name in ((1, "dimension"), (2, "size"), (3, "step")))
        if not all(isinstance(value, int) for value in (axis, kernel, stride)):  # F.unfold, which takes images
            return None
        axis %= x.dim()
        return Cut((x.size(axis),), (result.size(axis),), ((kernel, stride, 0, 1),), 0)
    is_convolution = operation.name.startswith("conv")
    axes = CUT_AXES.get(operation.name, 1)
    if x.dim() <= axes or result.dim() != x.dim():
        return None
    if is_convolution:
        kernels = tuple(operation.linear_arguments()[1].shape[2:])
        stride, padding, dilation = (
            operation.argument(index, name, default=default)
            for index, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
        )
    else:
        kernels = as_tuple(operation.argument(1, "kernel_size"), axes)
        stride = operation.argument(2, "stride") or kernels
        padding, dilation = operation.argument(3, "padding", default=0), 1
    if isinstance(padding, str):
        padding = [
            d * (k - 1) // 2 if padding == "same" else 0 for k, d in zip(kernels, as_tuple(dilation, axes), strict=True)
        ]
    windows = zip(kernels, *(as_tuple(value, axes) for value in (stride, padding, dilation)), strict=True)
    token_axis = axis_of(trace_of(x).tokens)
    return Cut(
        tuple(x.shape[-axes:]),
        tuple(result.shape[-axes:]),
        tuple(windows),
        None if token_axis is None else token_axis - (x.dim() - axes),
    )


def as_tuple(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    values = (value,) * axes if isinstance(value, int) else tuple(value)
    return values if len(values) == axes else values * axes
