"""From scores of pixels to scores of patches."""

from torch import Tensor

from whyformer._plain.tokens import Grid
from whyformer.errors import InputError


def sum_over_patches(pixels: Tensor, grid: Grid) -> Tensor:
    """[batch patch]: the sum over the pixels of each patch."""
    if grid.covers is not None:  # the model ignores the pixels to the right of and below the last whole patch
        pixels = pixels[:, : grid.covers[0], : grid.covers[1]]
    batch, height, width = pixels.shape
    if height % grid.rows or width % grid.columns:
        raise InputError(
            f"{height} x {width} pixels cannot be divided evenly into {grid.rows} x {grid.columns} patches. "
            "Resize the image so that they can, or use a method that works on tokens."
        )
    tiles = pixels.reshape(batch, grid.rows, height // grid.rows, grid.columns, width // grid.columns)
    return tiles.sum((2, 4)).flatten(1)
