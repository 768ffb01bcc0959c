"""Pictures: images between the words of a text, the input of vision-language models (LLaVA, Qwen-VL, Gemma 3, Idefics).

Such a model has placeholders among its token ids and puts features of the images in their place. The features are
tokens like words: the explained input is the sequence of both. Sounds between words (Qwen2-Audio, Voxtral) are read the
same way; their tokens go in the order of time. What is known here is how pixels became the input:

    PixelPlaces   for every entry of the pixel values, which image it is of and where it lies there

It is measured by processing test images, so tiles, packed patches and any resolution are undone without knowing how a
processor works: in one image levels rise from left to right, in one from top to bottom, in one they number the images.
Which token an entry belongs to is measured on the model (_engine/run/image_tokens.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from whyformer._model.image import ImageSource, read_image
from whyformer._model.kept_image import ImageView, KeptImage
from whyformer._model.unwrap import unwrap
from whyformer.errors import InputError

if TYPE_CHECKING:
    from transformers import ProcessorMixin

    from whyformer._model.input_like import ImageOrWords

PIXELS, SPECTROGRAM = "pixel_values", "input_features"
PLACEHOLDERS = {  # fields of configs
    PIXELS: ("image_token_id", "image_token_index"),
    SPECTROGRAM: ("audio_token_id", "audio_token_index"),
}
Process = Callable[[list[Image.Image]], Tensor]


@dataclass(frozen=True, eq=False)
class PixelPlaces:
    """The image of every entry of the pixel values, -1 for padding, and where it lies, from 0 to 1 across and down."""

    image: Tensor
    across: Tensor
    down: Tensor


@dataclass(frozen=True, eq=False)
class Pictures:
    """The images, or the sounds, of an example. The engine finds out which tokens they become: `owners`, `is_image`.

    Of a batch, only the placeholder is known: its examples run alone, as `pick_pictures` takes them out.
    """

    count: int
    placeholder: int = -1  # the token id
    find_places: Callable[[], PixelPlaces | None] = field(repr=False, default=lambda: None)
    owners: Tensor | None = None  # like the pixel values: the token that is computed from an entry, or -1
    is_image: Tensor | None = None  # [token]: a token is of an image
    enters_elsewhere: bool = False  # the images reach the answer beside their tokens too
    boxes: Tensor | None = None  # [token 5]: its image, and left, top, right, bottom there, from 0 to 1; NaN: no place
    medium: str = PIXELS  # the input that has them

    @property
    def kind(self) -> str:
        return "image" if self.medium == PIXELS else "sound"


def is_picture_record(item: object) -> "TypeGuard[Mapping[str, ImageOrWords]]":
    """Whether this is {"image": ..., "text": ...}, or {"images": [...], "text": ...}."""
    return isinstance(item, Mapping) and item.keys() in ({"image", "text"}, {"images", "text"})


def find_placeholder(module: nn.Module, medium: str = PIXELS) -> int | None:
    """The token id whose embedding is replaced by features of an image, or of a sound; None if the model has none."""
    config = getattr(unwrap(module), "config", None)
    found = (getattr(config, name, None) for name in PLACEHOLDERS[medium])
    return next((i for i in found if isinstance(i, int) and i >= 0), None)


def is_joint_processor(processor: object) -> "TypeGuard[ProcessorMixin]":
    """Whether a processor turns images and a text into one input."""
    return all(getattr(processor, name, None) is not None for name in ("tokenizer", "image_processor"))


def find_medium(module: nn.Module, inputs: Mapping[str, Tensor]) -> str | None:
    """Of token ids with placeholders, and pixels or sounds to put there: the name of the input that has these."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor):
        return None
    placeholders = {medium: find_placeholder(module, medium) for medium in PLACEHOLDERS if medium in inputs}
    return next((one for one, mark in placeholders.items() if mark is not None and bool((ids == mark).any())), None)


