"""Train the classifier of a world with exact evidence: python training/worlds/train_evidence.py --config
training/worlds/queried.toml --out FOLDER

The worlds are queried scenes (what shape is the red object?) and creatures (which set of parts?). Creatures are shown
with any number of their parts, and the model learns the true probability of each class given the parts it sees.
"""

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import ViTForImageClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_vit_config, save, save_processor, take_step
from train_shapes import PROCESSOR

from whyformer.demo import creatures, queried
from whyformer.demo.painting import SIZE

CLASSES = {"queried": queried.CLASSES, "creatures": creatures.CLASSES}
PARTS = 64  # the images are drawn in so many parts


def draw_queried(seed: int, count: int, patch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, the class as one-hot, and for each patch the share of every shape, with a place for the red one alone."""
    scenes = queried.generate(count, seed)
    shapes = len(queried.CLASSES)
    answer = np.eye(shapes, dtype=np.float32)[scenes.labels[:, 0]]
    named = np.eye(shapes)[scenes.labels]  # image object shape
    red, others = named * (np.arange(queried.OBJECTS) == 0)[:, None], named * (np.arange(queried.OBJECTS) > 0)[:, None]
    shown = share_patches(scenes.masks, np.concatenate([red, others], -1), patch)
    return scenes.images, answer, shown


def draw_creatures(seed: int, count: int, patch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, the true probability of each class, and for each patch the share of every form of every part."""
    drawn = creatures.generate(count, seed, parts=None)
    places = np.arange(len(creatures.PARTS)) * len(creatures.FORMS) + creatures.CLASS_FORMS[drawn.labels]  # image part
    named = np.eye(len(creatures.PARTS) * len(creatures.FORMS))[places]
    return drawn.images, drawn.answers().astype(np.float32), share_patches(drawn.masks, named, patch)


def share_patches(masks: np.ndarray, named: np.ndarray, patch: int) -> np.ndarray:
    """[image row column name] as bytes: how much of each patch shows each name; the last is nothing."""
    count, objects, *_ = masks.shape
    cells = SIZE // patch
    share = masks.reshape(count, objects, cells, patch, cells, patch).mean((3, 5))
    shown = np.einsum("norc,nok->nrck", share, named).clip(0, 1)
    shown = np.concatenate([shown, (1 - shown.sum(-1, keepdims=True)).clip(0)], -1)
    return (255 * shown).round().astype(np.uint8)


DRAW = {"queried": draw_queried, "creatures": draw_creatures}


def draw_examples(world: str, seed: int, count: int, patch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Training images. Seeds are far from those anybody would type."""
    jobs = [(10_000_000 * seed + i, count // PARTS, patch) for i in range(PARTS)]
    with multiprocessing.get_context("fork").Pool() as pool:
        made = pool.starmap(DRAW[world], jobs, chunksize=1)
    return tuple(torch.from_numpy(np.concatenate(column)) for column in zip(*made, strict=True))  # type: ignore[return-value]


def main() -> None:
    arguments, config, log = begin_training(__doc__, None)
    classes = CLASSES[config["world"]]
    images, answers, shown = (
        t.to(device()) for t in draw_examples(config["world"], config["seed"], config["pictures"], config["patch"])
    )
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model = ViTForImageClassification(make_vit_config(config, SIZE, classes)).to(device())
    naming = nn.Linear(config["width"], shown.size(-1)).to(device())  # what does each patch show? Not kept.
    both = nn.ModuleList([model, naming])
    optimizer, average = adamw(both, config["weight_decay"]), Average(model, config["average"])
    log.write(pictures=len(images), parameters=sum(p.numel() for p in model.parameters()))
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(images), (config["batch"],), device=device())
        pixels, patches = images[chosen], shown[chosen]
        if config["mirrored"] and bool(torch.randint(2, ())):
            pixels, patches = pixels.flip(2), patches.flip(2)
        pixels = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        weight = config["patches"] * max(0.0, 1 - schedule.progress * config["patches_fade"])
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            hidden = model.vit(pixel_values=pixels).last_hidden_state
            logits = model.classifier(hidden[:, 0])
            named = naming(hidden[:, 1:]) if weight else None
        loss = cross_entropy(logits.float(), answers[chosen])
        total = loss
        if named is not None:
            total = loss + weight * cross_entropy(named.float().flatten(0, 1), patches.flatten(0, 2).float() / 255)
        take_step(total, both, optimizer, average)
        if schedule.step % config["log"] == 0:
            sure = answers[chosen].amax(-1) == 1
            right = (logits.argmax(-1) == answers[chosen].argmax(-1))[sure].float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, loss=loss, patches=total - loss, accuracy=right)
    average.load_into(model)
    save(model, arguments.out)
    save_processor(PROCESSOR, arguments.out)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
