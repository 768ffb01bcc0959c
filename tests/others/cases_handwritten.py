"""Models of vit-pytorch and x-transformers: (name, build, inputs), tiny, random, in eval mode.

Both packages write their attention and their blocks themselves. `import_vit` imports a module of vit-pytorch without
the package's own `__init__`, which needs torchvision.
"""

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[str, Callable[[], nn.Module], Callable[[], dict[str, Tensor]]]


def import_vit(name: str) -> Any:
    """The module `vit_pytorch.<name>`."""
    if "vit_pytorch" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        spec = importlib.util.find_spec("vit_pytorch")
        assert spec is not None
        package = types.ModuleType("vit_pytorch")
        package.__path__ = list(spec.submodule_search_locations or [])
        sys.modules["vit_pytorch"] = package
    return importlib.import_module(f"vit_pytorch.{name}")


def draw_image() -> dict[str, Tensor]:
    return {"img": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}


def draw_ids() -> dict[str, Tensor]:
    return {"x": torch.randint(3, 20, (2, 9), generator=torch.Generator().manual_seed(0))}


def vit(name: str, class_name: str, **more: Any) -> Callable[[], nn.Module]:
    settings: dict[str, Any] = dict(image_size=32, patch_size=8, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=16)
    settings |= more
    settings = {k: v for k, v in settings.items() if v is not None}

    def build() -> nn.Module:
        torch.manual_seed(0)
        if "transformer" in settings:
            settings["transformer"] = make_encoder()
        return getattr(import_vit(name), class_name)(**settings).eval()

    return build