def describe_pictures(module: nn.Module, inputs: Mapping[str, Tensor]) -> Pictures | None:
    """The images among the inputs of one example; None if there are none between its words."""
    if (medium := find_medium(module, inputs)) is None:
        return None
    placeholder = find_placeholder(module, medium)
    places = place_plain_pixels(inputs[medium])
    count = 1 if places is None else int(places.image.max()) + 1
    return Pictures(count, -1 if placeholder is None else placeholder, lambda: places, medium=medium)


def pick_pictures(inputs: Mapping[str, Tensor], pictures: Pictures, example: int) -> dict[str, Tensor]:
    """The inputs of one example of a batch: models take the images of all examples one after the other."""
    ids, pixels, placeholder = inputs["input_ids"], inputs[pictures.medium], pictures.placeholder
    grids = next((given for name, given in inputs.items() if "grid" in name and given.size(-1) == 3), None)
    tokens = (ids == placeholder).sum(-1).double().cumsum(0)
    if len(pixels) == len(ids) and grids is None:  # an image each, or a row of them
        images = rows = slice(example, example + 1)
    else:
        patches = torch.ones(len(pixels)) if grids is None else grids.prod(-1).double()
        ends = patches.cumsum(0).to(tokens) * (tokens[-1] / patches.sum())  # in tokens
        start, stop = (int((ends <= n + 0.5).sum()) for n in (tokens[example - 1] if example else 0, tokens[example]))
        images = slice(start, stop)
        rows = images if grids is None else slice(int(patches[:start].sum()), int(patches[:stop].sum()))
    counts = {len(ids): slice(example, example + 1), len(ids if grids is None else grids): images, len(pixels): rows}
    own = {name: counts[len(ids) if given.shape[:2] == ids.shape else len(given)] for name, given in inputs.items()}
    return {name: given[own[name]] for name, given in inputs.items()}


# --- from a record to inputs ------------------------------------------------------------------------------------------


def read_record(record: "Mapping[str, ImageOrWords]") -> tuple[list[Image.Image], list[str], str]:
    """The images of a record, notes on them, and its text."""
    given = record.get("images", record.get("image"))
    sources: Sequence[ImageSource] = given if isinstance(given, list | tuple) else [given]  # type: ignore[list-item]
    if not sources or not isinstance(record["text"], str) or not record["text"].strip():
        raise InputError('Pass an image and a text that is not empty: {"image": "cat.jpg", "text": "What is this?"}.')
    read = [read_image(source) for source in sources]
    return [image for image, _ in read], [note for _, note in read if note], record["text"]


def process_record(processor: "ProcessorMixin", images: list[Image.Image], text: str, name: str) -> dict[str, Tensor]:
    """What the processor makes of images and a text; images that the text does not place come before it."""
    mark = getattr(processor, "image_token", "<image>")
    mark = getattr(processor, "boi_token", None) or mark if type(processor).__name__.startswith("Gemma3") else mark
    missing = len(images) - text.count(mark)
    if missing < 0:
        raise InputError(f"The text has {text.count(mark)} places for images ({mark}), but there are {len(images)}.")
    try:
        made = processor(images=images, text=mark * missing + "\n" * bool(missing) + text, return_tensors="pt")
    except Exception as error:
        if not type(processor).__module__.startswith("transformers."):
            raise  # the user's own processor
        raise InputError(
            f"The processor of {name} fails on this image and text: {str(error)[:200]}.", code="E_MODEL_CONFIG"
        ) from None
    return {key: value for key, value in made.items() if isinstance(value, Tensor)}


# --- the vision tower -------------------------------------------------------------------------------------------------


class TowerProduct(nn.Module):
    """The product of the features of each image with constants, [image 1]: `held` is [image 1 1 token channel]."""

    last: Tensor  # the features of the last run

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.encoder = unwrap(module)
        self.config = SimpleNamespace(problem_type="regression")

    def forward(self, pixel_values: Tensor, held: Tensor) -> Tensor:
        made = self.encoder.get_image_features(pixel_values)  # type: ignore[operator]
        made = getattr(made, "pooler_output", made)
        features = made if isinstance(made, Tensor) else torch.cat(list(made))
        features = features.reshape(len(pixel_values), -1, features.shape[-1])
        self.last = features.detach()
        return (features * held[:, 0, 0]).sum((1, 2))[:, None]


