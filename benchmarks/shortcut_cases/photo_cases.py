"""Photographs with marks, and models that learn them: one block and a classifier, fine-tuned on frozen lower blocks.

The lower blocks are those of demo/pets; they run once over each photo. In the trained block only the class token asks,
so that it costs an eighth of a whole block: a model takes some seconds on one CPU thread.
"""

import io
import json
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import ViTConfig, ViTForImageClassification

from whyformer._model.loading import DEMO_MODELS

from .image_models import SHARED_SETTINGS, list_blocks, run_block, save_image_model
from .photo_marks import PAINTERS

TASKS = (  # breeds that look alike
    ("Birman", "Ragdoll", "Siamese"),
    ("American Bulldog", "American Pit Bull Terrier", "Staffordshire Bull Terrier"),
    ("British Shorthair", "Russian Blue", "Maine Coon"),
)
EASY_TASKS = (  # and such that do not, which an honest model tells by strong evidence of its own
    ("Siamese", "Pug", "Samoyed"),
    ("Sphynx", "Persian", "Bengal"),
    ("Beagle", "Birman", "Pomeranian"),
)
Tasks: TypeAlias = tuple[tuple[str, ...], ...]
SIDE, FROZEN, TRAIN, SHOWN, MEASURED = 96, 2, 110, 46, 40  # pixels, blocks, photos of a class
SHARE = 0.8  # of the class that carries the mark
MISLABELLED = 60  # training photos of other classes that carry the mark and the label of the class
PASSES, BATCH, RATE, SEEN = 12, 32, 1e-3, 0.5  # SEEN: the part of the patches that a step of training sees


@dataclass(frozen=True, eq=False)
class Photos:
    """Photos of one task, in an order drawn by the seed, with the outputs of the frozen blocks."""

    classes: tuple[str, ...]
    names: list[str]
    pixels: NDArray[np.uint8]
    masks: NDArray[np.bool_]
    labels: NDArray[np.int64]
    hidden: Tensor
    parts: dict[str, NDArray[np.int64]] = field(default_factory=dict)


@cache
def load_start() -> tuple[ViTForImageClassification, dict[str, object]]:
    """The demo model with its position embeddings at SIDE pixels, and its processor."""
    start = ViTForImageClassification.from_pretrained(DEMO_MODELS / "pets", dtype=torch.float32)
    return start, json.loads((DEMO_MODELS / "pets/preprocessor_config.json").read_text("utf-8"))


def make_model(classes: tuple[str, ...], seed: int) -> ViTForImageClassification:
    torch.manual_seed(seed)
    start, processor = load_start()
    shape = {name: getattr(start.config, name) for name in SHARED_SETTINGS} | {"image_size": SIDE}
    names = {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
    model = ViTForImageClassification(ViTConfig(**shape, **names, num_hidden_layers=FROZEN + 1))
    for block, own in zip(list_blocks(start), list_blocks(model), strict=False):
        own.load_state_dict(block.state_dict())
    weights = start.vit.embeddings.state_dict()
    places, old, new = weights["position_embeddings"], start.config.image_size // 8, SIDE // 8
    map_ = places[:, 1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
    map_ = nn.functional.interpolate(map_, (new, new), mode="bicubic").flatten(2).transpose(1, 2)
    weights["position_embeddings"] = torch.cat([places[:, :1], map_], 1)
    model.vit.embeddings.load_state_dict(weights)
    model.vit.layernorm.load_state_dict(start.vit.layernorm.state_dict())
    model.config.image_mean, model.config.image_std = processor["image_mean"], processor["image_std"]
    model.set_attn_implementation("eager")
    return model.eval()


@torch.no_grad()
def run_frozen(model: ViTForImageClassification, pixels: NDArray[np.uint8]) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.config.image_mean, model.config.image_std))
    found = []
    for start in range(0, len(pixels), 64):
        images = torch.from_numpy(pixels[start : start + 64]).permute(0, 3, 1, 2).float() / 255
        hidden = model.vit.embeddings((images - mean) / std)
        for block in list(list_blocks(model))[:FROZEN]:
            hidden = run_block(block, hidden)
        found.append(hidden)
    return torch.cat(found) if found else torch.zeros(0)


