"""The numbers on the cards of demo/queried and demo/creatures: python training/worlds/evaluate_evidence.py"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
import whyformer as why
from whyformer.demo import creatures, queried

SEED = 5


def compute_probabilities(name: str, images: np.ndarray) -> np.ndarray:
    model = why.open(name).module
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.inference_mode():
        return torch.cat([model(pixel_values=batch).logits.softmax(-1) for batch in pixels.split(50)]).numpy()


def evaluate_queried(count: int = 500) -> None:
    scenes = queried.generate(count, SEED)
    own = np.arange(count), scenes.labels[:, 0]
    found = compute_probabilities("demo/queried", scenes.images)
    print(f"queried: {(found.argmax(1) == own[1]).sum()} of {count} right, probability {found[own].mean():.3f}")
    for name, removed in (("the red object", 0), ("another object", 1)):
        left = compute_probabilities("demo/queried", scenes.without(removed))[own].mean()
        print(f"  without {name}: {left:.3f}")


def evaluate_creatures(count: int = 200) -> None:
    for parts in range(len(creatures.PARTS) + 1):
        drawn = creatures.generate(count, SEED, parts=parts)
        found, true = compute_probabilities("demo/creatures", drawn.images), drawn.answers()
        own = found[np.arange(count), drawn.labels].mean()
        print(
            f"creatures, {parts} parts: probability {own:.3f}, largest difference {abs(found - true).max(1).mean():.1g}"
        )
    drawn = creatures.generate(count, SEED)
    own = np.arange(count), drawn.labels
    whole = compute_probabilities("demo/creatures", drawn.images)[own]
    for part, name in enumerate(creatures.PARTS):
        left = compute_probabilities("demo/creatures", drawn.without(part))[own]
        print(f"  without the {name}: probability falls by {(whole - left)[drawn.shown[:, part]].mean():.3f}")


if __name__ == "__main__":
    evaluate_queried()
    evaluate_creatures()
