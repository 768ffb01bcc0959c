r"""Impute removed pixels from their neighbours: each is the weighted mean of the eight around it.

$$ x_p = \sum_{q \in N(p)} w_q x_q \Big/ \sum_{q \in N(p)} w_q, \qquad
   w = \tfrac{1}{12} \begin{pmatrix} 1 & 2 & 1 \\ 2 & 0 & 2 \\ 1 & 2 & 1 \end{pmatrix} $$

Neighbours outside the image do not count. For the removed pixels this is a linear system A x = b with a symmetric
positive definite A, a discrete Laplace equation whose boundary values are the pixels that are kept.

`impute_exactly` solves it by sparse elimination, `impute_by_multigrid` by conjugate gradients, preconditioned by one
multigrid cycle (Briggs, Henson and McCormick, A Multigrid Tutorial, 2000), until no equation is off by more than
TOLERANCE standard deviations of the image.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DIRECT_LIMIT = 4096  # removed pixels up to which elimination is the faster way
TOLERANCE = 1e-5  # of the standard deviation of the image, for each equation
MAX_ITERATIONS = 60
CACHED = 300_000  # values of one tensor that multigrid works on: a few of them should fit into a processor's cache
COARSEST = 4  # pixels along the shorter side of the coarsest level
DAMPING = 0.9  # of the Jacobi smoother


def impute_images(image: Tensor, kept: Tensor, *, exactly: bool) -> Tensor:
    """[step channel height width]: the image [channel height width] with what each row of `kept` leaves out imputed.

    kept: [step height width], bool. If nothing is kept, every pixel is the mean of the image.
    """
    filled = image.expand(len(kept), *image.shape).clone()
    missing = (~kept).flatten(1).sum(1)
    alone = missing == kept[0].numel()
    filled[alone] = image.mean((-2, -1), keepdim=True)
    large = (missing > DIRECT_LIMIT) & ~alone & (not exactly)
    many = torch.nonzero(large).flatten()
    together = max(1, CACHED // image.numel())
    for rows in (many[start : start + together] for start in range(0, len(many), together)):
        filled[rows] = impute_by_multigrid(image, kept[rows]).to(filled)
    for row in torch.nonzero((missing > 0) & ~alone & ~large).flatten().tolist():
        filled[row] = impute_exactly(image, kept[row])
    return filled


# --- elimination ------------------------------------------------------------------------------------------------------

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


@dataclass(frozen=True)
class Level:
    """The system on one grid, times 12; rows are [row 1 height width]."""

    removed: Tensor  # 1 where a pixel is to be solved for
    diagonal: Tensor  # the sum of the weights of the neighbours inside the image
    step: Tensor  # of the damped Jacobi smoother: zero where nothing is solved for

    def subtract_product(self, x: Tensor, b: Tensor) -> Tensor:
        """b - A x."""
        return sum_neighbours(x).addcmul_(self.diagonal, x, value=-1).mul_(self.removed).add_(b)

    def smooth(self, x: Tensor, b: Tensor) -> Tensor:
        """One step of Jacobi's method, in place."""
        return x.addcmul_(self.step, sum_neighbours(x).addcmul_(self.diagonal, x, value=-1).add_(b))


def impute_by_multigrid(image: Tensor, kept: Tensor) -> Tensor:
    """As `impute_images`, in float32, for rows of `kept` that keep and remove at least one pixel each."""
    (channels, height, width), steps = image.shape, len(kept)
    pixels = image.float().expand(steps, -1, -1, -1).reshape(-1, 1, height, width)
    removed = (~kept).float().repeat_interleave(channels, 0)[:, None]
    scale = pixels.std().clamp_min(torch.finfo(torch.float32).tiny)
    levels = build_levels(pad_to_halve(removed), pad_to_halve(torch.ones_like(removed[:1])))
    x, b = start_from_coarse(levels, pad_to_halve(pixels / scale))
    solved = solve(levels, x, b)[..., :height, :width] * scale
    return torch.where(removed.bool(), solved, pixels).reshape(steps, channels, height, width)


def solve(levels: list[Level], x: Tensor, b: Tensor) -> Tensor:
    """Conjugate gradients from x, each row by itself; the preconditioner is one multigrid cycle."""
    finest, nothing = levels[0], torch.zeros_like(x)
    residual = finest.subtract_product(x, b)
    direction = correct(levels, residual)
    before = multiply_rows(residual, direction)
    for _ in range(MAX_ITERATIONS):
        if float(residual.abs().amax()) <= 12 * TOLERANCE:
            break
        product = finest.subtract_product(direction, nothing).neg_()
        length = before / multiply_rows(direction, product).clamp_min(1e-30)
        x, residual = x.addcmul_(length, direction), residual.addcmul_(-length, product)
        step = correct(levels, residual)
        now = multiply_rows(residual, step)
        direction = direction.mul_(now / before.clamp_min(1e-30)).add_(step)
        before = now
    return x