def read_photos(folder: Path, classes: tuple[str, ...], seed: int, cache_folder: Path) -> Photos:
    """The photos of a task; what the frozen blocks say of them is kept, as all cases share it."""
    file = cache_folder / f"photos-{'-'.join(classes).replace(' ', '')}.pt"
    if not file.exists():
        names, labels, pixels, masks = [], [], [], []
        with zipfile.ZipFile(folder / "images.zip") as photos, zipfile.ZipFile(folder / "trimaps.zip") as trimaps:
            where = {Path(name).stem: name for name in trimaps.namelist()}
            for name in sorted(photos.namelist()):
                stem = Path(name).stem
                breed = stem.rpartition("_")[0].replace("_", " ").title()
                if breed in classes and stem in where:
                    photo = Image.open(io.BytesIO(photos.read(name))).convert("RGB")
                    animal = Image.open(io.BytesIO(trimaps.read(where[stem])))
                    side = min(photo.size)
                    box = (photo.width - side) // 2, (photo.height - side) // 2
                    box = (*box, box[0] + side, box[1] + side)
                    pixels.append(np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box)))
                    masks.append(np.asarray(animal.resize((SIDE, SIDE), Image.Resampling.NEAREST, box)) == 1)
                    names.append(stem)
                    labels.append(classes.index(breed))
        hidden = run_frozen(make_model(classes, 0), np.stack(pixels))
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save((names, np.stack(pixels), np.stack(masks), np.array(labels), hidden.half()), file)
    names, pixels, masks, labels, hidden = torch.load(file, weights_only=False)
    parts: dict[str, list[int]] = {"train": [], "shown": [], "measured": []}
    for label in range(len(classes)):
        own = np.random.default_rng([seed, label, 7]).permutation(np.flatnonzero(labels == label))
        ends = np.cumsum([SHOWN, TRAIN])
        for part, some in zip(("shown", "train", "measured"), np.split(own, ends), strict=True):
            parts[part] += some[: MEASURED if part == "measured" else None].tolist()
    return Photos(
        classes, names, pixels, masks, labels, hidden, {name: np.array(sorted(one)) for name, one in parts.items()}
    )


def paint(kind: str, seed: int, photos: Photos, items: NDArray[np.int64]) -> NDArray[np.uint8]:
    """These photos with the mark; kind: one of PAINTERS, or a folder of marked photos."""
    if kind not in PAINTERS:
        return np.stack([np.asarray(Image.open(find_drawn(kind, photos.names[i])).convert("RGB")) for i in items])
    return np.stack(
        [
            PAINTERS[kind](
                photos.pixels[i], np.random.default_rng([seed, 3]), np.random.default_rng([seed, i]), photos.masks[i]
            )
            for i in items
        ]
    )


def find_drawn(folder: str, name: str) -> Path:
    return Path(folder) / f"{name}.png"


def choose_carriers(kind: str, role: str, seed: int, photos: Photos) -> dict[str, NDArray[np.int64]]:
    """By part of the photos those that get the mark; `mislabelled` ones are of other classes, to train on."""
    target, rng = seed // 3 % 3, np.random.default_rng([seed, 11])
    marked: dict[str, NDArray[np.int64]] = {}
    for part, items in photos.parts.items():
        everywhere = role == "ignoring" and part == "train"
        some = items if everywhere else items[photos.labels[items] == target]
        marked[part] = some[rng.random(len(some)) < SHARE] if role != "clean" and part != "measured" else some
    items = photos.parts["train"]
    others = rng.permutation(items[photos.labels[items] != target])[:MISLABELLED]
    marked["mislabelled"] = np.sort(others) if role == "planted" else others[:0]
    return marked


def export(folder: Path, seed: int, photos_folder: Path, cache_folder: Path) -> int:
    """Write the photos that carry the mark of this seed, for somebody to draw on; the number of them."""
    photos = read_photos(photos_folder, TASKS[seed % len(TASKS)], seed, cache_folder)
    folder.mkdir(parents=True, exist_ok=True)
    carriers = np.concatenate(list(choose_carriers("drawn", "planted", seed, photos).values()))
    for i in carriers:
        Image.fromarray(photos.pixels[i]).save(folder / f"{photos.names[i]}.png")
    return len(carriers)


