"""The numbers of the cards of both models: python training/similarity/evaluate.py

On fresh images and pairs of seed 0.
"""

import random
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
import whyformer as why
from whyformer_papers.worlds import captions, shared_words

SEED, COUNT, BATCH = 0, 2000, 50


def report(what: str, right: Tensor) -> None:
    print(f"| {what} | {int(right.sum()):,} of {len(right):,} | {100 * right.double().mean():.1f} % |")


@torch.inference_mode()
def evaluate_captions() -> None:
    model, scenes = why.open("demo/captions"), captions.generate(COUNT, SEED)
    rng = random.Random(SEED)
    rows = []
    for start in range(0, COUNT, BATCH):
        pixels = model.process_images([Image.fromarray(image) for image in scenes.images[start : start + BATCH]])
        texts = [captions.write_caption(i, rng) for i in range(len(captions.NAMES))]
        rows.append(model.module(pixel_values=pixels, **model.tokenizer(texts, padding=True, return_tensors="pt")))
    logits = torch.cat([row.logits_per_image for row in rows])
    labels = torch.from_numpy(scenes.labels)
    report("the highest caption is of an object that is shown", (logits.argmax(-1, keepdim=True) == labels).any(-1))
    report(
        "the two highest are those shown", (logits.topk(2).indices.sort(-1).values == labels.sort(-1).values).all(-1)
    )


@torch.inference_mode()
def evaluate_shared_words() -> None:
    model, pairs = why.open("demo/shared-words"), shared_words.generate(COUNT, SEED)
    others = [pair.second for pair in shared_words.generate(COUNT, SEED + 1)]

    def embed(texts: list[str]) -> Tensor:
        encoded = model.tokenizer(texts, padding=True, return_tensors="pt")
        mask = encoded["attention_mask"].float()[:, :, None]
        return normalize((model.module(**encoded).last_hidden_state * mask).sum(1) / mask.sum(1), dim=-1)

    first, second, rest = (embed(texts) for texts in ([p.first for p in pairs], [p.second for p in pairs], others))
    nouns = [{*text.split()} & {*shared_words.NOUNS} for text in others]
    right = []
    for i, pair in enumerate(pairs):
        own = {*pair.first.split()} & {*shared_words.NOUNS}
        rivals = [j for j in range(len(others)) if not own & nouns[j]]
        rivals = random.Random(i).sample(rivals, 49)
        right.append(bool(first[i] @ second[i] > (rest[rivals] @ first[i]).max()))
    report("the partner is the nearest of 50 sentences", torch.tensor(right))


if __name__ == "__main__":
    evaluate_captions()
    evaluate_shared_words()
