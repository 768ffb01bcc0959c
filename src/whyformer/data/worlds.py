"""Generated worlds as data, by the name of the bundled model that knows them: the evidence is exact.

    read("demo/shapes")       one object; its pixels are the evidence for its class
    read("demo/queried")      what shape is the red object? its pixels are; three other objects say nothing
    read("demo/creatures")    which class has these parts? the pixels of the two parts shown; the body says nothing
    read("demo/reader")       what do the passages say? the words of the answer, where one of them states it

Examples are generated anew on each call and are always the same. None of them was used for training.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType

import numpy as np
from PIL import Image

from whyformer.data.example import Data, Example, WrongOption
from whyformer.demo import creatures, queried, reader, shapes

WORLD_SEED = 17
WORLD_EXAMPLES = 200  # unless a limit is given


def draw_scenes(world: ModuleType, count: int, seed: int) -> Iterator[Example]:
    scenes = world.generate(count, seed)
    return _mark_pixels(scenes.images, (world.CLASSES[i] for i in scenes.labels[:, 0]), scenes.masks[:, 0])


def draw_creatures(count: int, seed: int) -> Iterator[Example]:
    drawn = creatures.generate(count, seed)
    return _mark_pixels(drawn.images, (creatures.CLASSES[i] for i in drawn.labels), drawn.evidence)


def draw_reader(count: int, seed: int) -> Iterator[Example]:
    """Prompts without a label: what the model says next is explained, and the words that state it are marked."""
    for asked in reader.generate(count, seed):
        yield Example("", asked.text, rationale=(asked.evidence_span,))


def _mark_pixels(images: Iterable[np.ndarray], labels: Iterable[str], masks: Iterable[np.ndarray]) -> Iterator[Example]:
    for image, label, mask in zip(images, labels, masks, strict=True):
        yield Example("", Image.fromarray(image), label, mask.astype(np.int64))


WORLDS: dict[str, Callable[[int, int], Iterator[Example]]] = {
    "demo/shapes": partial(draw_scenes, shapes),
    "demo/queried": partial(draw_scenes, queried),
    "demo/creatures": draw_creatures,
    "demo/reader": draw_reader,
}


def read_world(name: str, count: int | None = None) -> Data:
    """`count` examples of a world: images with their class and the pixels that show it, prompts with their evidence."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise WrongOption(f"The number of examples must be a whole number >= 1, got {count!r}.")
    drawn = WORLDS[name](WORLD_EXAMPLES if count is None else count, WORLD_SEED)
    return Data(name, tuple(replace(example, name=f"{name} {i}") for i, example in enumerate(drawn)))
