"""Dice: a random generator of its own for each seed and example, whatever its place in a batch."""

from hashlib import sha256

import torch


def make_generator(seed: int, mark: int) -> torch.Generator:
    """Neighbouring seeds and marks give unrelated draws."""
    digest = sha256(f"{seed} {mark}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
