"""Replaces compiled parts of torchvision that a CPU build of torch cannot load and that are never called here."""

import torch


def for_the_kernels_of_torchvision() -> None:
    """zennit and LXT import torchvision for its models; torchvision needs these operators to exist."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library._whyformer = library  # type: ignore[attr-defined]  # keep a reference, or it is freed
