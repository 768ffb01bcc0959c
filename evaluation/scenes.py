"""Scenes of the shapes world as examples with masks."""

import numpy as np
from PIL import Image

from whyformer.data import Data, Example
from whyformer.demo import shapes


def make_examples(count: int, seed: int) -> Data:
    """Scenes with one object and its mask."""
    scenes = shapes.generate(count, seed, objects=1)
    examples = tuple(
        Example(f"scene {i}", Image.fromarray(image), shapes.CLASSES[label], mask[0].astype(np.int64))
        for i, (image, label, mask) in enumerate(zip(scenes.images, scenes.labels[:, 0], scenes.masks, strict=True))
    )
    return Data(f"shapes, seed {seed}", examples)
