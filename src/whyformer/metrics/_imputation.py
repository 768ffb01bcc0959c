r"""Impute removed pixels from their neighbours: each is the weighted mean of the eight around it.

$$ x_p = \sum_{q \in N(p)} w_q x_q \Big/ \sum_{q \in N(p)} w_q, \qquad
   w = \tfrac{1}{12} \begin{pmatrix} 1 & 2 & 1 \\ 2 & 0 & 2 \\ 1 & 2 & 1 \end{pmatrix} $$

Neighbours outside the image do not count. For the removed pixels this is a linear system A x = b with a symmetric
positive definite A, a discrete Laplace equation whose boundary values are the pixels that are kept.

`impute_exactly` solves it by sparse elimination, `impute_by_multigrid` iteratively (`_multigrid.py`), which is faster
where much is removed.
"""

import numpy as np
import torch
from torch import Tensor

from whyformer.metrics._multigrid import impute_by_multigrid

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
