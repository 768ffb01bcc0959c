"""Tiny vision-language models of transformers with random weights, their image processors, and inputs for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

IMAGE, START = 70, 1
TEXT = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", "projection_dim": 16, **VISION}
SIGLIP = {"model_type": "siglip_vision_model", **VISION}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}}
PACKED = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
PINPOINTS = [[32, 64], [64, 32], [64, 64]]
PLACEHOLDER = {"image_token_id": IMAGE, "image_token_index": IMAGE}
OTHER_TOKENS = {"video_token_id": 71, "vision_start_token_id": 72, "vision_end_token_id": 73}
FULL = {"height": 32, "width": 32}


def llava() -> nn.Module:
    text = {"model_type": "llama", **TEXT}
    config = hf.LlavaConfig(vision_config=CLIP, text_config=text, vision_feature_layer=-1, **PLACEHOLDER)
    return hf.LlavaForConditionalGeneration(config)


def llava_next() -> nn.Module:
    text = {"model_type": "llama", **TEXT}
    config = hf.LlavaNextConfig(
        vision_config=CLIP, text_config=text, vision_feature_layer=-1, image_grid_pinpoints=PINPOINTS, **PLACEHOLDER
    )
    return hf.LlavaNextForConditionalGeneration(config)


def onevision() -> nn.Module:
    text = {"model_type": "qwen2", **TEXT}
    config = hf.LlavaOnevisionConfig(
        vision_config=SIGLIP, text_config=text, vision_feature_layer=-1, image_grid_pinpoints=PINPOINTS, **PLACEHOLDER
    )
    return hf.LlavaOnevisionForConditionalGeneration(config)


def qwen2() -> nn.Module:
    vision = {**PACKED, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
    config = hf.Qwen2VLConfig(vision_config=vision, text_config={**TEXT, **ROPE}, **PLACEHOLDER, **OTHER_TOKENS)
    return hf.Qwen2VLForConditionalGeneration(config)


def qwen2_5() -> nn.Module:
    vision = {**PACKED, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64, "window_size": 16}
    vision["fullatt_block_indexes"] = [1]
    config = hf.Qwen2_5_VLConfig(vision_config=vision, text_config={**TEXT, **ROPE}, **PLACEHOLDER, **OTHER_TOKENS)
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def qwen3() -> nn.Module:
    vision = {**PACKED, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64}
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    text = {**TEXT, **ROPE, "head_dim": 12}
    config = hf.Qwen3VLConfig(vision_config=vision, text_config=text, **PLACEHOLDER, **OTHER_TOKENS)
    return hf.Qwen3VLForConditionalGeneration(config)


def gemma3() -> nn.Module:
    text = {**TEXT, "head_dim": 12, "sliding_window": 64, "query_pre_attn_scalar": 12}
    config = hf.Gemma3Config(
        vision_config=SIGLIP, text_config=text, mm_tokens_per_image=4, boi_token_index=71, eoi_token_index=72,
        **PLACEHOLDER,
    )  # fmt: skip
    model = hf.Gemma3ForConditionalGeneration(config)
    with torch.no_grad():  # its projection starts at 0
        model.model.multi_modal_projector.mm_input_projection_weight.normal_(0, 0.2)
    return model


def paligemma() -> nn.Module:
    text = {"model_type": "gemma", "head_dim": 12, **TEXT}
    vision = {"projection_dim": 48, **SIGLIP}
    config = hf.PaliGemmaConfig(vision_config=vision, text_config=text, projection_dim=48, **PLACEHOLDER)
    return hf.PaliGemmaForConditionalGeneration(config)


def idefics2() -> nn.Module:
    resampler = {"hidden_size": 48, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2}
    resampler |= {"resampler_head_dim": 8, "num_key_value_heads": 1}
    config = hf.Idefics2Config(
        vision_config=VISION, text_config={"model_type": "mistral", **TEXT}, perceiver_config=resampler,
        image_token_id=IMAGE,
    )  # fmt: skip
    return hf.Idefics2ForConditionalGeneration(config)


def make_shuffling(config: Callable[..., Any], model: Callable[[Any], nn.Module]) -> Callable[[], nn.Module]:
    text = {"model_type": "llama", **TEXT}
    return lambda: model(config(vision_config=VISION, text_config=text, image_token_id=IMAGE, scale_factor=2))


def internvl() -> nn.Module:
    vision = {**VISION, "model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]}
    text = {"model_type": "qwen2", **TEXT}
    config = hf.InternVLConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, downsample_ratio=0.5)
    return hf.InternVLForConditionalGeneration(config)


ONE_TILE = {"size": {"shortest_edge": 24, "longest_edge": 32}, "do_image_splitting": False}
TILES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
# The model, its image processor with settings, and how many tokens an image of 64 x 48 pixels takes.
FAMILIES: dict[str, tuple[Callable[[], nn.Module], str, dict[str, Any], int]] = {
    "llava": (llava, "CLIPImageProcessor", {"size": FULL, "do_center_crop": False}, 16),
    "llava_next": (
        llava_next,
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 32}, "crop_size": FULL, "image_grid_pinpoints": PINPOINTS},
        70,
    ),
    "onevision": (onevision, "LlavaOnevisionImageProcessor", {"size": FULL, "image_grid_pinpoints": PINPOINTS}, 70),
    "qwen2": (
        qwen2, "Qwen2VLImageProcessor", {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 3072}, 48,
    ),
    "qwen2_5": (
        qwen2_5, "Qwen2VLImageProcessor", {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 3072}, 48,
    ),
    "qwen3": (
        qwen3, "Qwen2VLImageProcessor", {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 3072}, 48,
    ),
    "gemma3": (gemma3, "SiglipImageProcessor", {"size": FULL}, 4),
    "paligemma": (paligemma, "SiglipImageProcessor", {"size": FULL}, 16),
    "idefics2": (idefics2, "Idefics2ImageProcessor", ONE_TILE, 4),
    "idefics3": (
        make_shuffling(hf.Idefics3Config, hf.Idefics3ForConditionalGeneration), "Idefics3ImageProcessor", TILES, 20,
    ),
    "smolvlm": (
        make_shuffling(hf.SmolVLMConfig, hf.SmolVLMForConditionalGeneration), "SmolVLMImageProcessor", TILES, 20,
    ),
    "internvl": (internvl, "GotOcr2ImageProcessor", {"size": FULL, "crop_to_patches": False}, 4),
}  # fmt: skip
NOT_INPUTS = ("rows", "cols", "num_crops", "num_patches", "batch_num_images")  # that joint processors use up


def make_model(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return FAMILIES[name][0]().eval().to(dtype)


def make_image_processor(name: str) -> Any:
    _, kind, settings, _ = FAMILIES[name]
    return getattr(hf, f"{kind}Pil")(**settings)  # the one that needs no torchvision


def make_picture(width: int = 64, height: int = 48, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def make_inputs(name: str, model: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What a joint processor would make of an image of 64 x 48 pixels and a few words."""
    made = make_image_processor(name)(images=[make_picture()], return_tensors="pt")
    pixels = {key: value for key, value in made.items() if isinstance(value, Tensor) and key not in NOT_INPUTS}
    pixels["pixel_values"] = pixels["pixel_values"].to(dtype)
    ids = torch.tensor([[START, 5, *[IMAGE] * FAMILIES[name][3], 6, 7, 8, 9]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pixels}
    if name.startswith("qwen"):
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    if name in ("gemma3", "paligemma"):
        inputs["token_type_ids"] = (ids == IMAGE).long() if name == "gemma3" else torch.zeros_like(ids)
    return inputs


def make_joint_processor(name: str, kind: str, special: dict[str, str], model: nn.Module, **settings: Any) -> Any:
    """A processor of images and words; the placeholder of the model becomes its image token."""
    words = {word: i for i, word in enumerate("<pad> <unk> <s> what is this and that ? .".split())}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>"}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=special, **names)
    placeholder = tokenizer.convert_tokens_to_ids(special["image_token"])
    model.config.image_token_id = placeholder
    if hasattr(model.config, "image_token_index"):
        model.config.image_token_index = placeholder
    return getattr(hf, kind)(image_processor=make_image_processor(name), tokenizer=tokenizer, **settings)
