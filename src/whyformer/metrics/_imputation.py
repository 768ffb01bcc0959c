r"""Impute removed pixels from their neighbours: each is the weighted mean of the eight around it.

$$ x_p = \sum_{q \in N(p)} w_q x_q \Big/ \sum_{q \in N(p)} w_q, \qquad
   w = \tfrac{1}{12} \begin{pmatrix} 1 & 2 & 1 \\ 2 & 0 & 2 \\ 1 & 2 & 1 \end{pmatrix} $$

Neighbours outside the image do not count. For the removed pixels this is a linear system A x = b with a symmetric
positive definite A, a discrete Laplace equation whose boundary values are the pixels that are kept.

`impute_exactly` solves it by sparse elimination, `impute_by_multigrid` iteratively, which is faster
where much is removed.

The iterative solver is conjugate gradients, preconditioned by one multigrid cycle:

$$ A x = b, \qquad (A x)_p = \sum_{q \in N(p)} w_q (x_p - x_q), \qquad w = \begin{pmatrix} 1 & 2 & 1 \\ 2 & 0 & 2 \\
   1 & 2 & 1 \end{pmatrix} $$

over the removed pixels, with the kept ones in b: the equations above, times 12, until no equation is off
by more than TOLERANCE standard deviations of the image. Briggs, Henson and McCormick, A Multigrid Tutorial, 2000; the
smoother is Jacobi's method.

Two details halve the number of cycles: interpolation between grids repeats the pixels at the border of the image, where
nothing is held fixed, and on a grid of cells of side h the kept pixel next to a removed cell is (h + 1)/2 away, not h,
so its weight is 2h/(h + 1) times as large.

Every colour of every variant is a channel of one tensor [1 channel height width] with channels last, so that the
weighted sum of the neighbours is a depthwise convolution: one pass over memory that is vectorised over channels.
"""

from functools import cache, lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DIRECT_LIMIT = 4096  # removed pixels up to which elimination is the faster way


def impute_images(image: Tensor, kept: Tensor, *, exactly: bool) -> Tensor:
    """[step channel height width]: the image [channel height width] with what each row of `kept` leaves out imputed.

    kept: [step height width], bool. If nothing is kept, every pixel is the mean of the image.
    """
    filled = image.expand(len(kept), *image.shape).clone()
    missing = (~kept).flatten(1).sum(1)
    alone = missing == kept[0].numel()
    filled[alone] = image.mean((-2, -1), keepdim=True)
    large = (missing > DIRECT_LIMIT) & ~alone & (not exactly and min(kept.shape[1:]) > 1)
    if large.any():
        filled[large] = impute_by_multigrid(image, kept[large]).to(filled)
    for row in torch.nonzero((missing > 0) & ~alone & ~large).flatten().tolist():
        filled[row] = impute_exactly(image, kept[row])
    return filled


NEIGHBOUR_WEIGHTS = {(0, 1): 1 / 6, (0, -1): 1 / 6, (1, 0): 1 / 6, (-1, 0): 1 / 6,
                     (1, 1): 1 / 12, (1, -1): 1 / 12, (-1, 1): 1 / 12, (-1, -1): 1 / 12}  # fmt: skip


def impute_exactly(image: Tensor, kept: Tensor) -> Tensor:
    """The image [channel height width] with the removed pixels solved for; some pixel is kept and some is removed."""
    from scipy.sparse import csc_matrix
    from scipy.sparse.linalg import splu

    pixels, there = image.double().cpu().permute(1, 2, 0).numpy(), kept.cpu().numpy()
    height, width = there.shape
    ys, xs = np.nonzero(~there)
    number = np.full(there.shape, -1)
    number[ys, xs] = np.arange(len(ys))
    given, total = np.zeros((len(ys), pixels.shape[2])), np.zeros(len(ys))
    entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for (dy, dx), weight in NEIGHBOUR_WEIGHTS.items():
        y, x = ys + dy, xs + dx
        inside = np.nonzero((y >= 0) & (y < height) & (x >= 0) & (x < width))[0]
        total[inside] += weight
        is_kept = there[y[inside], x[inside]]
        known, unknown = inside[is_kept], inside[~is_kept]
        given[known] += weight * pixels[y[known], x[known]]
        entries.append((unknown, number[y[unknown], x[unknown]], np.full(len(unknown), -weight)))
    entries.append((np.arange(len(ys)), np.arange(len(ys)), total))
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    matrix = csc_matrix((value, (row, column)), shape=(len(ys), len(ys)))
    factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options={"SymmetricMode": True})
    filled = pixels.copy()
    filled[ys, xs] = factors.solve(given)
    return torch.from_numpy(filled).permute(2, 0, 1).to(image)


