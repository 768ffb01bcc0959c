"""The images of one panel: the original, and its map over the image or alone."""

from collections.abc import Iterator

from PIL import Image
from torch import Tensor

from whyformer._model import KeptImage
from whyformer.show import overlay
from whyformer.show.panel import Panel


def make_panel_images(
    panel: Panel, *, contours: bool = False, max_side: int
) -> Iterator[tuple[str, Image.Image, bool]]:
    """(caption, image, crisp) of each image of the panel, from left to right; crisp: enlarge without smoothing."""
    finest = ("smooth", panel.grid) if panel.pixels is None else ("pixel by pixel", panel.pixels)
    maps = [(*finest, True), ("patch by patch", panel.grid, False)]
    if panel.image is not None:
        yield describe_original(panel.image), make_original_image(panel.image, max_side=max_side), False
    for caption, scores, smooth in maps:
        if panel.image is not None and panel.image.view is not None:
            image = overlay_panel(panel, scores, smooth=smooth, contours=contours and smooth)
            yield caption, overlay.shrink_image(image, max_side), False
        elif not smooth or panel.pixels is not None:  # without an image to lie over, the smooth map adds nothing
            yield caption, paint_panel_map(panel, scores), True


def make_original_image(kept: KeptImage, *, max_side: int) -> Image.Image:
    """The image without a map, the model's view framed."""
    return overlay.shrink_image(overlay.frame_view(kept.image, kept.view), max_side)


def describe_original(kept: KeptImage) -> str:
    """The caption of the image without a map."""
    partial = kept.view is not None and overlay.is_partial_view(kept.view, kept.image.size)
    return "image (frame: model input)" if partial else "image"


def make_cell_image(panel: Panel, *, max_side: int) -> tuple[Image.Image, bool]:
    """The patch map over its image, or alone if there is none, and whether to enlarge it without smoothing."""
    if panel.image is None or panel.image.view is None:
        return paint_panel_map(panel, panel.grid), True
    return overlay.shrink_image(overlay_panel(panel, panel.grid, smooth=True), max_side), False


def paint_panel_map(panel: Panel, scores: Tensor) -> Image.Image:
    """A map of this panel alone, on its own colour scale."""
    between = overlay.choose_colour_scale(scores, signed=panel.signed).between
    return overlay.paint_map(scores, between, signed=panel.signed)


def overlay_panel(
    panel: Panel, scores: Tensor, *, smooth: bool, contours: bool = False, percentile: float | None = overlay.PERCENTILE
) -> Image.Image:
    """A map of this panel over its image, at the size of the image."""
    assert panel.image is not None and panel.image.view is not None
    between = overlay.choose_colour_scale(scores, signed=panel.signed, percentile=percentile).between
    image, view = panel.image.image, panel.image.view
    return overlay.overlay_map(image, scores, view, between, signed=panel.signed, smooth=smooth, contours=contours)


def format_limits(panel: Panel) -> str:
    """The colour limits of the patch map: '-0.3 to +0.3'."""
    limits = overlay.choose_colour_scale(panel.grid, signed=panel.signed).format_limits(signed=panel.signed)
    return limits if panel.class_specific else f"{limits}; any class"


def list_strongest_patches(panel: Panel, most: int) -> list[tuple[str, float]]:
    """Where they are, counted from the top left, and their scores."""
    columns = panel.grid.shape[1]
    best = panel.scores.abs().argsort(descending=True)[:most].tolist()
    return [(f"row {i // columns}, column {i % columns}", panel.scores[i].item()) for i in best]


def render_model_input(pixels: Tensor, side: int) -> Image.Image:
    """What the model sees, scaled to the range 0 to 255, as a square of this many pixels."""
    low, high = pixels.amin(), pixels.amax()
    numbers = ((pixels - low) / (high - low).clamp(min=1e-9) * 255).round().byte()
    return Image.fromarray(numbers[:3].permute(1, 2, 0).cpu().numpy()).resize((side, side))
