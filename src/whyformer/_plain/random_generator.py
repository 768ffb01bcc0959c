"""Random generators: one for each seed and example, independent of the position in the batch."""

from hashlib import sha256

import torch


def make_generator(seed: int, fingerprint: int) -> torch.Generator:
    """One independent generator per (seed, example). Nearby seeds give unrelated draws."""
    digest = sha256(f"{seed} {fingerprint}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