# --- multigrid --------------------------------------------------------------------------------------------------------


TOLERANCE = 6e-5  # of the standard deviation of the image, for each equation
MAX_CYCLES = 60
COARSEST = 7  # pixels along the shorter side of the coarsest level, at most
CHANNELS = 16  # solved together: a multiple of the width of a vector register, and few enough to stay in the cache


def impute_by_multigrid(image: Tensor, kept: Tensor) -> Tensor:
    """[step channel height width] in float32: the image with what each row of `kept` [step height width] leaves out
    imputed. Every row keeps and removes at least one pixel.
    """
    pixels = image.float()
    filled = pixels.repeat(len(kept), 1, 1, 1)
    order = kept.flatten(1).sum(1).argsort(descending=True)  # few removed pixels need fewer cycles
    for rows in order.split(max(1, CHANNELS // len(image))):
        filled[rows] = impute_together(pixels, kept[rows])
    return filled


def impute_together(image: Tensor, kept: Tensor) -> Tensor:
    height, width = image.shape[1:]
    removed = (~kept)[:, None].expand(-1, len(image), -1, -1)
    scale = image.std().clamp_min(torch.finfo(torch.float32).tiny)
    levels = build_levels(as_channels(removed), height, width)
    x, b = start_from_coarse(levels, as_channels((image / scale).expand(removed.shape)))
    solved = solve(levels, x, b)[0, : removed[:, :, 0, 0].numel(), :height, :width]
    return torch.where(removed, solved.view(removed.shape) * scale, image)


def as_channels(values: Tensor) -> Tensor:
    """[1 channel height width] in float32, channels last, from [row colour height width].

    Zeros are added to the number of channels, which vector registers must divide, and on the right and below, so that
    the sides can be halved until they are small.
    """
    rows, colours, height, width = values.shape
    factor = 1
    while min(height, width) > COARSEST * factor:
        factor *= 2
    channels, tall, wide = (
        -(-size // to) * to
        for size, to in zip((rows * colours, height, width), (CHANNELS, factor, factor), strict=True)
    )
    whole = torch.zeros((1, channels, tall, wide), dtype=torch.float32).to(memory_format=torch.channels_last)
    whole[0, : rows * colours, :height, :width] = values.flatten(0, 1)
    return whole


class Level:
    """The system on one grid: [1 channel height width]."""

    def __init__(self, removed: Tensor, diagonal: Tensor) -> None:
        self.removed = removed  # 1 where a pixel is to be solved for
        self.diagonal = diagonal  # the sum of the weights of the neighbours inside the image
        self.step = removed / diagonal  # of Jacobi's method

    def multiply_negated(self, x: Tensor) -> Tensor:
        """- A x, for an x that is zero where nothing is removed."""
        return sum_neighbours(x).addcmul_(self.diagonal, x, value=-1).mul_(self.removed)

    def smooth(self, x: Tensor, b: Tensor) -> Tensor:
        """One step of Jacobi's method from x."""
        return sum_neighbours(x).add_(b).mul_(self.step)


def solve(levels: list[Level], x: Tensor, b: Tensor) -> Tensor:
    """Conjugate gradients from x, each channel by itself; the preconditioner is one multigrid cycle."""
    residual = levels[0].multiply_negated(x).add_(b)
    direction, before = torch.zeros_like(x), torch.ones((), dtype=torch.float32)
    for _ in range(MAX_CYCLES):
        if max(float(end.abs()) for end in residual.aminmax()) <= 12 * TOLERANCE:
            break
        step = correct(levels, residual)
        now = multiply_channels(residual, step)
        direction = direction.mul_(now / before).add_(step)
        before = now.clamp_min(1e-30)
        product = levels[0].multiply_negated(direction)
        length = now / -multiply_channels(direction, product).clamp_max_(-1e-30)
        x, residual = x.addcmul_(length, direction), residual.addcmul_(length, product)
    return x


def correct(levels: list[Level], b: Tensor, x: Tensor | None = None) -> Tensor:
    """A V-cycle for A x = b: smooth, correct by a solution on the next coarser grid, smooth."""
    level, coarser = levels[0], levels[1:]
    if x is None:
        x = level.step * b
        rest = sum_neighbours(x).mul_(level.removed)  # b - A x, since the diagonal times x is b
    else:
        x = level.smooth(x, b)
        rest = level.multiply_negated(x).add_(b)
    if not coarser:
        for _ in range(4):
            x = level.smooth(x, b)
        return x
    better = correct(coarser, restrict(rest).mul_(coarser[0].removed))
    return level.smooth(x.addcmul_(level.removed, prolong(better)), b)


def build_levels(removed: Tensor, height: int, width: int) -> list[Level]:
    """From the finest to the coarsest grid. A coarse pixel is solved for if all four fine pixels in it are."""
    weights = sum_weights_inside(height, width, *removed.shape[-2:])
    levels = [Level(removed, weights[0])]
    for number, all_weights in enumerate(weights[1:], 1):
        removed = (F.avg_pool2d(removed, 2) == 1).float()
        to_kept = 2 * 2**number / (2**number + 1)
        levels.append(Level(removed, torch.lerp(sum_neighbours(removed), all_weights, to_kept).clamp_min_(1)))
    return levels


@lru_cache(maxsize=8)
def sum_weights_inside(height: int, width: int, tall: int, wide: int) -> list[Tensor]:
    """For every grid, [1 1 tall wide]: the sum of the weights of the neighbours of each pixel inside the image."""
    inside = torch.zeros((1, 1, tall, wide), dtype=torch.float32)
    inside[..., :height, :width] = 1
    weights = []
    while True:
        weights.append(sum_neighbours(inside).clamp_min_(1))
        if min(inside.shape[-2:]) <= COARSEST or inside.shape[-1] % 2 or inside.shape[-2] % 2:
            return weights
        inside = (F.avg_pool2d(inside, 2) > 0).float()


def start_from_coarse(levels: list[Level], pixels: Tensor) -> tuple[Tensor, Tensor]:
    """A first guess, solved from the coarsest grid to the finest, and the right-hand side of the finest."""
    known = 1 - levels[0].removed
    images = [pixels.mul_(known)]  # of the known pixels alone
    for _ in levels[1:]:
        share = F.avg_pool2d(known, 2)
        known = (share > 0).float()
        images.append(F.avg_pool2d(images[-1], 2).div_(share.clamp_min_(0.25)))
    guess = (images[-1].sum((-2, -1)) / known.sum((-2, -1)).clamp_min(1))[..., None, None]
    for number in range(len(levels) - 1, -1, -1):
        level, image = levels[number], images[number]
        b = sum_neighbours(image).mul_(level.removed)
        x = level.removed * guess
        if number > 0:
            guess = prolong(torch.where(level.removed.bool(), correct(levels[number:], b, x), image))
    return x, b


@cache
def make_kernel(channels: int) -> Tensor:
    weights = torch.tensor([[1.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 1.0]], dtype=torch.float32)
    return weights.repeat(channels, 1, 1, 1)


def sum_neighbours(x: Tensor) -> Tensor:
    """12 times the weighted sum of the eight neighbours; pixels outside count as zero."""
    return F.conv2d(x, make_kernel(x.size(1)), padding=1, groups=x.size(1))


def restrict(x: Tensor) -> Tensor:
    """To the next coarser grid: the transpose of `prolong`."""
    batch, channels, height, width = x.shape
    coarse = (batch, channels, height // 2, width // 2)
    return torch.ops.aten.upsample_bilinear2d_backward(x, (height, width), coarse, False)


def prolong(x: Tensor) -> Tensor:
    """To the next finer grid, bilinear; pixels outside are as those at the border."""
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def multiply_channels(one: Tensor, other: Tensor) -> Tensor:
    """[1 channel 1 1]: the inner product of each channel."""
    return (one * other).sum((-2, -1), keepdim=True)
