"""An integer that depends on an example alone, so that random methods give it the same numbers in any batch."""

import hashlib

import torch
from torch import Tensor


def fingerprint(example: Tensor) -> int:
    digest = hashlib.sha256(str(tuple(example.shape)).encode())
    digest.update(example.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big")
