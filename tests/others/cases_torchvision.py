"""Transformers of torchvision, narrow."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from others.subject import Subject, describe_image_model


def build_vit(**arguments: int) -> torch.nn.Module:
    from torchvision.models import VisionTransformer

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}
    return VisionTransformer(**sizes | {"num_classes": 5} | arguments)


def build_swin(version: int) -> torch.nn.Module:
    from torchvision.models import swin_transformer as swin

    more = {} if version == 1 else {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return swin.SwinTransformer(
        patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=5, **more
    )


def build_maxvit() -> torch.nn.Module:
    from torchvision.models import MaxVit

    return MaxVit(
        input_size=(64, 64), stem_channels=8, partition_size=2, block_channels=[8, 16], block_layers=[1, 1], head_dim=8,
        stochastic_depth_prob=0.0, num_classes=5,
    )  # fmt: skip


MODELS = {
    "VisionTransformer": (build_vit, 32),
    "VisionTransformer representation": (partial(build_vit, representation_size=16), 32),
    "SwinTransformer": (partial(build_swin, 1), 32),
    "SwinTransformer V2": (partial(build_swin, 2), 32),
    "MaxVit": (build_maxvit, 64),
}


def build(name: str) -> Subject:
    torch.manual_seed(0)
    make, size = MODELS[name]
    module = make().eval()
    for weight in module.parameters():
        if not bool(weight.any()):
            torch.nn.init.normal_(weight, std=0.2)
    return describe_image_model(module, size)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for name in MODELS:
        yield "torchvision", name, partial(build, name)
