r"""Impute removed pixels from their neighbours: each is the weighted mean of the eight around it.

$$ x_p = \sum_{q \in N(p)} w_q x_q \Big/ \sum_{q \in N(p)} w_q, \qquad
   w = \tfrac{1}{12} \begin{pmatrix} 1 & 2 & 1 \\ 2 & 0 & 2 \\ 1 & 2 & 1 \end{pmatrix} $$

Neighbours outside the image do not count. For the removed pixels this is a linear system A x = b with a symmetric
positive definite A, a discrete Laplace equation whose boundary values are the pixels that are kept.

`impute_exactly` solves it by sparse elimination, `impute_by_multigrid` by conjugate gradients, preconditioned by one
multigrid cycle (Briggs, Henson and McCormick, A Multigrid Tutorial, 2000), until no equation is off by more than
TOLERANCE standard deviations of the image. Two details halve the number of cycles: interpolation between grids repeats
the pixels at the border of the image, where nothing is held fixed, and on a grid of cells of side h the kept pixel next
to a removed cell is (h + 1)/2 away, not h, so its weight is 2h/(h + 1) times as large.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DIRECT_LIMIT = 4096  # removed pixels up to which elimination is the faster way
TOLERANCE = 3e-5  # of the standard deviation of the image, for each equation
MAX_CYCLES = 60
AT_ONCE = 800_000  # values of one tensor that multigrid works on: five colour images of 224 x 224 pixels
COARSEST = 7  # pixels along the shorter side of the coarsest level, at most


def impute_images(image: Tensor, kept: Tensor, *, exactly: bool) -> Tensor:
    """[step channel height width]: the image [channel height width] with what each row of `kept` leaves out imputed.

    kept: [step height width], bool. If nothing is kept, every pixel is the mean of the image.
    """
    filled = image.expand(len(kept), *image.shape).clone()
    missing = (~kept).flatten(1).sum(1)
    alone = missing == kept[0].numel()
    filled[alone] = image.mean((-2, -1), keepdim=True)
    large = (missing > DIRECT_LIMIT) & ~alone & (not exactly and min(kept.shape[1:]) > 1)
    many = torch.nonzero(large).flatten()
    together = max(1, AT_ONCE // image.numel())
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


class Level:
    """The system on one grid, times 12: `removed`, `diagonal` and `step` are [row 1 height width], values x and b
    [row channel height width]. Buffers are reused: allocating memory takes longer than adding two images.
    """

    def __init__(self, removed: Tensor, diagonal: Tensor, channels: int) -> None:
        self.removed = removed  # 1 where a pixel is to be solved for
        self.diagonal = diagonal  # the sum of the weights of the neighbours inside the image
        self.step = removed / diagonal  # of Jacobi's method
        rows, _, height, width = removed.shape
        self.x, self.other, self.vertical, self.column, self.b = removed.new_empty(5, rows, channels, height, width)
        self.wide = removed.new_empty(rows, channels, height // 2, width)  # half-way to the next coarser grid

    def sum_neighbours(self, x: Tensor) -> Tensor:
        """12 times the weighted sum of the eight neighbours, in `other`; pixels outside count as zero."""
        vertical, column, around = self.vertical, self.column, self.other
        torch.add(x[..., :-2, :], x[..., 2:, :], out=vertical[..., 1:-1, :])
        vertical[..., 0, :], vertical[..., -1, :] = x[..., 1, :], x[..., -2, :]
        torch.add(vertical, x, alpha=2, out=column)
        torch.add(column[..., :-2], column[..., 2:], out=around[..., 1:-1])
        around[..., 0], around[..., -1] = column[..., 1], column[..., -2]
        return around.add_(vertical, alpha=2)

    def subtract_product(self, x: Tensor, b: Tensor) -> Tensor:
        """b - A x."""
        return self.sum_neighbours(x).addcmul_(self.diagonal, x, value=-1).mul_(self.removed).add_(b)

    def smooth(self, b: Tensor) -> Tensor:
        """One step of Jacobi's method from `x`, which becomes the result."""
        made = self.sum_neighbours(self.x).add_(b).mul_(self.step)
        self.x, self.other = made, self.x
        return made


def impute_by_multigrid(image: Tensor, kept: Tensor) -> Tensor:
    """As `impute_images`, in float32, for rows of `kept` that keep and remove at least one pixel each."""
    height, width = image.shape[1:]
    pixels, removed = image.float().expand(len(kept), -1, -1, -1), (~kept).float()[:, None]
    scale = image.float().std().clamp_min(torch.finfo(torch.float32).tiny)
    levels = build_levels(pad_to_halve(removed), pad_to_halve(torch.ones_like(removed[:1])), len(image))
    x, b = start_from_coarse(levels, pad_to_halve(pixels / scale))
    solved = solve(levels, x, b)[..., :height, :width] * scale
    return torch.where(removed.bool(), solved, pixels)


def solve(levels: list[Level], x: Tensor, b: Tensor) -> Tensor:
    """Conjugate gradients from x, each channel of each row by itself; the preconditioner is one multigrid cycle."""
    finest, nothing = levels[0], torch.zeros(())
    residual = finest.subtract_product(x, b).clone()
    direction, before = torch.zeros_like(x), torch.ones(())
    for _ in range(MAX_CYCLES):
        if max(float(end.abs()) for end in residual.aminmax()) <= 12 * TOLERANCE:
            break
        step = correct(levels, residual)
        now = multiply_rows(residual, step)
        direction = direction.mul_(now / before).add_(step)
        before = now.clamp_min(1e-30)
        product = finest.subtract_product(direction, nothing).neg_()
        length = now / multiply_rows(direction, product).clamp_min_(1e-30)
        x, residual = x.addcmul_(length, direction), residual.addcmul_(-length, product)
    return x


