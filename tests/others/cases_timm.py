"""Models of timm, with few and narrow layers: ViT and its relatives, windows, hierarchies; some without attention."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from others.subject import Subject, describe_image_model

PLAIN = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
# name -> arguments of create_model; the size of the image is img_size, or 32
MODELS: dict[str, dict] = {
    "vit_tiny_patch16_224": PLAIN,
    "vit_small_patch16_224 avg": PLAIN | {"global_pool": "avg", "class_token": False},
    "vit_base_patch16_224 max": PLAIN | {"global_pool": "max"},
    "vit_base_patch16_siglip_224 map": PLAIN,
    "vit_small_patch14_dinov2": PLAIN,
    "vit_small_patch14_reg4_dinov2": PLAIN,
    "vit_base_patch16_clip_224": PLAIN,
    "vit_base_patch16_clip_quickgelu_224": PLAIN,
    "vit_base_patch16_rpn_224": PLAIN,
    "vit_srelpos_small_patch16_224": PLAIN,
    "vit_relpos_small_patch16_224": PLAIN,
    "vit_relpos_base_patch16_clsgap_224": PLAIN,
    "vit_small_patch16_18x2_224": PLAIN,
    "vit_base_patch16_xp_224": PLAIN,
    "vit_so150m_patch16_reg4_gap_256": PLAIN,
    "vit_little_patch16_reg1_gap_256": PLAIN,
    "vit_mediumd_patch16_reg4_gap_256": PLAIN,
    "vit_wee_patch16_reg1_gap_256": PLAIN,
    "vit_dlittle_patch16_reg1_gap_256": PLAIN,
    "vit_base_patch16_gap_224": PLAIN,
    "vit_giantopt_patch16_siglip_256": PLAIN,
    "vit_base_r26_s32_224": {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5},
    "vit_small_resnet26d_224": {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5},
    "vit_small_plus_patch16_dinov3": PLAIN,
    "deit_tiny_patch16_224": PLAIN,
    "deit_tiny_distilled_patch16_224": PLAIN,
    "deit3_small_patch16_224": PLAIN,
    "beit_base_patch16_224": PLAIN,
    "beitv2_base_patch16_224": PLAIN,
    "beit3_base_patch16_224": PLAIN,
    "eva_giant_patch14_224": PLAIN,
    "eva02_tiny_patch14_224": PLAIN,
    "vit_base_patch16_rope_reg1_gap_256": PLAIN,
    "vit_base_patch16_rope_mixed_224": PLAIN,
    "cait_xxs24_224": PLAIN,
    "xcit_nano_12_p8_224": PLAIN,
    "volo_d1_224": {"img_size": 64, "num_classes": 5},
    "convit_tiny": PLAIN | {"local_up_to_layer": 1},
    "visformer_tiny": {"img_size": 64, "embed_dim": 32, "depth": (1, 1, 1), "num_heads": 4, "num_classes": 5},
    "pit_ti_224": {"img_size": 64, "base_dims": (8, 8, 8), "depth": (1, 1, 1), "heads": (2, 4, 4), "num_classes": 5},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32,
        "window_size": 4,
        "embed_dim": 16,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "num_classes": 5,
    },
    "swinv2_tiny_window8_256": {
        "img_size": 32,
        "window_size": 4,
        "embed_dim": 16,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "num_classes": 5,
    },
    "swinv2_cr_tiny_224": {"img_size": 64, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "num_classes": 5},
    "twins_svt_small": {
        "img_size": 64,
        "embed_dims": (16, 16, 16, 16),
        "num_heads": (2, 2, 2, 2),
        "depths": (1, 1, 1, 1),
        "wss": (4, 4, 2, 2),
        "num_classes": 5,
    },
    "pvt_v2_b0": {"num_classes": 5, "depths": (1, 1, 1, 1)},
    "hiera_tiny_224": {"img_size": 64, "embed_dim": 16, "stages": (1, 1, 1, 1), "num_classes": 5},
    "levit_128s": {"img_size": 64, "num_classes": 5},
    "mobilevit_xxs": {"num_classes": 5},
    "davit_tiny": {"num_classes": 5, "depths": (1, 1, 1, 1), "embed_dims": (16, 16, 32, 32), "num_heads": (2, 2, 4, 4)},
    "samvit_base_patch16": {
        "img_size": 64,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 4,
        "num_classes": 5,
        "window_size": 2,
    },
    "mixer_s16_224": {"img_size": 32, "num_classes": 5},
    "resnet18": {"num_classes": 5},
    "naflexvit_base_patch16_gap": {
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 4,
        "num_classes": 5,
        "patch_size": 8,
        "pos_embed_grid_size": (4, 4),
    },
}


def build(name: str) -> Subject:
    import timm

    torch.manual_seed(0)
    arguments = MODELS[name]
    module = timm.create_model(name.partition(" ")[0], pretrained=False, **arguments).eval()
    randomise_zeros(module)
    return describe_image_model(module, arguments.get("img_size", 32))


def randomise_zeros(module: torch.nn.Module) -> None:
    """timm begins with heads, position tables and layer scales of 0, where nothing could be told from nothing."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if not bool(weight.any()) or name.endswith("gamma") or "gamma_" in name:
                weight.normal_(std=0.2)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for name in MODELS:
        yield "timm", name, partial(build, name)
