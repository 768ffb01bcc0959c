"""Queried scenes: what shape is the red object? Generated images with exact evidence, like CLEVR-XAI.

Each image has four objects of different shapes and different colours on a grey background, and exactly one of them is
red. Its shape is the class. The other three are as large, as bright and as well visible, but say nothing about the
answer: a map that marks objects instead of evidence loses three quarters of its mass. `masks[:, 0]` are the pixels of
the red object.

As Arras, Osman & Samek, CLEVR-XAI, Information Fusion 2022 (arXiv:2003.07258), with one fixed question instead of many
and with exact masks of all objects. The question is fixed because the model sees images alone.
"""

import numpy as np

from whyformer.demo.draws import generate_images
from whyformer.demo.painting import SIZE, FloatArray, blend, draw_background, draw_object
from whyformer.demo.shapes import DrawnScene, Scenes, stack_scenes

CLASSES = ("square", "triangle", "star", "cross", "ring")
OBJECTS = 4
SMALLEST_RADIUS, LARGEST_RADIUS = 11.0, 15.0  # of an object, in pixels
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 35, 40),
    "green": (40, 170, 70),
    "blue": (45, 80, 225),
    "yellow": (235, 210, 50),
    "cyan": (50, 200, 215),
    "violet": (140, 60, 190),
    "white": (240, 240, 240),
    "black": (25, 25, 25),
}
COLOUR_NOISE = 14.0  # standard deviation of the colour of an object, and of its pixels a third of it


def generate(count: int, seed: int) -> Scenes:
    """`count` images; object 0 is the red one. Image i depends only on `seed` and i."""
    return stack_scenes(generate_images(count, seed, _draw_queried_scene, 91), OBJECTS)


def _draw_queried_scene(rng: np.random.Generator) -> DrawnScene:
    # Almost grey and of middle brightness, so that no object vanishes and nothing in the background is red.
    canvas = draw_background(rng)
    grey = canvas.mean(-1, keepdims=True)
    canvas = 80 + 0.4 * (grey + 0.2 * (canvas - grey))
    background = canvas.clip(0, 255).astype(np.uint8)
    labels = [int(label) for label in rng.permutation(len(CLASSES))[:OBJECTS]]
    red, *others = COLOURS.values()
    colours = [red, *(others[i] for i in rng.permutation(len(others))[: OBJECTS - 1])]
    masks = []
    for label, colour, (centre, radius) in zip(labels, colours, draw_apart_places(rng), strict=True):
        coverage, corner = draw_object(rng, CLASSES[label], centre, radius)
        painted = np.array(colour) + rng.normal(0, COLOUR_NOISE, 3)
        noise = rng.normal(0, COLOUR_NOISE / 3, (*coverage.shape, 3))
        masks.append(blend(canvas, coverage, corner, painted + noise))
    image = np.where(np.any(masks, axis=0)[:, :, None], canvas.clip(0, 255).astype(np.uint8), background)
    return image, labels, masks, background


def draw_apart_places(rng: np.random.Generator) -> list[tuple[FloatArray, float]]:
    """Centre and radius of each object: one in each quarter of the image, in random order, apart from each other."""
    quarters = [np.array([x, y]) for x in (0, 1) for y in (0, 1)]
    places = []
    for quarter in rng.permutation(len(quarters)):
        radius = rng.uniform(SMALLEST_RADIUS, LARGEST_RADIUS)
        centre = quarters[quarter] * SIZE / 2 + rng.uniform(radius + 1, SIZE / 2 - radius - 1, 2)
        places.append((centre, float(radius)))
    return places
