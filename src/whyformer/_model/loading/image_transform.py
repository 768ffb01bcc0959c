"""TransformProcessor: a function from an image to a tensor (torchvision, timm, open_clip) as an image processor.

Transformers' processors are called with `images=` and return `pixel_values`; a transform takes one Pillow image and
returns [channel height width].
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from PIL import Image
from torch import Tensor, nn

from whyformer._model.kept_image import find_view
from whyformer._model.preprocessors import ImageProcessor
from whyformer.errors import InputError

ProcessorLike: TypeAlias = ImageProcessor | Callable[[Image.Image], Tensor]
OUTSIDE = (7, 7, 7)  # fills what a transform adds around an image where values are not normalised


class TransformProcessor:
    """Calls a transform as transformers' image processors are called.

    `image_mean` and `image_std` are those of the Normalize step, None if there is none.
    """

    def __init__(self, transform: Callable[[Image.Image], Tensor]) -> None:
        self.transform = transform
        self.image_mean, self.image_std = find_normalisation(transform)
        self.do_rescale = self.do_normalize = self.image_mean is not None

    def __call__(
        self,
        images: Sequence[Image.Image],
        *,
        return_tensors: str = "pt",
        resample: Image.Resampling | None = None,
        do_rescale: bool = True,
        do_normalize: bool = True,
    ) -> dict[str, Tensor]:
        """{"pixel_values": [batch channel height width]}; with do_normalize=False, pixels are only moved."""
        make = self._transform if do_normalize else self._place
        return {"pixel_values": torch.stack([make(image) for image in images])}

    def to_dict(self) -> dict[str, str]:
        return {"transform": repr(self.transform)}

    def _transform(self, image: Image.Image) -> Tensor:
        made = self.transform(image)
        if not (isinstance(made, Tensor) and made.dim() == 3 and made.is_floating_point()):
            kind = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise InputError(
                f"A transform must turn an image into a floating-point tensor [channel, height, width], got {kind}.",
                code="E_MODEL_TOKENIZER",
            )
        return made

    def _place(self, image: Image.Image) -> Tensor:
        """The pixels of the image, 0 to 255, at the places where the transform puts them; the nearest, not a mean."""
        view = find_view(lambda shown: self._transform(shown)[None], *image.size)
        if view is None:
            raise InputError("The transform does more than resize, crop and pad, so a mask cannot be aligned with it.")
        placed = image.convert("RGB").transform(
            (view.width, view.height), Image.Transform.EXTENT, (view.left, view.top, view.right, view.bottom),
            resample=Image.Resampling.NEAREST, fillcolor=OUTSIDE,
        )  # fmt: skip
        values = torch.frombuffer(bytearray(placed.tobytes()), dtype=torch.uint8)
        return values.view(view.height, view.width, 3).permute(2, 0, 1).float()


def as_image_processor(processor: Any) -> ImageProcessor | None:
    """A processor that is called with `images=`: the given one, or a TransformProcessor around it."""
    if processor is None or isinstance(processor, TransformProcessor) or takes_images(processor):
        return processor
    return TransformProcessor(processor)


def takes_images(processor: ProcessorLike) -> bool:
    """Whether a processor is called with `images=`; unknown signatures count as such."""
    call = processor.forward if isinstance(processor, nn.Module) else processor
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "images" or p.kind is p.VAR_KEYWORD for p in parameters)


def find_normalisation(transform: Any) -> tuple[list[float] | None, list[float] | None]:
    """The mean and standard deviation of the last step that has both."""
    for step in reversed(list(_list_steps(transform))):
        mean, deviation = (getattr(step, name, None) for name in ("mean", "std"))
        if mean is not None and deviation is not None:
            return _as_floats(mean), _as_floats(deviation)
    return None, None


def _list_steps(transform: Any) -> Iterator[Any]:
    yield transform
    steps = transform if isinstance(transform, nn.Sequential) else getattr(transform, "transforms", ())
    for step in steps:
        yield from _list_steps(step)


def _as_floats(values: Tensor | Sequence[float]) -> list[float]:
    return torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
