"""Quantised layers of bitsandbytes and torchao, on the processor."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from others.cases_peft import build_bert, build_vit
from others.subject import Subject, describe_module, make_ids, make_images
from torch import nn

# The 4-bit kernels take 64 weights at a time.
BASES = {"BERT": partial(build_bert, width=64), "ViT": partial(build_vit, width=64)}


def describe(base: str, quantise: Callable[[nn.Module], nn.Module]) -> Subject:
    inputs = {"pixel_values": make_images()} if base == "ViT" else make_ids()
    return describe_module(quantise(BASES[base]().eval()).eval(), inputs, tolerance=2e-2)


def replace_linears(module: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear) and name != "classifier":
            layer = make(child)
            layer.load_state_dict(child.state_dict())
            setattr(module, name, layer)
        else:
            replace_linears(child, make)
    return module


def quantise_bitsandbytes(bits: int, module: nn.Module) -> nn.Module:
    import bitsandbytes

    def make(linear: nn.Linear) -> nn.Module:
        sizes = (linear.in_features, linear.out_features, linear.bias is not None)
        if bits == 8:
            return bitsandbytes.nn.Linear8bitLt(*sizes, has_fp16_weights=False)
        return bitsandbytes.nn.Linear4bit(*sizes, compute_dtype=torch.float32, quant_type="nf4")

    return replace_linears(module, make).to("cpu")


def quantise_torchao(kind: str, module: nn.Module) -> nn.Module:
    from torchao import quantization

    config = getattr(quantization, kind)
    more = {"weight_dtype": torch.int4} if kind == "IntxWeightOnlyConfig" else {}
    quantization.quantize_(module, config(**more))
    return module


def quantise_dynamically(module: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(copy.deepcopy(module), {nn.Linear}, dtype=torch.qint8)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for base in BASES:
        for bits in (8, 4):
            yield "bitsandbytes", f"{base}, {bits} bits", partial(describe, base, partial(quantise_bitsandbytes, bits))
        for kind in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "IntxWeightOnlyConfig"):
            yield (
                "torchao",
                f"{base}, {kind.removesuffix('Config')}",
                partial(describe, base, partial(quantise_torchao, kind)),
            )
        yield "torch", f"{base}, dynamic int8", partial(describe, base, quantise_dynamically)
