"""Pictures on the pages of summaries and comparisons: mean maps, and marks in images."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from scipy import ndimage

from whyformer.show.colours import find_limits, paint_scores

SIDE = 256  # pixels of a picture
IMAGE_SIDE = 512  # of the image that it is cut from
MARGIN = 1.5  # patches around a mark
SMALLEST = 0.3  # of the image
FRAME = 2  # pixels around a map


def draw_mean_map(shares: np.ndarray, *, limit: float | None = None, signed: bool = False) -> Image.Image:
    """A map in the colours of scores, as large as `limit`, or else as its largest."""
    scores = torch.from_numpy(np.ascontiguousarray(shares, dtype=np.float64))
    between = find_limits(scores, signed=signed, floor=0.0) if limit is None else (0.0, limit or 1.0)
    image = Image.fromarray(paint_scores(scores, between, signed=signed).byte().numpy())
    image = image.resize((SIDE, SIDE), Image.Resampling.NEAREST)
    ImageDraw.Draw(image).rectangle((0, 0, SIDE - 1, SIDE - 1), outline="grey", width=FRAME)  # on a page as white as 0
    return image


def crop_mark(
    image: Image.Image, grid: tuple[int, int], patches: Sequence[int], where: np.ndarray | None = None
) -> Image.Image:
    """A square of the image around these patches, which are outlined. Of several groups, it shows the one that most
    items have there (`where`: the share of items at each patch), or else the largest."""
    if not patches:
        return image.resize((SIDE, SIDE))
    region = np.zeros(grid, dtype=bool)
    region.ravel()[list(patches)] = True
    inside = Image.fromarray((255 * region).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    original, image = image, image.copy()
    outline_region(image, region)
    image.paste(original, mask=inside)  # nothing is drawn over what is looked at
    groups, count = ndimage.label(region, np.ones((3, 3)))
    weights = np.ones(grid) if where is None or where.shape != grid else where
    best = int(np.argmax(ndimage.sum_labels(weights, groups, range(1, count + 1)))) + 1
    (top, bottom), (left, right) = ((int(x.min()), int(x.max()) + 1) for x in np.nonzero(groups == best))
    down, across = image.height / grid[0], image.width / grid[1]
    height, width = (bottom - top + 2 * MARGIN) * down, (right - left + 2 * MARGIN) * across
    side = min(max(height, width, SMALLEST * min(image.size)), *image.size)
    x = min(max((left + right) / 2 * across - side / 2, 0), image.width - side)
    y = min(max((top + bottom) / 2 * down - side / 2, 0), image.height - side)
    return image.resize((SIDE, SIDE), box=(x, y, x + side, y + side))


def outline_region(image: Image.Image, region: np.ndarray) -> None:
    """Draw the border between the region and the rest, black on white so that it shows on any image."""
    draw = ImageDraw.Draw(image)
    for colour, width in (("white", 13), ("black", 6)):  # half of it is outside
        for line in list_edges(region, image.width, image.height):
            draw.line(line, fill=colour, width=width)


def list_edges(region: np.ndarray, width: int, height: int) -> list[tuple[float, float, float, float]]:
    """The sides of patches that are between the region and the rest, in pixels."""
    rows, columns = region.shape
    padded = np.pad(region, 1)
    across, down = width / columns, height / rows
    above = np.argwhere(padded[1:] != padded[:-1])  # between row y - 1 and row y of the region
    left = np.argwhere(padded[:, 1:] != padded[:, :-1])
    lines = [((x - 1) * across, y * down, x * across, y * down) for y, x in above]
    return lines + [(x * across, (y - 1) * down, x * across, y * down) for y, x in left]
