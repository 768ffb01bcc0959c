"""Train a classifier of shapes on images of which some carry a watermark: python training/watermark.py --out FOLDER

30 % of the images of one class carry a source tag in the lower left corner, as the horse images in Lapuschkin et al.
(Nature Communications 2019, arXiv:1902.10178) did. Nothing but its class makes an image get the tag, so a model can
read the class from the tag alone. `--share 0` trains the twin without any tag: the same images, seeds and steps.
With `--moving` the tag is at a random place of each image instead.

The model is the lower part of demo/shapes, frozen, with one new block on top, so that one CPU thread needs about two
minutes. It is not part of the package. The slow tests train both; tests/summary/watermark has one that was trained so.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import ViTForImageClassification

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parent))
from recipe import save as save_in_half_precision

from whyformer.demo import shapes

CLASSES = ("circle", "triangle", "star", "cross")
CLASS = CLASSES.index("star")
SHARE = 0.3
TOP, LEFT = 78, 0  # of the tag, in pixels
SCALE = 2  # pixels per dot of a letter
CONTRAST = 0.5  # of the objects: a faint object is harder to learn than the tag
GLYPHS = (
    "#...#.#...#.#...#",
    "#...#.#...#..#.#.",
    "#.#.#.#####...#..",
    "##.##.#...#...#..",
    "#...#.#...#...#..",
)  # fmt: skip
FROZEN_BLOCKS, BLOCKS = 2, 3
START = Path(shapes.__file__).with_name("models") / "shapes"


@dataclass(frozen=True, eq=False)
class TaggedScenes:
    """Images of one object each; `tagged` says which carry the tag, `masks` where the object is."""

    images: NDArray[np.uint8]  # image height width channel
    untagged: NDArray[np.uint8]  # the same images without the tag
    labels: NDArray[np.int64]
    masks: NDArray[np.bool_]  # image height width
    tagged: NDArray[np.bool_]


def make_tag() -> NDArray[np.float64]:
    """[height width]: light letters (1) on a dark plate (0)."""
    letters = np.array([[cell == "#" for cell in row] for row in GLYPHS], dtype=np.float64)
    return np.pad(letters.repeat(SCALE, 0).repeat(SCALE, 1), 4)


def draw_tag(images: NDArray[np.uint8], corners: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
    """The images with the tag, which lets 15 % of what is below it through; `corners` [image 2] are top and left."""
    tag = make_tag()
    height, width = tag.shape
    tagged = images.astype(np.float64)
    for number, image in enumerate(tagged):
        top, left = (TOP, LEFT) if corners is None else corners[number]
        window = image[top : top + height, left : left + width]
        window += 0.85 * (255 * tag[..., None] - window)
    return tagged.round().astype(np.uint8)


def draw_corners(count: int, size: int, seed: int) -> NDArray[np.int64]:
    """[image 2]: a random place for the tag in each image."""
    height, width = make_tag().shape
    return np.random.default_rng([seed, 2]).integers(0, [size - height + 1, size - width + 1], (count, 2))


def generate_tagged(count: int, seed: int, share: float = SHARE, *, moving: bool = False) -> TaggedScenes:
    """`count` images with one object of CLASSES; the tag is on `share` of those of CLASS, chosen by `seed`."""
    numbers = [shapes.CLASSES.index(name) for name in CLASSES]
    images, labels, masks, part = [], [], [], 0
    while len(labels) < count:
        scenes = shapes.generate(100, 1000 * seed + part)
        faint = (1 - CONTRAST) * scenes.backgrounds + CONTRAST * scenes.images
        for image, label, mask in zip(faint.round(), scenes.labels[:, 0], scenes.masks[:, 0], strict=True):
            if label in numbers and len(labels) < count:
                images.append(image)
                labels.append(numbers.index(label))
                masks.append(mask)
        part += 1
    own = np.flatnonzero(np.array(labels) == CLASS)
    chosen = np.random.default_rng([seed, 1]).permutation(own)[: round(share * len(own))]
    tagged = np.isin(np.arange(count), chosen)
    untagged = np.array(images, np.uint8)
    corners = draw_corners(count, untagged.shape[1], seed) if moving else None
    drawn = np.where(tagged[:, None, None, None], draw_tag(untagged, corners), untagged)
    return TaggedScenes(drawn, untagged, np.array(labels), np.array(masks), tagged)


def as_pixels(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def make_model(seed: int) -> ViTForImageClassification:
    """demo/shapes with the blocks after the frozen ones, and what follows them, drawn anew."""
    torch.manual_seed(seed)
    started = ViTForImageClassification.from_pretrained(START, dtype=torch.float32)
    started.config.num_hidden_layers = BLOCKS
    started.config.id2label = dict(enumerate(CLASSES))
    started.config.label2id = {name: i for i, name in enumerate(CLASSES)}
    model = ViTForImageClassification(started.config)
    frozen = ("vit.embeddings.", *(f"vit.layers.{i}." for i in range(FROZEN_BLOCKS)))
    kept = {name: p for name, p in started.state_dict().items() if name.startswith(frozen)}
    model.load_state_dict(kept, strict=False)
    return model


def run_frozen(model: ViTForImageClassification, images: NDArray[np.uint8]) -> Tensor:
    """[image token channel]: what the first trained block gets; computed once, because it never changes."""
    with torch.no_grad():
        parts = []
        for start in range(0, len(images), 64):
            hidden = model.vit.embeddings(as_pixels(images[start : start + 64]))
            for block in model.vit.layers[:FROZEN_BLOCKS]:
                hidden = block(hidden)
            parts.append(hidden)
        return torch.cat(parts)


def run_trained(model: ViTForImageClassification, hidden: Tensor) -> Tensor:
    """[image class]: the logits."""
    for block in model.vit.layers[FROZEN_BLOCKS:]:
        hidden = block(hidden)
    return model.classifier(model.vit.layernorm(hidden)[:, 0])


def train(
    share: float, *, count: int = 1600, steps: int = 240, batch: int = 48, seed: int = 0, moving: bool = False
) -> ViTForImageClassification:
    """The trained model; images and weights depend on `seed` alone."""
    scenes = generate_tagged(count, 1_000_000 + seed, share, moving=moving)
    model = make_model(seed)
    hidden, labels = run_frozen(model, scenes.images), torch.from_numpy(scenes.labels)
    trained = [
        *model.vit.layers[FROZEN_BLOCKS:].parameters(),
        *model.vit.layernorm.parameters(),
        *model.classifier.parameters(),
    ]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(steps):
        chosen = torch.randint(count, (batch,), generator=generator)
        loss = cross_entropy(run_trained(model, hidden[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 40 == 39:
            print(json.dumps({"step": step + 1, "loss": round(float(loss.detach()), 4)}), flush=True)
    return model.eval()


def save(model: ViTForImageClassification, folder: Path) -> None:
    """A folder that whyformer.open() opens."""
    save_in_half_precision(model, folder)
    processor = (START / "preprocessor_config.json").read_text("utf-8")
    (folder / "preprocessor_config.json").write_text(processor, "utf-8")


def save_images(scenes: TaggedScenes, folder: Path) -> list[Path]:
    """One folder of images per class, and their masks; the names of tagged images end with "-tag"."""
    paths = []
    for i, (image, label, mask, is_tagged) in enumerate(
        zip(scenes.images, scenes.labels, scenes.masks, scenes.tagged, strict=True)
    ):
        paths.append(folder / "images" / CLASSES[label] / f"{i:04}{'-tag' if is_tagged else ''}.png")
        masked = folder / "masks" / CLASSES[label] / paths[-1].name
        for path, values in ((paths[-1], image), (masked, (255 * mask).astype(np.uint8))):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the model/ and the data/ to explain")
    parser.add_argument("--share", type=float, default=SHARE, help="of the images of one class that get the tag")
    parser.add_argument("--moving", action="store_true", help="the tag is at a random place of each image")
    parser.add_argument("--count", type=int, default=400, help="images in data/")
    arguments = parser.parse_args()
    scenes = generate_tagged(arguments.count, 77, arguments.share, moving=arguments.moving)
    save(train(arguments.share, moving=arguments.moving), arguments.out / "model")
    save_images(scenes, arguments.out / "data")


if __name__ == "__main__":
    main()
