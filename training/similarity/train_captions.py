"""Train the tiny CLIP of the captions world: python training/similarity/train_captions.py --out FOLDER

An image is compared with a caption of every object there is; the captions of its two objects share the probability.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import CLIPConfig, CLIPModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Log, Schedule, adamw, read_config, save, save_tokenizer
from words import SETTINGS, make_tokenizer

from whyformer.demo import captions

PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": captions.SIZE, "width": captions.SIZE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
TRAINING_SEED = 10_000_000  # times the seed of the config: far from those anybody would type


def make_model(config: dict, vocabulary: int) -> CLIPModel:
    size = {
        "hidden_size": config["width"],
        "intermediate_size": 4 * config["width"],
        "num_attention_heads": config["heads"],
        "projection_dim": config["projection"],
    }
    text = size | {
        "num_hidden_layers": config["text_blocks"],
        "vocab_size": vocabulary,
        "max_position_embeddings": config["longest"],
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    vision = size | {
        "num_hidden_layers": config["blocks"],
        "image_size": captions.SIZE,
        "patch_size": config["patch"],
    }
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=config["projection"]))


def turn(pixels: Tensor) -> Tensor:
    """One of the eight symmetries of the square for the whole batch: no caption depends on it."""
    pixels = pixels.rot90(int(torch.randint(4, ())), (2, 3))
    return pixels.flip(3) if bool(torch.randint(2, ())) else pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("captions.toml"))
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    log = Log(arguments.out / "training.jsonl")
    log.write(config=config, torch=torch.__version__)

    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    rng = random.Random(config["seed"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    scenes = captions.generate(config["images"], TRAINING_SEED * config["seed"])
    images, labels = torch.from_numpy(scenes.images), torch.from_numpy(scenes.labels)
    log.write(images=len(images), seconds=schedule.elapsed)
    tokenizer = make_tokenizer(captions.list_words())
    model = make_model(config, tokenizer.get_vocab_size())
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(images), (config["batch"],))
        pixels = turn(images[chosen].permute(0, 3, 1, 2).float() / 127.5 - 1)
        encoded = tokenizer.encode_batch([captions.write_caption(i, rng) for i in range(len(captions.NAMES))])
        ids, mask = (torch.tensor([getattr(e, name) for e in encoded]) for name in ("ids", "attention_mask"))
        logits = model(pixel_values=pixels, input_ids=ids, attention_mask=mask).logits_per_image
        shares = torch.zeros_like(logits).scatter_(1, labels[chosen], 0.5)
        loss = cross_entropy(logits, shares)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update()
        if schedule.step % 200 == 0:
            right = (logits.topk(2).indices.sort(-1).values == labels[chosen].sort(-1).values).all(-1).float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, both_right=right)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(tokenizer, arguments.out, model_max_length=config["longest"], **SETTINGS)
    (arguments.out / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=2) + "\n", "utf-8")
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
