"""Small image models on the frozen lower blocks of a demo model, and training many of them at once.

The frozen part runs once over all images; the blocks above it are trained on its outputs, for many models of one
architecture together (torch.func.vmap over stacked weights). A model needs a minute on one CPU thread, and about a
hundred models a minute on a GPU.
"""

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from transformers import (
    SiglipConfig,
    SiglipForImageClassification,
    SiglipVisionConfig,
    ViTConfig,
    ViTForImageClassification,
)

from whyformer._model.loading import DEMO_MODELS

ImageModel = ViTForImageClassification | SiglipForImageClassification
SHARED_SETTINGS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "image_size", "patch_size", "hidden_act",
    "layer_norm_eps",
)  # fmt: skip
SIGLIP_PARTS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2",
    "layer_norm1", "layer_norm2",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Which blocks of a demo model are kept, what is put on them, and how it is trained."""

    pooling: str  # "class token" (ViT) or "mean" (SigLIP)
    frozen: int
    trained: int  # blocks above the frozen ones
    fresh: bool = True  # the trained blocks are drawn anew instead of those of the demo model
    steps: int = 200
    rate: float = 1e-3
    batch: int = 32


RECIPES = {
    "shapes": (Recipe("class token", 4, 1), Recipe("mean", 4, 1), Recipe("class token", 4, 2), Recipe("mean", 3, 2)),
    "creatures": (Recipe("class token", 1, 2), Recipe("mean", 1, 2), Recipe("class token", 2, 2), Recipe("mean", 2, 2)),
    "pets": (Recipe("class token", 5, 2, fresh=False), Recipe("mean", 5, 2, fresh=False)),
}  # fmt: skip


def choose_recipe(world: str, seed: int) -> Recipe:
    return RECIPES[world][seed % len(RECIPES[world])]


def make_image_model(world: str, classes: Sequence[str], seed: int) -> ImageModel:
    """A model whose lower blocks are those of demo/`world`; the others depend on `seed` alone."""
    recipe = choose_recipe(world, seed)
    torch.manual_seed(seed)
    start = ViTForImageClassification.from_pretrained(DEMO_MODELS / world, dtype=torch.float32)
    names = {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
    shape = {name: getattr(start.config, name) for name in SHARED_SETTINGS}
    shape["num_hidden_layers"] = recipe.frozen + recipe.trained
    model: ImageModel
    if recipe.pooling == "class token":
        model = ViTForImageClassification(ViTConfig(**shape, **names))
    else:
        vision = SiglipVisionConfig(**shape, attention_dropout=0.0, vision_use_head=False)
        config = SiglipConfig(vision_config=vision.to_dict(), **names)
        config.text_config.bos_token_id = config.text_config.eos_token_id = 0
        model = SiglipForImageClassification(config)
    copy_lower_blocks(start, model, recipe.frozen if recipe.fresh else recipe.frozen + recipe.trained)
    processor = json.loads((DEMO_MODELS / world / "preprocessor_config.json").read_text("utf-8"))
    model.config.image_mean, model.config.image_std = processor["image_mean"], processor["image_std"]
    model.set_attn_implementation("eager")
    return model


def copy_lower_blocks(start: ViTForImageClassification, model: ImageModel, count: int) -> None:
    """Embeddings and the first `count` blocks; a SigLIP gets the same weights without the class token."""
    for block, own in zip(list_blocks(start)[:count], list_blocks(model), strict=False):
        own.load_state_dict(block.state_dict() if type(own) is type(block) else rename_weights(block))
    if isinstance(model, ViTForImageClassification):
        model.vit.embeddings.load_state_dict(start.vit.embeddings.state_dict())
        return
    embeddings, own = start.vit.embeddings, model.vision_model.embeddings
    own.patch_embedding.load_state_dict(embeddings.patch_embeddings.projection.state_dict())
    own.position_embedding.weight.data.copy_(embeddings.position_embeddings[0, 1:])


def rename_weights(block: nn.Module) -> dict[str, Tensor]:
    """The weights of a ViT block under SigLIP's names; a ViT has them in the order of SIGLIP_PARTS."""
    linear = [module for module in block.modules() if isinstance(module, nn.Linear)]
    norms = [module for module in block.modules() if isinstance(module, nn.LayerNorm)]
    parts = zip(SIGLIP_PARTS, [*linear, *norms], strict=True)
    return {f"{name}.{key}": value for name, part in parts for key, value in part.state_dict().items()}


