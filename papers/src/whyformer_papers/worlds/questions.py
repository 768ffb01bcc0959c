"""Questions: generated images of two coloured shapes, and a question about one of them.

The images are those of the world of captions. A question names one object by its shape and asks for its colour, or
names it by its colour and asks for its shape. So the evidence for the answer is known on both sides: in the image the
pixels of that object (`masks`), in the question the word that names it (`word`); the other object is a decoy.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whyformer.demo.draws import draw_index, pick
from whyformer_papers.worlds import captions

SIZE = captions.SIZE
QUESTIONS = {
    "colour": (
        "what colour is the {} ?",
        "which colour does the {} have ?",
        "look at the {} and name its colour :",
        "please tell me the colour of the {} .",
        "here is a {} , and its colour is",
    ),
    "shape": (
        "what shape is the {} thing ?",
        "which shape does the {} thing have ?",
        "look at the {} thing and name its shape :",
        "please tell me the shape of the {} thing .",
        "here is a {} thing , and its shape is",
    ),
}
ANSWERS = (*captions.COLOURS, *captions.SHAPES)
VOCABULARY = tuple(
    dict.fromkeys([*" ".join(" ".join(asked) for asked in QUESTIONS.values()).replace("{}", "").split(), *ANSWERS])
)


@dataclass(frozen=True)
class Question:
    """A question about one of the two objects of an image, and what decides its answer."""

    text: str
    answer: str
    decoy: str  # the answer if it were about the other object
    asked: int  # the object, 0 or 1
    word: str  # of the text: what names the object

    @property
    def position(self) -> int:
        """The number of the word in the text."""
        return self.text.split().index(self.word)


@dataclass(frozen=True, eq=False)
class AskedScenes:
    """Generated images, a question about one object of each, and the ground truth."""

    images: NDArray[np.uint8]  # image height width channel
    labels: NDArray[np.int64]  # image object: indices into captions.NAMES
    masks: NDArray[np.bool_]  # image object height width
    questions: tuple[Question, ...]

    def __len__(self) -> int:
        return len(self.images)


def generate(count: int, seed: int) -> AskedScenes:
    """`count` images of two objects with a question; image and question i depend only on `seed` and i."""
    scenes = captions.generate(count, seed)
    questions = tuple(ask(labels, random.Random(f"questions {seed} {i}")) for i, labels in enumerate(scenes.labels))
    return AskedScenes(scenes.images, scenes.labels, scenes.masks, questions)


def ask(labels: NDArray[np.int64], rng: random.Random) -> Question:
    """A question about one of these two objects, in one of several wordings."""
    asked, kind = draw_index(rng, 2), pick(rng, tuple(QUESTIONS))
    colours, shapes = zip(*(captions.NAMES[label].split() for label in labels), strict=True)
    names, answers = (shapes, colours) if kind == "colour" else (colours, shapes)
    text = pick(rng, QUESTIONS[kind]).format(names[asked])
    return Question(text, answers[asked], answers[1 - asked], asked, names[asked])
