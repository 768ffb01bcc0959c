"""The student: a plain Vision Transformer, and the same weights as a `ViTForImageClassification`.

Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021, arXiv:2010.11929. Pre-norm blocks, a CLS token, learned
positions. Query, key and value are one matrix here, for speed; `hugging_face_weights` cuts it in three and changes
nothing else.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, PATCH, WIDTH, BLOCKS, HEADS, BREEDS = 112, 8, 192, 12, 3, 37
GRID = IMAGE // PATCH
EARLY = 8  # the block whose patch tokens are compared with the teacher's 14 x 14 map
EPS = 1e-6


class Seen(NamedTuple):
    """Of a batch: patch tokens after block 8 and after the last norm, the CLS token, the logits."""

    early: Tensor
    late: Tensor
    cls: Tensor
    logits: Tensor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.zeros(1, 1 + GRID * GRID, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, EPS)
        self.head = nn.Linear(WIDTH, BREEDS)
        self.apply(_initialise)
        nn.init.trunc_normal_(self.position, std=0.02)
        nn.init.trunc_normal_(self.cls, std=0.02)

    def forward(self, pixels: Tensor) -> Seen:
        batch = pixels.shape[0]
        patches = pixels.reshape(batch, 3, GRID, PATCH, GRID, PATCH).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.cls.expand(batch, -1, -1), self.patch(patches).float()], 1) + self.position
        for index, block in enumerate(self.blocks, start=1):
            x = block(x)
            if index == EARLY:
                early = x[:, 1:]
        x = self.norm(x)
        return Seen(early, x[:, 1:], x[:, 0], self.head(x[:, 0]))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


LAYER_NAMES = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


def hugging_face_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The student's weights under the names of a `ViTForImageClassification` checkpoint: the same function."""
    named = {
        "vit.embeddings.cls_token": weights["cls"],
        "vit.embeddings.position_embeddings": weights["position"],
        "vit.embeddings.patch_embeddings.projection.weight": weights["patch.weight"].view(WIDTH, 3, PATCH, PATCH),
        "vit.embeddings.patch_embeddings.projection.bias": weights["patch.bias"],
    }
    for part in ("weight", "bias"):
        named[f"vit.layernorm.{part}"], named[f"classifier.{part}"] = weights[f"norm.{part}"], weights[f"head.{part}"]
        for block in range(BLOCKS):
            layer = f"vit.encoder.layer.{block}"
            for ours, theirs in LAYER_NAMES.items():
                named[f"{layer}.{theirs}.{part}"] = weights[f"blocks.{block}.{ours}.{part}"]
            thirds = weights[f"blocks.{block}.qkv.{part}"].chunk(3)
            for third, role in zip(thirds, ("query", "key", "value"), strict=True):
                named[f"{layer}.attention.attention.{role}.{part}"] = third
    return {name: tensor.contiguous() for name, tensor in named.items()}


def hugging_face_config(breeds: list[str]) -> dict[str, object]:
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "image_size": IMAGE,
        "patch_size": PATCH,
        "num_channels": 3,
        "hidden_size": WIDTH,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
        "hidden_act": "gelu",
        "qkv_bias": True,
        "layer_norm_eps": EPS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "dtype": "float16",
        "id2label": {str(index): breed for index, breed in enumerate(breeds)},
        "label2id": {breed: index for index, breed in enumerate(breeds)},
    }
