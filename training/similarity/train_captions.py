"""Train the tiny CLIP of the captions world: python training/similarity/train_captions.py --out FOLDER

An image is compared with a caption of every object there is; the captions of its two objects share the probability. For
the first half of the training, every patch is also asked what it shows, by a head that is not kept.
"""

import random
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CLIPConfig, CLIPModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, save, save_processor, save_tokenizer, take_step
from words import SETTINGS, make_word_tokenizer

from whyformer_papers.worlds import captions

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


def name_patches(scenes: captions.CaptionedScenes, patch: int) -> Tensor:
    """[image row column]: the object that covers most of each patch, or the last class if none covers a fifth."""
    cells = captions.SIZE // patch
    share = torch.from_numpy(scenes.masks).reshape(len(scenes), 2, cells, patch, cells, patch).float().mean((3, 5))
    most, which = share.max(1)
    labels = torch.from_numpy(scenes.labels)[:, :, None, None].expand(share.shape).gather(1, which[:, None])[:, 0]
    return torch.where(most > 0.2, labels, len(captions.NAMES))


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("captions.toml"))
    torch.set_num_threads(1)
    rng = random.Random(config["seed"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    scenes = captions.generate(config["images"], TRAINING_SEED * config["seed"])
    images, labels = torch.from_numpy(scenes.images), torch.from_numpy(scenes.labels)
    shown = name_patches(scenes, config["patch"])
    log.write(images=len(images), seconds=schedule.elapsed)
    tokenizer = make_word_tokenizer(captions.VOCABULARY)
    model = make_model(config, tokenizer.get_vocab_size())
    naming = nn.Linear(config["width"], len(captions.NAMES) + 1)
    both = nn.ModuleList([model, naming])
    optimizer, average = adamw(both, config["weight_decay"]), Average(model, config["average"])
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(images), (config["batch"],))
        pixels, patches = images[chosen].permute(0, 3, 1, 2).float() / 127.5 - 1, shown[chosen]
        encoded = tokenizer.encode_batch([captions.write_caption(i, rng) for i in range(len(captions.NAMES))])
        ids, mask = (torch.tensor([getattr(e, name) for e in encoded]) for name in ("ids", "attention_mask"))
        answer = model(pixel_values=pixels, input_ids=ids, attention_mask=mask)
        logits, states = answer.logits_per_image, answer.vision_model_output.last_hidden_state
        shares = torch.zeros_like(logits).scatter_(1, labels[chosen], 0.5)
        loss = cross_entropy(logits, shares)
        weight = config["patches"] * max(0.0, 1 - 2 * schedule.progress)
        named = cross_entropy(naming(states[:, 1:]).flatten(0, 1), patches.flatten())
        take_step(loss + weight * named, both, optimizer, average)
        if schedule.step % 200 == 0:
            right = (logits.topk(2).indices.sort(-1).values == labels[chosen].sort(-1).values).all(-1).float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, loss=loss, patches=named, both_right=right)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(tokenizer, arguments.out, model_max_length=config["longest"], **SETTINGS)
    save_processor(PROCESSOR, arguments.out)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
