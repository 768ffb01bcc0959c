"""A function from an image to a tensor as the processor of a model."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import whyformer as why
from whyformer._model.loading.image_transform import TransformProcessor, as_image_processor
from whyformer.data.masks import align_mask
from whyformer.errors import InputError

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))


class Normalize:
    """A step as torchvision's: attributes mean and std."""

    mean, std = (0.5, 0.5, 0.5), torch.tensor([0.25, 0.25, 0.25])

    def __call__(self, pixels: Tensor) -> Tensor:
        return (pixels - 0.5) / 0.25


class CropAndNormalise:
    """Resizes to 36 x 24, takes the 24 x 24 pixels in the middle, and normalises."""

    transforms = (Normalize(),)

    def __call__(self, image: Image.Image) -> Tensor:
        cut = image.resize((36, 24), Image.Resampling.BILINEAR).crop((6, 0, 30, 24))
        return Normalize()(torch.from_numpy(np.array(cut)).permute(2, 0, 1) / 255)


def test_a_module_takes_images_through_the_transform(zoo):
    module = zoo("vit").module
    side = module.config.image_size

    def transform(image: Image.Image) -> Tensor:
        return (
            torch.from_numpy(np.array(image.resize((side, side)))).permute(2, 0, 1)[: module.config.num_channels] / 255
        )

    model = why.open(module, processor=transform)
    encoded = model.encode([IMAGE, IMAGE])
    assert model.kind == "image"
    assert torch.equal(encoded.inputs["pixel_values"][1], transform(IMAGE).to(model.dtype))
    assert why.explain(model, IMAGE, "rollout").scores.isfinite().all()


def test_a_module_whose_input_has_another_name():
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.mean((2, 3)))

    encoded = why.open(Classifier(), processor=CropAndNormalise()).encode(IMAGE)
    assert list(encoded.inputs) == ["x"] and encoded.main == "x"


def test_mean_and_deviation_are_those_of_the_last_step():
    processor = TransformProcessor(CropAndNormalise())
    assert (processor.image_mean, processor.image_std) == ([0.5] * 3, [0.25] * 3)
    assert TransformProcessor(lambda image: torch.zeros(3, 4, 4)).image_mean is None


def test_processors_of_transformers_stay_as_they_are(zoo):
    processor = lambda images, return_tensors: {"pixel_values": torch.zeros(1, 3, 4, 4)}  # noqa: E731
    assert as_image_processor(processor) is processor
    assert as_image_processor(None) is None


def test_a_mask_is_placed_as_the_image_is(zoo):
    """Of 60 x 40 pixels, columns 10 to 50 are seen, each pixel of the input covering 5/3 of the image's."""
    model = why.open(zoo("vit").module, processor=CropAndNormalise())
    mask = np.zeros((40, 60), dtype=np.int8)
    mask[:, 30:] = 1
    mask[:20, :] = -1
    aligned = align_mask(mask, (60, 40), model)
    assert aligned.shape == (24, 24)
    assert (aligned[:12] == -1).all() and (aligned[12:, :12] == 0).all() and (aligned[12:, 12:] == 1).all()


@pytest.mark.parametrize(
    "wrong", [lambda image: image, lambda image: torch.zeros(3, 4), lambda image: torch.ones(3, 4, 4).int()]
)
def test_transforms_that_return_something_else(zoo, wrong):
    model = why.open(zoo("vit").module, processor=wrong)
    with pytest.raises(InputError, match=r"a floating-point tensor \[channel, height, width\], got"):
        model.encode(IMAGE)
