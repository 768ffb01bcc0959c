"""Pictures on the pages of summaries and comparisons: mean maps, and marks in images."""

import numpy as np
import torch
from PIL import Image

from whyformer.show.colours import find_limits, paint_scores

SIDE = 256  # pixels of an image


def draw_mean_map(shares: np.ndarray, *, limit: float | None = None, signed: bool = False) -> Image.Image:
    """A map in the colours of scores, as large as `limit`, or else as its largest."""
    scores = torch.from_numpy(np.ascontiguousarray(shares, dtype=np.float64))
    between = find_limits(scores, signed=signed, floor=0.0) if limit is None else (0.0, limit or 1.0)
    image = Image.fromarray(paint_scores(scores, between, signed=signed).byte().numpy())
    return image.resize((SIDE, SIDE), Image.Resampling.NEAREST)
