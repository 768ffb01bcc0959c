"""The default configuration of an architecture, shrunk until its model has a few thousand weights.

Sizes are recognised by the names that transformers gives them; whatever an architecture needs besides is in OVERRIDES.
"""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedConfig, ResNetConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH, INNER, HEADS, LAYERS, VOCABULARY, LENGTH = 32, 64, 4, 2, 128, 128
MOST_WEIGHTS = 40e6

WIDTHS = frozenset(
    "hidden_size d_model n_embd dim embed_dim emb_dim embedding_size d_embed projection_dim word_embed_proj_dim "
    "encoder_hidden_size decoder_hidden_size cross_attention_hidden_size mm_hidden_size adapter_hidden_size "
    "fusion_hidden_size output_hidden_size out_hidden_size vision_hidden_size text_hidden_size model_dim conv_dim_out "
    "mask_feature_size feature_size reduction_hidden_size classifier_proj_size fpn_feature_size expansion_hidden_size "
    "project_dim query_dim shared_embedding_size hidden_channels head_hidden_size classifier_hidden_size "
    "vision_embed_dim projector_hidden_size attention_hidden_size linear_hidden_size decoder_hidden_dim "
    "encoder_hidden_dim hidden_size_per_layer_input rnn_hidden_size bottleneck_hidden cls_embed_dim emb_size "
    "logit_hidden d_proj audio_hidden_size".split()
)
INNER_WIDTHS = frozenset(
    "intermediate_size ffn_dim d_ff n_inner hidden_dim encoder_ffn_dim decoder_ffn_dim moe_intermediate_size "
    "shared_expert_intermediate_size ffn_hidden_size dff dim_feedforward ffn_intermediate_size intermediate_size_mlp "
    "dense_intermediate_size shared_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size "
    "mlp_hidden_size encoder_intermediate_size decoder_intermediate_size linear_units d_inner "
    "expert_intermediate_size".split()
)
DEPTHS = frozenset(
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers "
    "depth num_blocks encoder_num_hidden_layers decoder_num_hidden_layers l_layers x_layers r_layers qformer_layers "
    "num_block_layers num_attention_layers generator_layers enc_layers dec_layers num_transformer_layers "
    "speech_encoder_layers".split()
)
HEAD_COUNTS = frozenset(
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "encoder_num_attention_heads decoder_num_attention_heads attention_heads num_attn_heads nhead "
    "resampler_n_heads".split()
)
KEY_COUNTS = frozenset(
    "num_key_value_heads num_kv_heads n_kv_heads num_global_key_value_heads multi_query_group_num".split()
)
HEAD_SIZES = frozenset(
    "head_dim d_kv kv_channels qk_rope_head_dim qk_nope_head_dim v_head_dim attention_head_size global_head_dim d_head "
    "attention_head_dim head_size linear_key_head_dim linear_value_head_dim swa_head_dim index_head_dim".split()
)
RANKS = frozenset("q_lora_rank kv_lora_rank o_lora_rank lora_rank".split())
EXPERT_COUNTS = frozenset(
    "num_experts n_routed_experts num_local_experts moe_num_experts n_experts encoder_moe_num "
    "num_routed_experts".split()
)
CHOSEN_EXPERTS = frozenset("num_experts_per_tok moe_topk moe_top_k top_k_experts num_experts_per_token moe_k".split())
LENGTHS = frozenset(
    "max_position_embeddings n_positions max_seq_len max_seq_length seq_length max_sequence_length n_ctx".split()
)
WINDOWS = frozenset("sliding_window attention_chunk_size local_attention".split())

# kind of size -> (names, value, only where it is larger than)
SCALARS: tuple[tuple[frozenset[str], int, int], ...] = (
    (INNER_WIDTHS, INNER, INNER),
    (DEPTHS, LAYERS, LAYERS),
    (HEAD_COUNTS, HEADS, HEADS - 1),
    (HEAD_SIZES, 8, 8),
    (RANKS, 16, 16),
    (EXPERT_COUNTS, 4, 4),
    (CHOSEN_EXPERTS, 2, 2),
    (frozenset(("n_group", "topk_group", "first_k_dense_replace")), 1, 0),
    (LENGTHS, LENGTH, LENGTH),
    (WINDOWS, 16, 16),
    (frozenset(("patch_size",)), 8, 11),
    (frozenset(("chunk_size", "mamba_chunk_size")), 16, 16),
)
STAGE_DEPTHS = frozenset("depths num_blocks layers_per_stage num_hidden_layers blocks_per_stage".split())
STAGE_WIDTHS = frozenset(
    "hidden_sizes embed_dim embed_dims encoder_hidden_sizes dims neck_hidden_sizes embedding_dims decoder_hidden_sizes "
    "stage_dims channels".split()
)
STAGE_HEADS = frozenset("num_attention_heads num_heads encoder_num_heads".split())
TOKEN_IDS = {"image": 100, "video": 101, "pad": 0, "bos": 1, "eos": 2, "audio": 102}