class Classifier(nn.Module):
    """Token ids, an encoder of x-transformers, the mean of its states, a head."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x, return_embeddings=True).mean(1))


def encoder(**more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from x_transformers import Encoder, TransformerWrapper

        torch.manual_seed(0)
        wrapper = {k: more[k] for k in ("num_memory_tokens", "use_abs_pos_emb") if k in more}
        layers = {k: v for k, v in more.items() if k not in wrapper}
        made = Encoder(**{"dim": 16, "depth": 2, "heads": 2, "attn_dim_head": 8, **layers})
        return Classifier(TransformerWrapper(num_tokens=20, max_seq_len=12, attn_layers=made, **wrapper)).eval()

    return build


def decoder(**more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        torch.manual_seed(0)
        made = Decoder(**{"dim": 16, "depth": 2, "heads": 2, "attn_dim_head": 8, **more})
        return TransformerWrapper(num_tokens=20, max_seq_len=12, attn_layers=made).eval()

    return build


def image_wrapper(**more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from x_transformers import Encoder, ViTransformerWrapper

        torch.manual_seed(0)
        made = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8)
        return ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=made, **more).eval()

    return build


class DistillableViT(nn.Module):
    """DeiT: a ViT with a token for distillation. Called without that token, it is a plain ViT."""

    def __init__(self) -> None:
        super().__init__()
        made = import_vit("distill").DistillableViT
        self.vit = made(image_size=32, patch_size=8, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=16)
        self.token = nn.Parameter(torch.randn(1, 16))

    def forward(self, img: Tensor) -> Tensor:
        return self.vit(img, self.token)[0]


def make_encoder(dim: int = 16) -> nn.Module:
    from x_transformers import Encoder

    return Encoder(dim=dim, depth=2, heads=2, attn_dim_head=8)


def build_distilled() -> nn.Module:
    torch.manual_seed(0)
    return DistillableViT().eval()


VIT_PYTORCH: list[Case] = [
    (f"vit-pytorch: {name}", build, draw_image)
    for name, build in {
        "ViT": vit("vit", "ViT"),
        "ViT mean": vit("vit", "ViT", pool="mean"),
        "ViT depth 1": vit("vit", "ViT", depth=1),
        "SimpleViT": vit("simple_vit", "SimpleViT"),
        "SimpleViT registers": vit("simple_vit_with_register_tokens", "SimpleViT"),
        "SimpleViT qk norm": vit("simple_vit_with_qk_norm", "SimpleViT"),
        "SimpleViT patch dropout": vit("simple_vit_with_patch_dropout", "SimpleViT"),
        "SimpleViT hyper connections": vit("simple_vit_with_hyper_connections", "SimpleViT", num_residual_streams=2),
        "SimpleFlashViT": vit("simple_flash_attn_vit", "SimpleViT"),
        "ViT patch dropout": vit("vit_with_patch_dropout", "ViT"),
        "DeiT": build_distilled,
        "DeepViT": vit("deepvit", "DeepViT"),
        "CaiT": vit("cait", "CaiT", cls_depth=1),
        "CaiT 2 class layers": vit("cait", "CaiT", cls_depth=2),
        "ParallelViT": vit("parallel_vit", "ViT"),
        "RvT": vit("rvt", "RvT"),
        "ViT small dataset": vit("vit_for_small_dataset", "ViT"),
        "LearnableMemoryViT": vit("learnable_memory_vit", "ViT"),
        "Efficient ViT": vit("efficient", "ViT", heads=None, mlp_dim=None, depth=None, transformer=make_encoder),
        "LookViT": vit("look_vit", "LookViT", mlp_dim=None, patch_size=16, highres_patch_size=8,
                       patch_conv_kernel_size=7, cross_attn_heads=2),
        "nViT": vit("normalized_vit", "nViT"),
        "CCT": vit("cct", "CCT", img_size=32, embedding_dim=16, num_layers=2, num_heads=2, n_conv_layers=1,
                   kernel_size=3, mlp_ratio=1.0, positional_embedding="learnable", image_size=None, patch_size=None,
                   dim=None, depth=None, heads=None, mlp_dim=None),
        "T2TViT": vit("t2t", "T2TViT", t2t_layers=((7, 4), (3, 2)), patch_size=None),
        "CvT": vit("cvt", "CvT", image_size=None, patch_size=None, dim=None, depth=None, heads=None, mlp_dim=None,
                   s1_emb_dim=8, s1_depth=1, s1_mlp_mult=1, s2_emb_dim=16, s2_heads=2, s2_depth=1, s2_mlp_mult=1,
                   s3_emb_dim=16, s3_heads=2, s3_depth=1, s3_mlp_mult=1),
        "CrossViT": vit("cross_vit", "CrossViT", patch_size=None, dim=None, depth=1, heads=None, mlp_dim=None,
                        sm_dim=16, lg_dim=16, sm_patch_size=8, sm_enc_depth=1, sm_enc_heads=2, sm_enc_mlp_dim=16,
                        sm_enc_dim_head=8, lg_patch_size=16, lg_enc_depth=1, lg_enc_heads=2, lg_enc_mlp_dim=16,
                        lg_enc_dim_head=8, cross_attn_depth=1, cross_attn_heads=2, cross_attn_dim_head=8),
        "PiT": vit("pit", "PiT", depth=(1, 1), heads=2),
        "LeViT": vit("levit", "LeViT", patch_size=None, dim=16, depth=1, heads=2, mlp_dim=None, mlp_mult=1,
                     stages=1),
        "NesT": vit("nest", "NesT", mlp_dim=None, num_hierarchies=2, block_repeats=(1, 1), patch_size=4, dim=16,
                    depth=None, heads=2),
        "XCiT": vit("xcit", "XCiT", cls_depth=1),
        "TwinsSVT": vit("twins_svt", "TwinsSVT", image_size=None, patch_size=None, dim=None, depth=None, heads=None,
                        mlp_dim=None, s1_emb_dim=16, s2_emb_dim=16, s3_emb_dim=16, s4_emb_dim=16, s1_local_patch_size=1,
                        s2_local_patch_size=1, s3_local_patch_size=1, s4_local_patch_size=1, s1_global_k=1,
                        s2_global_k=1, s3_global_k=1, s4_global_k=1, s3_depth=1, s4_depth=1),
        "NaViT": vit("na_vit", "NaViT"),
    }.items()
]  # fmt: skip

X_TRANSFORMERS: list[Case] = [
    *(
        (f"x-transformers: {name}", build, draw_ids)
        for name, build in {
            "encoder": encoder(),
            "encoder, flash": encoder(attn_flash=True),
            "encoder, one key head": encoder(attn_one_kv_head=True),
            "encoder, grouped": encoder(heads=4, attn_kv_heads=2, attn_dim_head=4),
            "encoder, ALiBi": encoder(alibi_pos_bias=True),
            "encoder, rotary": encoder(rotary_pos_emb=True),
            "encoder, relative bias": encoder(rel_pos_bias=True),
            "encoder, dynamic bias": encoder(dynamic_pos_bias=True),
            "encoder, memory keys": encoder(attn_num_mem_kv=3),
            "encoder, memory tokens": encoder(num_memory_tokens=2),
            "encoder, talking heads": encoder(attn_pre_talking_heads=True, attn_post_talking_heads=True),
            "encoder, softclamp": encoder(attn_softclamp_logits=True),
            "encoder, add zero": encoder(attn_add_zero_kv=True),
            "encoder, head scale": encoder(attn_head_scale=True),
            "encoder, qk norm": encoder(attn_qk_norm=True),
            "encoder, sparse top k": encoder(attn_sparse_topk=3),
            "encoder, gate values": encoder(attn_gate_values=True),
            "encoder, value residual": encoder(add_value_residual=True),
            "encoder, macaron": encoder(macaron=True),
            "encoder, sandwich": encoder(sandwich_coef=1),
            "encoder, sandwich norm": encoder(sandwich_norm=True),
            "encoder, post norm": encoder(pre_norm=False),
            "encoder, residual attention": encoder(residual_attn=True),
            "encoder, RMS norm": encoder(use_rmsnorm=True),
            "encoder, simple RMS norm": encoder(use_simple_rmsnorm=True),
            "encoder, scale norm": encoder(use_scalenorm=True),
            "encoder, GLU": encoder(ff_glu=True, ff_swish=True),
            "encoder, relu squared": encoder(ff_relu_squared=True),
            "encoder, GRU gates": encoder(gate_residual=True),
            "encoder, shifted tokens": encoder(shift_tokens=1),
            "encoder, scaled residual": encoder(scale_residual=True),
            "encoder, hyper connections": encoder(num_residual_streams=2),
            "encoder, layers shared": encoder(weight_tie_layers=True),
        }.items()
    ),
    *(
        (f"x-transformers: {name}", build, draw_ids)
        for name, build in {
            "decoder": decoder(),
            "decoder, ALiBi": decoder(alibi_pos_bias=True),
            "decoder, rotary and RMS norm": decoder(rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True),
            "decoder, memory keys": decoder(attn_num_mem_kv=2),
            "decoder, data-dependent ALiBi": decoder(attn_data_dependent_alibi=True),
        }.items()
    ),
    *(
        (f"x-transformers: {name}", build, draw_image)
        for name, build in {
            "image wrapper": image_wrapper(),
            "image wrapper, registers": image_wrapper(num_register_tokens=2),
        }.items()
    ),
]

CASES: list[Case] = [*VIT_PYTORCH, *X_TRANSFORMERS]