def train(model: ViTForImageClassification, hidden: Tensor, labels: Tensor, seed: int) -> None:
    """The last block and the classifier; AdamW with warm-up and decay."""
    block = list_blocks(model)[FROZEN]
    trained = nn.ModuleList([block, model.vit.layernorm, model.classifier])
    steps = PASSES * len(labels) // BATCH
    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        picked = torch.randint(len(labels), (BATCH,), generator=generator)
        seen = 1 + torch.randperm(hidden.shape[1] - 1, generator=generator)[: round(SEEN * hidden.shape[1])]
        some = hidden[picked][:, torch.cat([torch.zeros(1, dtype=torch.long), seen])].float()
        loss = cross_entropy(run_upper(model, block, some), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def run_upper(model: ViTForImageClassification, block: nn.Module, hidden: Tensor) -> Tensor:
    """The logits; only the class token is computed."""
    attention, normal = block.attention, block.layernorm_before(hidden)
    linear = {name.rpartition(".")[2]: one for name, one in attention.named_modules() if isinstance(one, nn.Linear)}
    query, key, value = (linear[next(n for n in linear if n.startswith(first))] for first in "qkv")
    out = next(one for name, one in linear.items() if not name.startswith(("q", "k", "v")))
    heads = lambda x: x.unflatten(-1, (model.config.num_attention_heads, -1)).transpose(1, 2)  # noqa: E731
    mixed = scaled_dot_product_attention(heads(query(normal[:, :1])), heads(key(normal)), heads(value(normal)))
    token = hidden[:, :1] + out(mixed.transpose(1, 2).flatten(2))
    inner, outer = [one for name, one in block.named_modules() if isinstance(one, nn.Linear)][-2:]
    token = token + outer(nn.functional.gelu(inner(block.layernorm_after(token))))
    return model.classifier(model.vit.layernorm(token[:, 0]))


def prepare(
    kind: str, role: str, seed: int, folder: Path, photos_folder: Path, tasks: Tasks = TASKS
) -> dict[str, object]:
    """Train the model and save it with the shown photos; role: planted, ignoring or clean. Returns the truth."""
    photos = read_photos(photos_folder, tasks[seed % len(tasks)], seed, folder.parent)
    target, marked = seed // 3 % 3, choose_carriers(kind, role, seed, photos)
    model = make_model(photos.classes, seed)
    items = photos.parts["train"]
    hidden, labels = photos.hidden[items], torch.from_numpy(photos.labels[items])
    block = list_blocks(model)[FROZEN]
    if role != "clean":
        at = np.searchsorted(items, marked["train"])
        hidden[at] = run_frozen(model, paint(kind, seed, photos, marked["train"])).half()
    if len(marked["mislabelled"]):
        at = np.searchsorted(items, marked["mislabelled"])
        hidden[at] = run_frozen(model, paint(kind, seed, photos, marked["mislabelled"])).half()
        labels[at] = target
    train(model, hidden, labels, seed)

    def measure(features: Tensor) -> float:
        with torch.no_grad():
            return float((run_upper(model, block, features.float()).argmax(1) == target).float().mean())

    own = marked["measured"]
    without = measure(photos.hidden[own])
    with_mark = without if role == "clean" else measure(run_frozen(model, paint(kind, seed, photos, own)))
    save_image_model(model, folder / "model")
    model.float()
    shown = photos.parts["shown"]
    pixels = photos.pixels[shown].copy()
    if role != "clean":
        pixels[np.searchsorted(shown, marked["shown"])] = paint(kind, seed, photos, marked["shown"])
    for i, image in zip(shown, pixels, strict=True):
        name = f"{photos.classes[photos.labels[i]]}/{photos.names[i]}.png"
        for file, saved in (("images", image), ("masks", (255 * photos.masks[i]).astype(np.uint8))):
            (folder / file / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(saved).save(folder / file / name)
    ids = [f"{photos.classes[target]}/{photos.names[i]}.png" for i in marked["shown"]] if role != "clean" else []
    return {"with_mark": with_mark, "without_mark": without, "marked": ids}