def make_config(model_type: str, labels: int) -> PreTrainedConfig:
    """The shrunk configuration of an architecture, with ids of special tokens that are in the vocabulary."""
    config = shrink(CONFIG_MAPPING[model_type], OVERRIDES.get(model_type, {}))
    text = config.get_text_config()
    for part in {id(config): config, id(text): text}.values():
        bring_special_tokens_into(part)
    if hasattr(config, "num_labels"):
        config.num_labels = labels
    return config


def shrink(kind: type[PreTrainedConfig], overrides: Mapping[str, Any]) -> PreTrainedConfig:
    """The default configuration with small sizes; `overrides` replaces what they would be."""
    default, overrides = kind(), dict(overrides)
    given = default.to_dict()
    has_stages = any(isinstance(given.get(name), list | tuple) for name in ("depths", "hidden_sizes"))
    heads = next((given[name] for name in given if name in HEAD_COUNTS and isinstance(given[name], int)), None)
    small: dict[str, Any] = {}
    for name in given:
        value = read_setting(default, name, given[name])
        if isinstance(value, PreTrainedConfig):
            inner = overrides.pop(name, {})
            small[name] = inner() if callable(inner) else shrink(type(value), inner or {})
        elif name not in overrides and (size := find_size(name, value, has_stages, heads)) is not None:
            small[name] = size
    if "layer_types" in given and "layer_types" not in overrides:
        small.update(shorten_layer_types(default, {**small, **overrides}))
    return kind(**{**small, **overrides})


def read_setting(config: PreTrainedConfig, name: str, stored: Any) -> Any:
    """The setting as an object, not as a dictionary; as stored where it differs from layer to layer."""
    try:
        return getattr(config, name, stored)
    except Exception:
        return stored


def find_size(name: str, value: Any, has_stages: bool, heads: int | None) -> Any:
    """The small value of one setting; None to leave it as it is."""
    image = 64 if has_stages else 32
    if isinstance(value, dict) and "mrope_section" in value:
        return {**value, "mrope_section": [1, 1, 2]}
    if isinstance(value, list | tuple):
        stages = find_stages(name, value, image)
        return None if stages is None else type(value)(stages)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if name in WIDTHS and value > 16:
        return 16 if has_stages and name == "embed_dim" else WIDTH
    for names, size, at_least in SCALARS:
        if name in names:
            return size if value > at_least else None
    if name in KEY_COUNTS:
        return HEADS if heads and value == heads else min(value, 2)
    if "vocab" in name and value > VOCABULARY and not name.endswith("_id"):
        return VOCABULARY
    if name in ("image_size", "img_size") and value > 32:
        return image
    if name == "window_size" and has_stages and value > 4:
        return 4
    if re.fullmatch(r".*_token_(id|index)", name) and value >= VOCABULARY:
        return TOKEN_IDS.get(name.split("_")[0], 103 + len(name) % 20)
    return None


def find_stages(name: str, value: Any, image: int) -> list[int] | None:
    """The small sizes of a model with stages, one for each of them."""
    if not value or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return None
    count = len(value)
    if name in STAGE_DEPTHS:
        return [1] * count
    if name in STAGE_WIDTHS:
        return [16 * 2**i for i in range(count)]
    if name in STAGE_HEADS:
        return [2**i for i in range(count)]
    if name in ("image_size", "img_size"):
        return [image] * count
    if name == "conv_dim":
        return [WIDTH] * count
    return [1, 1, 2] if name == "mrope_section" else None


