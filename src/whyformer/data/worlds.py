"""Generated worlds as data, by the name of the bundled model that knows them: the evidence is exact.

    read("demo/shapes")       one object; its pixels are the evidence for its class
    read("demo/queried")      what shape is the red object? its pixels are; three other objects say nothing
    read("demo/creatures")    which class has these parts? the pixels of the two parts shown; the body says nothing

Examples are generated anew on each call and are always the same. None of them was used for training.
"""

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

from whyformer.data.example import Data, Example
from whyformer.demo import creatures, queried, shapes
from whyformer.errors import InputError

WORLD_SEED = 17
WORLD_EXAMPLES = 200  # unless a limit is given


def draw_shapes(count: int, seed: int) -> Iterator[tuple[np.ndarray, str, np.ndarray]]:
    scenes = shapes.generate(count, seed)
    return zip(scenes.images, (shapes.CLASSES[i] for i in scenes.labels[:, 0]), scenes.masks[:, 0], strict=True)


def draw_queried(count: int, seed: int) -> Iterator[tuple[np.ndarray, str, np.ndarray]]:
    scenes = queried.generate(count, seed)
    return zip(scenes.images, (queried.CLASSES[i] for i in scenes.labels[:, 0]), scenes.masks[:, 0], strict=True)


def draw_creatures(count: int, seed: int) -> Iterator[tuple[np.ndarray, str, np.ndarray]]:
    drawn = creatures.generate(count, seed)
    return zip(drawn.images, (creatures.CLASSES[i] for i in drawn.labels), drawn.evidence, strict=True)


WORLDS: dict[str, Callable[[int, int], Iterator[tuple[np.ndarray, str, np.ndarray]]]] = {
    "demo/shapes": draw_shapes,
    "demo/queried": draw_queried,
    "demo/creatures": draw_creatures,
}


def is_world(source: object) -> bool:
    return isinstance(source, str) and source in WORLDS


def check_world_size(limit: object) -> None:
    """Refuse what is not a number of examples."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"The number of examples must be a whole number >= 1, got {limit!r}.", code="E_OPTION")


def read_world(name: str, count: int | None = None, seed: int = WORLD_SEED) -> Data:
    """`count` images of a world, each with its class and the pixels that show it."""
    drawn = WORLDS[name](WORLD_EXAMPLES if count is None else count, seed)
    examples = (
        Example(f"{name} {i}", Image.fromarray(image), label, mask.astype(np.int64))
        for i, (image, label, mask) in enumerate(drawn)
    )
    return Data(name, tuple(examples))
