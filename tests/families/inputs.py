"""A batch of two for any model of transformers; the second text is shorter, and padded."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from families import media
from torch import Tensor, nn

LENGTH, SHORT = 10, 7  # tokens of the two texts
PARTS = ("vision_config", "backbone_config")
Inputs = dict[str, Any]


def make_inputs(model: nn.Module, group: str, model_type: str) -> Inputs:
    generator = torch.Generator().manual_seed(5)
    if group == "choice":
        ids = draw_ids(model.config, (2, 3, LENGTH), generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if takes_inputs_of_its_own(model, group, model_type):
        return OF_ARCHITECTURE[model_type](model, generator)
    name = "input_ids" if group == "zero_shot_image" else model.main_input_name
    if name not in OF_MAIN_INPUT:
        raise NotImplementedError(f"The main input is {name}.")
    made = OF_MAIN_INPUT[name](model, group, model_type, generator)
    if group == "zero_shot_image":
        made["pixel_values"] = draw_images(model.config, generator)
    if media.takes_media_unfed(get_parameters(model), made):
        made = media.add_media(model, get_parameters(model), made, generator)
    return made


def takes_inputs_of_its_own(model: nn.Module, group: str, model_type: str) -> bool:
    """Whether the class takes what the architecture is named for; the text model of Qwen3.5, say, takes only text."""
    if model_type not in OF_ARCHITECTURE or (group == "zero_shot_image" and model_type != "siglip2"):
        return False
    return model_type == "tapas" or "pixel_values" in get_parameters(model)


def get_parameters(model: nn.Module) -> Any:
    return inspect.signature(model.forward).parameters


def draw_ids(config: Any, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    vocabulary = getattr(config.get_text_config(), "vocab_size", None) or 128
    return torch.randint(5, max(6, min(vocabulary, 99)), shape, generator=generator)


def find_setting(config: Any, *names: str) -> Any:
    """The first of these settings that is a number, or a list of numbers, in the configuration or in one for images."""
    for part in (config, *(getattr(config, name, None) for name in PARTS)):
        value = next((v for name in names if (v := getattr(part, name, None))), None)
        if isinstance(value, int):
            return value
        if isinstance(value, list | tuple) and len(value) == 2:
            return value[0]
    return None


def get_image_size(config: Any) -> int:
    return find_setting(config, "image_size", "img_size") or 64


def get_channels(config: Any) -> int:
    return find_setting(config, "num_channels", "in_channels", "in_chans") or 3


def count_patches(config: Any) -> int:
    patch = config.vision_config.patch_size
    return (get_image_size(config) // (patch[0] if isinstance(patch, list | tuple) else patch)) ** 2


def draw_images(config: Any, generator: torch.Generator, *lead: int) -> Tensor:
    size = get_image_size(config)
    return torch.randn(2, *lead, get_channels(config), size, size, generator=generator)


# --- by the main input -----------------------------------------------------------------------------------------------


def make_text(model: nn.Module, group: str, model_type: str, generator: torch.Generator) -> Inputs:
    config, parameters = model.config, get_parameters(model)
    text = config.get_text_config()
    is_encoder_decoder = getattr(config, "is_encoder_decoder", False)
    ids, mask = draw_ids(config, (2, LENGTH), generator), torch.ones(2, LENGTH, dtype=torch.long)
    takes_mask = "attention_mask" in parameters
    if takes_mask:
        padding = slice(LENGTH - SHORT) if model_type == "xlnet" else slice(SHORT, None)  # where its tokenizer pads
        mask[1, padding] = 0
        ids[1, padding] = getattr(text, "pad_token_id", None) or 0
    end = getattr(text, "eos_token_id", None)
    if group == "seq_cls" and isinstance(end, int) and is_encoder_decoder:
        ids[0, -1] = ids[1, SHORT - 1] = end
    if group == "qa" and model_type == "longformer":  # it looks for three separators
        ids[:, [2, 4, 6]] = config.sep_token_id
    made: Inputs = {"input_ids": ids, **({"attention_mask": mask} if takes_mask else {})}
    if "bbox" in parameters:
        corner = torch.randint(0, 50, (2, LENGTH, 2), generator=generator)
        made["bbox"] = torch.cat([corner, corner + 10], -1)
    if is_encoder_decoder and "decoder_input_ids" in parameters and group not in ("seq_cls", "qa"):
        made["decoder_input_ids"] = draw_ids(config, (2, 6), generator)
    return made


def make_image(model: nn.Module, group: str, model_type: str, generator: torch.Generator) -> Inputs:
    if group != "video_cls":
        return {"pixel_values": draw_images(model.config, generator)}
    frames = getattr(model.config, "num_frames", None) or getattr(model.config, "frames_per_clip", None) or 4
    return {"pixel_values": draw_images(model.config, generator, frames)}


def make_video(model: nn.Module, group: str, model_type: str, generator: torch.Generator) -> Inputs:
    frames = find_setting(model.config, "num_frames", "frames_per_clip") or 4
    return {"pixel_values_videos": draw_images(model.config, generator, frames)}


def make_waveform(model: nn.Module, group: str, model_type: str, generator: torch.Generator) -> Inputs:
    config = model.config
    if model_type == "audio-spectrogram-transformer":
        return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins, generator=generator)}
    made: Inputs = {"input_values": torch.randn(2, 3200, generator=generator)}
    if "decoder_input_ids" in get_parameters(model) and getattr(config, "is_encoder_decoder", False):
        made["decoder_input_ids"] = draw_ids(config, (2, 6), generator)
    return made


def make_spectrogram(model: nn.Module, group: str, model_type: str, generator: torch.Generator) -> Inputs:
    config = model.config
    names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim")
    parts = (config, getattr(config, "encoder_config", None))
    bins = next((v for name in names for part in parts if (v := getattr(part, name, None))), 80)
    if model_type == "whisper":
        features = torch.randn(2, bins, 2 * config.max_source_positions, generator=generator)
    else:
        features = torch.randn(2, 40, bins, generator=generator)
    made: Inputs = {"input_features": features}
    if "decoder_input_ids" in get_parameters(model) and getattr(config, "is_encoder_decoder", False):
        made["decoder_input_ids"] = draw_ids(config, (2, 6), generator)
    return made


def make_series(model: nn.Module, group: str, model_type: str, generator: torch.Generator) -> Inputs:
    length, channels = getattr(model.config, "context_length", 32), getattr(model.config, "num_input_channels", 1)
    return {"past_values": torch.randn(2, length, channels, generator=generator)}


OF_MAIN_INPUT: dict[str, Callable[..., Inputs]] = {
    "input_ids": make_text,
    "pixel_values": make_image,
    "pixel_values_videos": make_video,
    "input_values": make_waveform,
    "input_features": make_spectrogram,
    "past_values": make_series,
}


# --- by architecture -------------------------------------------------------------------------------------------------


def make_table(model: nn.Module, generator: torch.Generator) -> Inputs:
    ids = draw_ids(model.config, (2, LENGTH), generator)
    kinds = torch.zeros(2, LENGTH, 7, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": kinds}


def make_patches(model: nn.Module, generator: torch.Generator) -> Inputs:
    """SigLIP 2 takes patches, cut and flattened, with the rows and columns of each image."""
    vision = getattr(model.config, "vision_config", model.config)
    count, size = vision.num_patches, vision.patch_size**2 * vision.num_channels
    side = int(count**0.5)
    made: Inputs = {
        "pixel_values": torch.randn(2, count, size, generator=generator),
        "pixel_attention_mask": torch.ones(2, count, dtype=torch.long),
        "spatial_shapes": torch.tensor([[side, side]] * 2),
    }
    if "input_ids" in get_parameters(model):
        made["input_ids"] = draw_ids(model.config, (2, LENGTH), generator)
    return made


def make_image_text(
    count_tokens: Callable[[Any], int] | int, more: Callable[[Tensor], Inputs] = lambda ids: {}
) -> Callable[..., Inputs]:
    """A text with placeholders for an image in each of two rows."""

    def make(model: nn.Module, generator: torch.Generator) -> Inputs:
        config = model.config
        image = getattr(config, "image_token_id", None)
        image = getattr(config, "image_token_index", 100) if image is None else image
        count = count_tokens(config) if callable(count_tokens) else count_tokens
        ids = draw_ids(config, (2, count + 6), generator)
        ids[:, 1 : 1 + count] = image
        size = get_image_size(config)
        images = torch.randn(2, 3, size, size, generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": images, **more(ids)}

    return make


def make_image_text_by_axis(model: nn.Module, generator: torch.Generator) -> Inputs:
    """Text with a grid of 4 x 4 patches, as Qwen-VL takes it."""
    config, vision = model.config, model.config.vision_config
    merged, depth = getattr(vision, "spatial_merge_size", 2), getattr(vision, "temporal_patch_size", 2)
    count = 16 // merged**2
    ids = draw_ids(config, (2, count + 8), generator)
    for name, place in (("vision_start_token_id", 1), ("vision_end_token_id", 2 + count)):
        if hasattr(config, name):
            ids[:, place] = getattr(config, name)
    ids[:, 2 : 2 + count] = config.image_token_id
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(32, channels * depth * vision.patch_size**2, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]]),
        "mm_token_type_ids": (ids == config.image_token_id).long(),
    }


def make_image_with_noise(model: nn.Module, generator: torch.Generator) -> Inputs:
    """An image, and the noise by which its patches are masked: without it, each run draws other patches."""
    images = draw_images(model.config, generator)
    patches = (get_image_size(model.config) // model.config.patch_size) ** 2
    return {"pixel_values": images, "noise": torch.rand(2, patches, generator=generator)}


def make_question(model: nn.Module, generator: torch.Generator) -> Inputs:
    """A text and an image, each on its own."""
    ids = draw_ids(model.config, (2, LENGTH), generator)
    made: Inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": draw_images(model.config, generator),
    }
    if "decoder_input_ids" in get_parameters(model):
        made["decoder_input_ids"] = draw_ids(model.config, (2, 6), generator)
    return made


OF_ARCHITECTURE: dict[str, Callable[..., Inputs]] = {
    "aya_vision": make_image_text(lambda config: count_patches(config) // 4),
    "blip": make_question,
    "gemma3": make_image_text(4, lambda ids: {"token_type_ids": (ids == 100).long()}),
    "glm4v": make_image_text_by_axis,
    "internvl": make_image_text(lambda config: int(count_patches(config) * config.downsample_ratio**2)),
    "llava": make_image_text(count_patches),
    "paligemma": make_image_text(count_patches, lambda ids: {"token_type_ids": torch.zeros_like(ids)}),
    "qwen2_5_vl": make_image_text_by_axis,
    "qwen2_vl": make_image_text_by_axis,
    "qwen3_5": make_image_text_by_axis,
    "qwen3_vl": make_image_text_by_axis,
    "siglip2": make_patches,
    "tapas": make_table,
    "vilt": make_question,
    "vipllava": make_image_text(count_patches),
    "vit_mae": make_image_with_noise,
}
