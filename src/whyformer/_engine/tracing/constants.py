"""Constants that whyformer keeps between runs: a recording (program.py) may use them as it uses weights."""

from torch import Tensor


def mark_constant(tensor: Tensor) -> Tensor:
    """Promise that this tensor will not change while it is used."""
    tensor._whyformer_constant = True  # type: ignore[attr-defined]
    return tensor


def is_marked_constant(tensor: Tensor) -> bool:
    return hasattr(tensor, "_whyformer_constant")