def correct(levels: list[Level], b: Tensor, x: Tensor | None = None) -> Tensor:
    """A V-cycle for A x = b: smooth, correct by a solution on the next coarser grid, smooth.

    The next cycle overwrites the result.
    """
    level, coarser = levels[0], levels[1:]
    if x is None:
        torch.mul(level.step, b, out=level.x)
        rest = level.sum_neighbours(level.x).mul_(level.removed)  # b - A x, since the diagonal times x is b
    else:
        level.x.copy_(x)
        rest = level.subtract_product(level.smooth(b), b)
    if not coarser:
        for _ in range(4):
            level.smooth(b)
        return level.x
    rest = halve(rest, level.wide, coarser[0].b).mul_(coarser[0].removed)
    better = correct(coarser, rest)
    level.x.addcmul_(level.removed, double(better, level.wide, level.other))
    return level.smooth(b)


def build_levels(removed: Tensor, inside: Tensor, channels: int) -> list[Level]:
    """From the finest to the coarsest grid. A coarse pixel is solved for if all four fine pixels in it are."""
    levels: list[Level] = []
    side = 1
    while True:
        all_weights, between_removed = sum_neighbours(inside), sum_neighbours(removed)
        to_kept = 2 * side / (side + 1)
        diagonal = (between_removed + to_kept * (all_weights - between_removed)).clamp_min_(1)
        levels.append(Level(removed, diagonal, channels))
        if min(removed.shape[-2:]) <= COARSEST or removed.shape[-1] % 2 or removed.shape[-2] % 2:
            return levels
        removed = (sum_fours(removed) == 4).float()
        inside = (sum_fours(inside) > 0).float()
        side *= 2


def start_from_coarse(levels: list[Level], pixels: Tensor) -> tuple[Tensor, Tensor]:
    """A first guess, solved from the coarsest grid to the finest, and the right-hand side of the finest."""
    known, images = [1 - levels[0].removed], [pixels]
    for _ in levels[1:]:
        count = sum_fours(known[-1])
        images.append(sum_fours(images[-1] * known[-1]) / count.clamp_min(1))
        known.append((count > 0).float())
    guess = images[-1].mean((-2, -1), keepdim=True)
    for number in range(len(levels) - 1, -1, -1):
        level, image = levels[number], images[number]
        b = level.removed * level.sum_neighbours(image * known[number])
        x = level.removed * guess
        if number > 0:
            solved = torch.where(level.removed.bool(), correct(levels[number:], b, x), image)
            guess = double(solved, levels[number - 1].wide, levels[number - 1].other)
    return x, b


def sum_neighbours(x: Tensor) -> Tensor:
    """12 times the weighted sum of the eight neighbours; pixels outside count as zero."""
    return Level(x, torch.ones(()), x.size(1)).sum_neighbours(x)


def sum_fours(x: Tensor) -> Tensor:
    """The sum of the four fine pixels in each coarse one."""
    rows = x[..., ::2, :] + x[..., 1::2, :]
    return rows[..., ::2] + rows[..., 1::2]


def halve(x: Tensor, wide: Tensor, out: Tensor) -> Tensor:
    """To the next coarser grid, in `out`: the transpose of `double`."""
    return halve_axis(halve_axis(x, -2, wide), -1, out).div_(16)


def halve_axis(x: Tensor, axis: int, out: Tensor) -> Tensor:
    """3 times the pair of fine pixels in a coarse one, and the nearer one of the pair on either side."""
    first, second = split_pairs(x, axis)
    last = first.size(axis) - 1
    torch.add(first, second, out=out).mul_(3)
    out.narrow(axis, 1, last).add_(second.narrow(axis, 0, last))
    out.narrow(axis, 0, last).add_(first.narrow(axis, 1, last))
    out.select(axis, 0).add_(first.select(axis, 0))
    out.select(axis, last).add_(second.select(axis, last))
    return out


def double(x: Tensor, wide: Tensor, whole: Tensor) -> Tensor:
    """To the next finer grid, bilinear, in `whole`; pixels outside are as those at the border."""
    return double_axis(double_axis(x / 16, -1, wide), -2, whole)


def double_axis(x: Tensor, axis: int, out: Tensor) -> Tensor:
    """Each pixel twice: 3 times itself and once the neighbour on that side."""
    first, second = split_pairs(out, axis)
    last = x.size(axis) - 1
    before, after = x.narrow(axis, 0, last), x.narrow(axis, 1, last)
    torch.add(before, after, alpha=3, out=first.narrow(axis, 1, last))
    torch.add(after, before, alpha=3, out=second.narrow(axis, 0, last))
    torch.mul(x.select(axis, 0), 4, out=first.select(axis, 0))
    torch.mul(x.select(axis, last), 4, out=second.select(axis, last))
    return out


def split_pairs(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The first and the second of every two pixels along an axis, which is negative."""
    first, second = x.unflatten(axis, (-1, 2)).unbind(axis)
    return first, second


def multiply_rows(one: Tensor, other: Tensor) -> Tensor:
    """[row channel 1 1]: the inner product of each channel of each row."""
    return torch.linalg.vecdot(one.flatten(2), other.flatten(2))[..., None, None]


def pad_to_halve(x: Tensor) -> Tensor:
    """Zeros on the right and below, so that the sides can be halved until they are small."""
    height, width = x.shape[-2:]
    factor = 1
    while min(height, width) > COARSEST * factor:
        factor *= 2
    return F.pad(x, (0, -width % factor, 0, -height % factor))