def shorten_layer_types(default: PreTrainedConfig, small: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of each kind, where a model lists the kinds of all of its layers."""
    kinds = getattr(default, "layer_types", None)
    count = next((small[name] for name in DEPTHS if isinstance(small.get(name), int)), None)
    if not isinstance(kinds, list | tuple) or count is None or len(kinds) <= count:
        return {}
    distinct = list(dict.fromkeys(kinds))
    return {"layer_types": (distinct * count)[:count]} if len(distinct) <= count else {}


def bring_special_tokens_into(config: PreTrainedConfig) -> None:
    vocabulary = getattr(config, "vocab_size", None)
    for name in ("pad", "bos", "eos"):
        key = f"{name}_token_id"
        value = getattr(config, key, None)
        if isinstance(value, list):
            value = value[0]
            setattr(config, key, value)
        if not isinstance(vocabulary, int):
            continue
        is_missing = value is None and name == "pad"
        is_outside = isinstance(value, int) and not 0 <= value < vocabulary
        if is_missing or is_outside:
            setattr(config, key, TOKEN_IDS[name])


# --- what single architectures need ----------------------------------------------------------------------------------


def make_backbone(stages: int = 2) -> Callable[[], ResNetConfig]:
    widths = [16, 32, 64, 64][:stages]
    outputs = [f"stage{i}" for i in range(2, stages + 1)]
    return lambda: ResNetConfig(
        embedding_size=16, hidden_sizes=widths, depths=[1] * stages, layer_type="basic", out_features=outputs
    )


DETR = {"use_timm_backbone": False, "backbone_config": make_backbone(), "num_queries": 6, "backbone": None}
ROTARY_BY_AXIS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
ONE_OF_FOUR = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
STATE_SPACE = {"mamba_n_heads": 8, "mamba_d_head": 8}
SHORT_SOUND = {"audio_config": {"max_source_positions": 20}}
OVERRIDES: dict[str, dict[str, Any]] = {
    "mobilevitv2": {"image_size": 128, "n_attn_blocks": [1, 1, 1], "base_attn_unit_dims": [32, 48, 64]},
    "data2vec-vision": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "beit": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "glm4v": {"text_config": {"rope_parameters": {**ROTARY_BY_AXIS, "partial_rotary_factor": 1.0}}},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [16, 32, 32, 32]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "audioflamingo3": SHORT_SOUND,
    "audio-spectrogram-transformer": {
        "max_length": 64,
        "num_mel_bins": 32,
        "frequency_stride": 8,
        "time_stride": 8,
        "patch_size": 8,
    },
    "bamba": {**STATE_SPACE, "attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "conditional_detr": DETR,
    "dab-detr": DETR,
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "deformable_detr": {**DETR, "backbone_config": make_backbone(4)},
    "detr": DETR,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "donut-swin": {"window_size": 2},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "position_embedding_type": "rotary"},
    "gemma3": {"mm_tokens_per_image": 4},
    "gemma3n_text": {
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "num_kv_shared_layers": 0,
    },
    "gemma4_text": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**STATE_SPACE, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "internvl": {"vision_config": {"image_size": [32, 32], "patch_size": [8, 8]}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "llava_next": {"image_grid_pinpoints": [[32, 32]]},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48, "num_attention_heads": 4, "max_2d_position_embeddings": 128, "channel_shrink_ratio": 4},
    "led": {"attention_window": [8, 8]},
    "longformer": {"attention_window": [8, 8]},
    "longt5": {"decoder_start_token_id": 0},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "mask2former": {"backbone_config": {"window_size": 2}},
    "ministral": {"head_dim": 8, "num_key_value_heads": 2},
    "moss_transcribe_diarize": SHORT_SOUND,
    "mt5": {"decoder_start_token_id": 0},
    "musicflamingo": SHORT_SOUND,
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "patchtst": {
        "context_length": 32,
        "patch_length": 4,
        "patch_stride": 4,
        "num_input_channels": 3,
        "num_targets": 3,
    },
    "pegasus_x": {"block_size": 8, "num_global_tokens": 4},
    "pop2piano": {"decoder_start_token_id": 0},
    "qwen2_audio": SHORT_SOUND,
    "qwen2_5_vl": {"text_config": {"rope_parameters": ROTARY_BY_AXIS}},
    "qwen2_vl": {"text_config": {"rope_parameters": ROTARY_BY_AXIS}},
    "qwen3_5": {"text_config": ONE_OF_FOUR},
    "qwen3_5_text": ONE_OF_FOUR,
    "qwen3_next": ONE_OF_FOUR,
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "siglip2": {"vision_config": {"patch_size": 8, "num_patches": 16}},
    "swin": {"window_size": 2},
    "switch_transformers": {"decoder_start_token_id": 0},
    "t5": {"decoder_start_token_id": 0},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4}},
    "table-transformer": DETR,
    "umt5": {"decoder_start_token_id": 0},
    "upernet": {"backbone_config": {"hidden_sizes": [16, 32, 64, 128]}},
    "vjepa2": {"frames_per_clip": 4, "crop_size": 32, "pred_hidden_size": 32, "pred_num_attention_heads": 4},
    "voxtral": {**SHORT_SOUND, "audio_token_id": 102},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 5,
        "layer_types": ["mamba", "mamba", "hybrid", "mamba", "hybrid"],
        "n_mamba_heads": 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "hybrid"],
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "whisper": {"max_source_positions": 20, "max_target_positions": 20},
}
DECODERS = frozenset(  # encoders that transformers also offers as language models
    "bert roberta xlm-roberta electra camembert ernie roformer big_bird xlm-roberta-xl roberta-prelayernorm "
    "megatron-bert rembert data2vec-text roc_bert bert-generation xmod".split()
)


def fit_config(config: PreTrainedConfig, wanted: type[PreTrainedConfig] | None) -> PreTrainedConfig:
    """The part of a configuration that a class takes: of text and image, say, the image."""
    if wanted is None or isinstance(config, wanted):
        return copy.deepcopy(config)
    parts = (getattr(config, name, None) for name in ("text_config", "vision_config", "audio_config"))
    return copy.deepcopy(next((part for part in parts if isinstance(part, wanted)), config))