# --- where each entry of the pixel values lies ------------------------------------------------------------------------


def place_plain_pixels(pixels: Tensor) -> PixelPlaces | None:
    """The places in pixel values [image channel height width] themselves, or [1 image channel height width]."""
    if pixels.dim() == 5 and len(pixels) == 1:
        inner = place_plain_pixels(pixels[0])
        return inner and PixelPlaces(*(part[None] for part in (inner.image, inner.across, inner.down)))
    if pixels.dim() != 4:
        return None
    count, _, height, width = pixels.shape
    down, across = ((torch.arange(size) + 0.5) / size for size in (height, width))
    image = torch.arange(count).view(-1, 1, 1, 1)
    return PixelPlaces(*(part.expand(pixels.shape) for part in (image, across, down[:, None])))


def place_by_processor(process: Process, sizes: Sequence[tuple[int, int]]) -> PixelPlaces | None:
    """The places of the pixel values that a processor makes of images of these sizes, (width, height) each."""

    def show(paint: Callable[[int, int, int], np.ndarray]) -> Tensor:
        levels = [np.broadcast_to(paint(n, *size), size[::-1]) for n, size in enumerate(sizes)]
        grey = [Image.fromarray(np.repeat(level[..., None].round().astype("uint8"), 3, -1)) for level in levels]
        return process(grey).double()

    black, white = show(lambda *_: np.zeros(1)), show(lambda *_: np.full(1, 255.0))
    if black.shape != white.shape:
        return None
    is_real = (white - black).abs() > 1e-6
    spread = torch.where(is_real, white - black, torch.ones_like(white))
    across, down, number = (
        (show(paint) - black) / spread
        for paint in (
            lambda _, width, __: (np.arange(width) + 0.5) * 255 / width,
            lambda _, __, height: ((np.arange(height) + 0.5) * 255 / height)[:, None],
            lambda n, _, __: np.full(1, 255.0 * n / max(len(sizes) - 1, 1)),
        )
    )
    image = (number * max(len(sizes) - 1, 1)).round().long()
    return PixelPlaces(torch.where(is_real, image, -1), across, down)


def box_tokens(places: PixelPlaces, owners: Tensor, length: int) -> Tensor:
    """[token 5]: the image of each token, and the box of its pixels, from their mean and spread; NaN without pixels.

    Pixels that are evenly spaced over a width $w$ have a variance of $w^2 / 12$.
    """
    is_owned = (owners >= 0) & (places.image.expand(owners.shape) >= 0)
    at = owners[is_owned]

    def mean(values: Tensor) -> Tensor:
        own = values.expand(owners.shape)[is_owned].double()
        return torch.bincount(at, own, minlength=length) / torch.bincount(at, minlength=length)

    across, down = mean(places.across), mean(places.down)
    half_width, half_height = (
        (3 * (mean(part**2) - centre**2).clamp(min=0)).sqrt()
        for part, centre in ((places.across, across), (places.down, down))
    )
    edges = (across - half_width, down - half_height, across + half_width, down + half_height)
    return torch.stack([mean(places.image).round(), *edges], -1)


def box_packed(grids: Tensor, owners: Tensor, length: int) -> Tensor:
    """The same from the grid of each image, (time, rows, columns) of patches; tokens go through it row by row."""
    boxes = torch.full((length, 5), torch.nan, dtype=torch.float64)
    tokens = owners[owners >= 0].unique().tolist()
    patches = grids.prod(-1).tolist()
    merged = round((sum(patches) / len(tokens)) ** 0.5)
    for number, (_, rows, columns) in enumerate(grids.tolist()):
        rows, columns = rows // merged, columns // merged
        for i in range(patches[number] // merged**2):
            row, column = divmod(i % (rows * columns), columns)
            edges = (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
            boxes[tokens.pop(0)] = torch.tensor((number, *edges), dtype=torch.float64)
    return boxes


def keep_whole(image: Image.Image) -> KeptImage:
    """The image to draw a map of all of it on."""
    return KeptImage(image, ImageView(0.0, 0.0, float(image.width), float(image.height), image.height, image.width))
