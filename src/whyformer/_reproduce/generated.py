"""Generated scenes as data: every pixel of the object is known, so that tables with masks can be measured anywhere."""

from PIL import Image

from whyformer.data import Data, Example
from whyformer.demo import shapes

SCENE_SEED = 17


def make_shape_examples(count: int, seed: int = SCENE_SEED) -> Data:
    """Scenes with one object of a known class and outline, for demo/shapes."""
    scenes = shapes.generate(count, seed)
    examples = (
        Example(
            f"scene {i}", Image.fromarray(scenes.images[i]), shapes.CLASSES[scenes.labels[i, 0]], scenes.masks[i, 0]
        )
        for i in range(count)
    )
    return Data(f"generated scenes (seed {seed})", tuple(examples))
