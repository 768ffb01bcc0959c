"""Train the classifier of the shapes world: python training/worlds/train_shapes.py --out FOLDER"""

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import ViTForImageClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_vit_config, save, save_processor, take_step

from whyformer.demo import shapes

PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": shapes.SIZE, "width": shapes.SIZE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CLASSES = len(shapes.CLASSES)


def pictures(seed: int, count: int, objects: int, patch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, the share of each class in each picture, and in each patch as bytes, where the last class is none."""
    scenes = shapes.generate(count, seed, objects=objects)
    classes = np.eye(CLASSES, dtype=np.float32)[scenes.labels].mean(1)
    cells = shapes.SIZE // patch
    share = scenes.masks.reshape(count, objects, cells, patch, cells, patch).mean((3, 5))  # picture object row column
    shown = np.einsum("norc,nok->nrck", share, np.eye(CLASSES)[scenes.labels])
    shown = np.concatenate([shown, 1 - shown.sum(-1, keepdims=True)], -1)
    return scenes.images, classes, (255 * shown).round().astype(np.uint8)


def examples(seed: int, counts: list[int], patch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Training pictures with one, two and three objects. Seeds are far from those anybody would type."""
    parts = 32
    jobs = [
        (10_000_000 * seed + i, count // parts, objects, patch)
        for objects, count in enumerate(counts, start=1)
        for i in range(parts)
    ]
    with multiprocessing.get_context("fork").Pool() as pool:
        made = pool.starmap(pictures, jobs, chunksize=1)
    return tuple(torch.from_numpy(np.concatenate(column)) for column in zip(*made, strict=True))  # type: ignore[return-value]


def turned(pixels: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """One of the eight symmetries of the square, drawn once for the whole batch: no class depends on it."""
    quarter, mirrored = int(torch.randint(4, ())), bool(torch.randint(2, ()))
    pixels, patches = pixels.rot90(quarter, (1, 2)), patches.rot90(quarter, (1, 2))
    return (pixels.flip(2), patches.flip(2)) if mirrored else (pixels, patches)


def shared(logits: Tensor, classes: Tensor) -> Tensor:
    """The classes shown share the probability: their logits depend on each other."""
    return cross_entropy(logits, classes)


def each(logits: Tensor, classes: Tensor) -> Tensor:
    """Each class is shown or not, whatever else is: its logit has to depend on its own object alone."""
    return binary_cross_entropy_with_logits(logits, (classes > 0).float()) * CLASSES


def main() -> None:
    arguments, config, log = begin_training(
        __doc__, Path(__file__).with_name("shapes.toml"), start="a model to go on from"
    )
    schedule = Schedule(
        config["peak"], config["warmup"], config["steps"], config["seconds"]
    )  # making the pictures counts
    images, classes, shown = (t.to(device()) for t in examples(config["seed"], config["pictures"], config["patch"]))
    log.write(pictures=len(images), seconds=schedule.elapsed)
    model = ViTForImageClassification(
        make_vit_config(config, shapes.SIZE, shapes.CLASSES, dropout=config["dropout"])
    ).to(device())
    if arguments.start is not None:
        began = ViTForImageClassification.from_pretrained(arguments.start, dtype=torch.float32)
        model.load_state_dict(began.state_dict())
    naming = nn.Linear(config["width"], CLASSES + 1).to(device())  # what does each patch show? Not kept.
    both = nn.ModuleList([model, naming])
    optimizer, average = adamw(both, config["weight_decay"]), Average(model, config["average"])
    losses = {"shared": shared, "each": each}
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(images), (config["batch"],), device=device())
        pixels, patches = turned(images[chosen], shown[chosen])
        pixels = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        weight = config["patches"] * max(0.0, 1 - schedule.progress * config["patches_fade"])
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            hidden = model.vit(pixel_values=pixels).last_hidden_state
            logits = model.classifier(hidden[:, 0])
            named = naming(hidden[:, 1:]) if weight else None
        loss = losses[config["answer"]](logits.float(), classes[chosen])
        total = loss
        if named is not None:
            total = loss + weight * cross_entropy(named.float().flatten(0, 1), patches.flatten(0, 2).float() / 255)
        take_step(total, both, optimizer, average)
        if schedule.step % config["log"] == 0:
            alone = classes[chosen].amax(-1) == 1
            right = (logits.argmax(-1) == classes[chosen].argmax(-1))[alone].float().mean()
            log.write(
                step=schedule.step,
                seconds=schedule.elapsed,
                rate=schedule.rate,
                loss=loss,
                patches=total - loss,
                accuracy=right,
            )
        if schedule.step % (5 * config["log"]) == 0:
            save(model, arguments.out)
            save_processor(PROCESSOR, arguments.out)
    average.load_into(model)
    save(model, arguments.out)
    save_processor(PROCESSOR, arguments.out)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
