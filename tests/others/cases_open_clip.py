"""The two encoders of open_clip models."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from others.subject import Subject, describe_image_model, describe_module, watch_attention
from torch import Tensor, nn

VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
TEXT = {"context_length": 9, "vocab_size": 60, "width": 32, "heads": 4, "layers": 2}
# what is asked of the towers, besides their sizes
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "CLIP": ({}, {}),
    "quick GELU": ({}, {}),
    "average pooling": ({"pool_type": "avg"}, {"pool_type": "last"}),
    "attentional pooling": (
        {"attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 4, "output_tokens": False},
        {},
    ),
    "layer scale": ({"ls_init_value": 0.5}, {"ls_init_value": 0.5}),
    "no causal mask": ({}, {"no_causal_mask": True}),
    "timm tower": ({"timm_model_name": "test_vit", "image_size": 160, "timm_pool": "map", "timm_proj": "none"}, {}),
}


class TextEncoder(nn.Module):
    """Token ids to the embedding of a text."""

    num_classes = 0

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, text: Tensor) -> Tensor:
        return self.whole.encode_text(text)


def build_whole(name: str) -> nn.Module:
    from open_clip.model import CLIP

    vision, text = CONFIGS[name]
    torch.manual_seed(0)
    return CLIP(embed_dim=16, vision_cfg=VISION | vision, text_cfg=TEXT | text, quick_gelu=name == "quick GELU").eval()


def build_image(name: str) -> Subject:
    return describe_image_model(build_whole(name).visual, CONFIGS[name][0].get("image_size", 32), name="x", target=None)


def build_text(name: str) -> Subject:
    ids = torch.randint(1, 58, (2, 9), generator=torch.Generator().manual_seed(1))
    ids[:, -1] = 59  # the end of the text, where the embedding is read
    module = TextEncoder(build_whole(name))

    def attend(given: Mapping[str, Tensor]) -> list[Tensor]:
        return watch_attention(module, given["text"])

    return describe_module(module, {"text": ids}, target=None, attend=attend)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for name in CONFIGS:
        yield "open_clip", f"image encoder, {name}", partial(build_image, name)
    for name in ("CLIP", "quick GELU", "average pooling", "layer scale", "no causal mask"):
        yield "open_clip", f"text encoder, {name}", partial(build_text, name)
