"""Generated data: scenes in which every pixel of the object is known, and pairs of texts with known evidence."""

from PIL import Image

from whyformer._model.text import TextPair
from whyformer.data import Data, Example
from whyformer.demo import entailment, shapes

SCENE_SEED = 17
PAIR_SEED = 17


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


def make_entailment_examples(count: int, seed: int = PAIR_SEED) -> Data:
    """Premises and hypotheses whose evidence is known in both texts, for demo/entailment."""
    examples = (
        Example(f"pair {i}", TextPair(*pair.texts), pair.label, rationale=pair.rationale)
        for i, pair in enumerate(entailment.generate(count, seed))
    )
    return Data(f"generated entailment (seed {seed})", tuple(examples))