def list_blocks(model: nn.Module) -> nn.ModuleList:
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


class Upper(nn.Module):
    """From the outputs of the frozen blocks to the logits."""

    def __init__(self, model: ImageModel, frozen: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(list(list_blocks(model))[frozen:])
        self.has_class_token = isinstance(model, ViTForImageClassification)
        self.norm = model.vit.layernorm if self.has_class_token else model.vision_model.post_layernorm
        self.classifier = model.classifier

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = run_block(block, hidden)
        hidden = self.norm(hidden)
        return self.classifier(hidden[:, 0] if self.has_class_token else hidden.mean(1))


def run_block(block: nn.Module, hidden: Tensor) -> Tensor:
    out = block(hidden, None)
    return out if isinstance(out, Tensor) else out[0]


def as_pixels(images: NDArray[np.uint8], model: ImageModel) -> Tensor:
    """[image height width 3] of bytes as [image 3 height width], on the model's device and scaled for it."""
    device, settings = next(model.parameters()).device, (model.config.image_mean, model.config.image_std)
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in settings)
    return (torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 255 - mean) / std


@torch.no_grad()
def run_lower(model: ImageModel, frozen: int, images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """[image token channel]: what the first trained block gets, in half precision."""
    model.to(device)
    embed = model.vit.embeddings if isinstance(model, ViTForImageClassification) else model.vision_model.embeddings
    parts = []
    for start in range(0, len(images), 64):
        hidden = embed(as_pixels(images[start : start + 64], model))
        for block in list(list_blocks(model))[:frozen]:
            hidden = run_block(block, hidden)
        parts.append(hidden.half())
    return torch.cat(parts)


def train_together(
    models: Sequence[ImageModel], images: Sequence[NDArray[np.uint8]], labels: Sequence[NDArray[np.int64]],
    recipe: Recipe, seeds: Sequence[int], device: torch.device,
) -> None:  # fmt: skip
    """AdamW with warm-up and cosine decay; model i sees images[i] in an order drawn by seeds[i]. Trains in place."""
    uppers = [Upper(model, recipe.frozen).to(device).train() for model in models]
    skeleton = deepcopy(uppers[0]).to("meta")
    weights, buffers = stack_module_state(uppers)
    pool = torch.stack([run_lower(one, recipe.frozen, own, device) for one, own in zip(models, images, strict=True)])
    right = torch.from_numpy(np.stack(labels)).to(device)
    optimizer = torch.optim.AdamW(weights.values(), lr=recipe.rate, weight_decay=0.05, fused=device.type == "cuda")
    dice = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = torch.arange(len(models), device=device)[:, None]

    def measure_loss(own: dict[str, Tensor], kept: dict[str, Tensor], hidden: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(functional_call(skeleton, (own, kept), (hidden,)), target)

    for step in range(recipe.steps):
        picked = torch.stack([torch.randint(pool.shape[1], (recipe.batch,), generator=one) for one in dice]).to(device)
        rate = recipe.rate * min(1, (step + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * step / recipe.steps))
        optimizer.param_groups[0]["lr"] = rate
        loss = vmap(measure_loss)(weights, buffers, pool[rows, picked].float(), right[rows, picked]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for i, (upper, model) in enumerate(zip(uppers, models, strict=True)):
        upper.load_state_dict({name: values[i].detach() for name, values in weights.items()}, strict=False)
        model.cpu().eval()


@torch.no_grad()
def predict(model: ImageModel, images: NDArray[np.uint8], device: torch.device) -> NDArray[np.int64]:
    model.to(device)
    parts = [model(as_pixels(images[i : i + 64], model)).logits.argmax(-1).cpu() for i in range(0, len(images), 64)]
    model.cpu()
    return torch.cat(parts).numpy()


def save_image_model(model: ImageModel, folder: Path) -> None:
    """A folder that whyformer.open() opens; the weights are in half precision."""
    model.half().save_pretrained(folder)
    model.float()
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    size = getattr(model.config, "image_size", None) or model.config.vision_config.image_size
    processor = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": size, "width": size},
        "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": model.config.image_mean, "image_std": model.config.image_std,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", "utf-8")
