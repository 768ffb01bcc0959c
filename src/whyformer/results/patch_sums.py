"""From scores of pixels to scores of patches."""

import torch
from torch import Tensor

from whyformer._plain.tokens import Grid


def sum_over_patches(pixels: Tensor, grid: Grid) -> Tensor:
    """[batch patch]: the sum over the pixels of each patch."""
    if grid.covers is not None:  # the model ignores the pixels to the right of and below the last whole patch
        pixels = pixels[:, : grid.covers[0], : grid.covers[1]]
    batch, height, width = pixels.shape
    if height % grid.rows or width % grid.columns:  # a pixel belongs to the cell of the grid that it is in
        row, column = (torch.arange(n) * count // n for n, count in ((height, grid.rows), (width, grid.columns)))
        patch = (row[:, None] * grid.columns + column).flatten().to(pixels.device)
        return pixels.new_zeros(batch, len(grid)).index_add_(1, patch, pixels.flatten(1))
    tiles = pixels.reshape(batch, grid.rows, height // grid.rows, grid.columns, width // grid.columns)
    return tiles.sum((2, 4)).flatten(1)