def correct(levels: list[Level], b: Tensor, x: Tensor | None = None) -> Tensor:
    """A V-cycle for A x = b: smooth, correct by a solution on the next coarser grid, smooth."""
    level, coarser = levels[0], levels[1:]
    x = level.step * b if x is None else level.smooth(x, b)
    if not coarser:
        for _ in range(4):
            x = level.smooth(x, b)
        return x
    rest = halve(level.subtract_product(x, b)).mul_(coarser[0].removed)
    x = x.addcmul_(level.removed, double(correct(coarser, rest)))
    return level.smooth(x, b)


def build_levels(removed: Tensor, inside: Tensor) -> list[Level]:
    """From the finest to the coarsest grid. A coarse pixel is solved for if all four fine pixels in it are."""
    levels: list[Level] = []
    while True:
        diagonal = sum_neighbours(inside).clamp_min(1)
        levels.append(Level(removed, diagonal, DAMPING * removed / diagonal))
        if min(removed.shape[-2:]) <= COARSEST or removed.shape[-1] % 2 or removed.shape[-2] % 2:
            return levels
        removed = (F.avg_pool2d(removed, 2) == 1).float()
        inside = (F.avg_pool2d(inside, 2) > 0).float()


def start_from_coarse(levels: list[Level], pixels: Tensor) -> tuple[Tensor, Tensor]:
    """A first guess, solved from the coarsest grid to the finest, and the right-hand side of the finest."""
    known, images = [1 - levels[0].removed], [pixels]
    for _ in levels[1:]:
        share = F.avg_pool2d(known[-1], 2)
        images.append(F.avg_pool2d(images[-1] * known[-1], 2) / share.clamp_min(0.25))
        known.append((share > 0).float())
    guess = images[-1].mean((-2, -1), keepdim=True)
    for number in range(len(levels) - 1, -1, -1):
        level, image = levels[number], images[number]
        b = level.removed * sum_neighbours(image * known[number])
        x = level.removed * guess
        if number > 0:
            guess = double(torch.where(level.removed.bool(), correct(levels[number:], b, x), image))
    return x, b


def sum_neighbours(x: Tensor) -> Tensor:
    """12 times the weighted sum of the eight neighbours; pixels outside count as zero."""
    padded = F.pad(x, (1, 1, 1, 1))
    vertical = padded[..., :-2, :] + padded[..., 2:, :]
    column = vertical.add(padded[..., 1:-1, :], alpha=2)
    return (column[..., :-2] + column[..., 2:]).add_(vertical[..., 1:-1], alpha=2)


def halve(x: Tensor) -> Tensor:
    """To the next coarser grid: the transpose of `double`."""
    padded = F.pad(x, (0, 0, 1, 1))
    even, odd = padded[..., ::2, :], padded[..., 1::2, :]
    rows = F.pad((odd[..., :-1, :] + even[..., 1:, :]).mul_(3).add_(even[..., :-1, :]).add_(odd[..., 1:, :]), (1, 1))
    even, odd = rows[..., ::2], rows[..., 1::2]
    return (odd[..., :-1] + even[..., 1:]).mul_(3).add_(even[..., :-1]).add_(odd[..., 1:]).div_(16)


def double(x: Tensor) -> Tensor:
    """To the next finer grid, bilinear; pixels outside count as zero."""
    *rows, height, width = x.shape
    padded, tripled = F.pad(x, (1, 1, 1, 1)), F.pad(x * 3, (1, 1))
    tall = x.new_empty(*rows, 2 * height, width + 2)
    torch.add(tripled, padded[..., :-2, :], out=tall[..., ::2, :])
    torch.add(tripled, padded[..., 2:, :], out=tall[..., 1::2, :])
    whole, inner = x.new_empty(*rows, 2 * height, 2 * width), tall[..., 1:-1] * 3
    torch.add(inner, tall[..., :-2], out=whole[..., ::2])
    torch.add(inner, tall[..., 2:], out=whole[..., 1::2])
    return whole.div_(16)


def multiply_rows(one: Tensor, other: Tensor) -> Tensor:
    return torch.linalg.vecdot(one.flatten(1), other.flatten(1))[:, None, None, None]


def pad_to_halve(x: Tensor) -> Tensor:
    """Zeros on the right and below, so that the sides can be halved until they are small."""
    height, width = x.shape[-2:]
    factor = 1
    while min(height, width) > COARSEST * factor:
        factor *= 2
    return F.pad(x, (0, -width % factor, 0, -height % factor))
