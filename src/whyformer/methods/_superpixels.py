"""Superpixels: an image cut into areas of similar colour, by k-means over colour and position."""

import math

import torch
from torch import Tensor


def segment_superpixels(image: Tensor, count: int, *, compactness: float = 1.0, rounds: int = 10) -> Tensor:
    """[height width] from [channel height width]: about `count` areas, numbered from 0.

    As in SLIC (Achanta et al., 2012): k-means over colours and positions that starts from a regular grid. One standard
    deviation of the colours weighs as much as one step of that grid.
    """
    _, height, width = image.shape
    step = math.sqrt(height * width / count)
    rows = min(max(1, round(height / step)), count)
    columns = max(1, round(count / rows))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([y, x], dim=-1).reshape(-1, 2) * (compactness / step)
    colours = image.flatten(1).T - image.mean()
    # In a flat image the deviation is only rounding error: do not divide by it.
    colours = colours / colours.std().clamp(min=1e-6 * image.abs().max() + 1e-300)
    points = torch.cat([places.double(), colours], dim=1)
    owner = ((y * rows // height) * columns + x * columns // width).flatten()
    for _ in range(rounds):
        owner = owner.unique(return_inverse=True)[1]
        sizes = owner.bincount()
        centres = torch.zeros(len(sizes), points.size(1), dtype=torch.float64).index_add_(0, owner, points)
        owner = torch.cdist(points, centres / sizes[:, None]).argmin(dim=1)
    return owner.unique(return_inverse=True)[1].reshape(height, width)
