"""CLIP and SigLIP, tiny and random, with inputs for both towers."""

import torch
import transformers as hf
from torch import nn

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def as_double(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.double) * 0.3)
    return module


def make_two_towers(kind: str) -> nn.Module:
    text = {**SMALL, "vocab_size": 30, "max_position_embeddings": 8}
    vision = {**SMALL, "image_size": 12, "patch_size": 4}
    if kind == "clip":
        text |= {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "projection_dim": 8}
        config = hf.CLIPConfig(text_config=text, vision_config=vision | {"projection_dim": 8}, projection_dim=8)
        return as_double(hf.CLIPModel(config))
    config = hf.SiglipConfig(text_config=text | {"projection_size": 8}, vision_config=vision)
    return as_double(hf.SiglipModel(config))


def make_captioned(seed: int = 5) -> tuple[dict, dict]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 30, (2, 6), generator=generator)
    ids[:, -1] = 2
    image = {"pixel_values": torch.randn(2, 3, 12, 12, generator=generator, dtype=torch.double)}
    return image, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
