"""Random views of photos, a whole batch at once: the same crop at 112 px for the student and 224 px for the teacher.

Cropping, flipping and resizing are one linear map per axis, so a view is `rows @ photo @ columns.T`: two matrix
products, with the antialiased cubic filter that Pillow uses.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY = (0.299, 0.587, 0.114)
SMALL, LARGE = 112, 224
AREA, ASPECT, COLOUR, MIXUP = (0.25, 1.0), (3 / 4, 4 / 3), 0.3, 0.2


class View(NamedTuple):
    """Where to look, and how to colour and mix what is seen."""

    start: Tensor  # [batch 2] of the crop, in pixels: rows, columns
    extent: Tensor  # [batch 2] likewise
    flip: Tensor  # [batch] bool
    colour: Tensor  # [batch 3] brightness, contrast, saturation
    keep: Tensor  # [batch] the rest comes from the next photo of the batch


def draw(batch: int, side: int, device: torch.device | str, mixup: bool = True) -> View:
    area = torch.empty(batch, device=device).uniform_(*AREA) * side**2
    stretch = torch.empty(batch, device=device).uniform_(math.log(ASPECT[0]), math.log(ASPECT[1])).exp().sqrt()
    extent = torch.stack([area.sqrt() / stretch, area.sqrt() * stretch], 1).clamp(max=side)
    start = torch.rand(batch, 2, device=device) * (side - extent)
    colour = torch.empty(batch, 3, device=device).uniform_(1 - COLOUR, 1 + COLOUR)
    keep = torch.ones(batch, device=device)
    if mixup:
        share = torch.distributions.Beta(MIXUP * keep, MIXUP * keep, validate_args=False).sample()
        keep = torch.maximum(share, 1 - share)
    return View(start, extent, torch.rand(batch, device=device) < 0.5, colour, keep)


def whole(batch: int, side: int, device: torch.device | str) -> View:
    """The whole photo as it is: how accuracy is measured."""
    ones = torch.ones(batch, device=device)
    extent = side * ones[:, None].expand(-1, 2)
    return View(0 * extent, extent, ones < 0, ones[:, None].expand(-1, 3), ones)


class Camera(nn.Module):
    """Normalised views [b 3 112 112] and [b 3 224 224] of photos [b 3 side side] in uint8."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("mean", MEAN), ("std", STD), ("grey", GREY)):
            self.register_buffer(name, torch.tensor(values)[:, None, None])

    def forward(self, photos: Tensor, view: View) -> tuple[Tensor, Tensor]:
        small, large = _resampled(photos, view, SMALL), _resampled(photos, view, LARGE)
        level = (small * self.grey).sum(1).mean((1, 2)) * view.colour[:, 0]
        return self._taken(small, view, level), self._taken(large, view, level)

    def _taken(self, image: Tensor, view: View, level: Tensor) -> Tensor:
        brightness, contrast, saturation = (factor[:, None, None, None] for factor in view.colour.unbind(1))
        level, keep = level[:, None, None, None], view.keep[:, None, None, None]
        image = (image * brightness - level) * contrast + level
        grey = (image * self.grey).sum(1, keepdim=True)
        image = (((image - grey) * saturation + grey).clamp(0, 1) - self.mean) / self.std
        return keep * image + (1 - keep) * image.roll(-1, 0)


def _resampled(photos: Tensor, view: View, size: int) -> Tensor:
    side = photos.shape[-1]
    rows = _filter(view.start[:, 0], view.extent[:, 0], torch.zeros_like(view.flip), size, side)
    columns = _filter(view.start[:, 1], view.extent[:, 1], view.flip, size, side)
    dtype = torch.float16 if photos.is_cuda else torch.float32
    image = (rows.to(dtype)[:, None] @ photos.to(dtype)) @ columns.to(dtype)[:, None].transpose(-1, -2)
    return image.float().div(255).clamp(0, 1)


def _filter(start: Tensor, extent: Tensor, flip: Tensor, size: int, side: int) -> Tensor:
    """Weights [batch size side] of the pixels of one axis in each pixel of the view."""
    place = (torch.arange(size, device=start.device) + 0.5) / size
    place = torch.where(flip[:, None], 1 - place, place)
    centre = start[:, None] + place * extent[:, None] - 0.5
    spread = (extent / size).clamp(min=1)[:, None, None]
    weights = _cubic((torch.arange(side, device=start.device) - centre[..., None]) / spread)
    return weights / weights.sum(-1, keepdim=True)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
