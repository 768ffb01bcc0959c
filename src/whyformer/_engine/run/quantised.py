"""Weights that are stored quantised: what a shadow runs instead, so that the model keeps its own.

The 4-bit layers of bitsandbytes compute y = x W^T + b with W restored from its codes at every call. Their forward also
rewrites the layer: on CPU the first call repacks the codes, in the layer and in an object that a shadow would share
with it. A shadow therefore computes the same product from the restored W. It differs from the layer by the rounding of
its kernel and by nothing else, and gradients and relevance work as for any linear layer.

Its 8-bit layers (LLM.int8) also round x to 8 bits, and compute y = W x^ + b. Their own backward takes the slope W, as
if x had not been rounded. A shadow does the same: y = W x + b + e, with e = W (x^ - x) a constant without relevance.

Other layers that quantise what they are applied to (dynamic int8 of torch and torchao) run as they are.
"""

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._model import list_modules
from whyformer._plain.private_torch import parameters_of, without_interception

REWRITTEN_BY_THEIR_FORWARD = ("bitsandbytes",)  # libraries whose weights are rewritten when they are used


class Codes(Protocol):
    """What a weight [out in] is restored from."""

    def restore(self) -> Tensor: ...


@dataclass(frozen=True)
class FourBitCodes:
    """The codes of a 4-bit weight, and how to read them."""

    codes: Tensor
    state: Any
    in_features: int

    def restore(self) -> Tensor:
        library = importlib.import_module("bitsandbytes.functional")
        if getattr(self.state, "packing_format_for_cpu", False):  # the kernel of this format is the only one to read it
            own = torch.eye(self.in_features, device=self.codes.device, dtype=torch.bfloat16)
            return library.gemv_4bit(own, self.codes, state=self.state).mT.contiguous()
        return library.dequantize_4bit(self.codes.reshape(-1, 1), self.state)


@dataclass(frozen=True)
class EightBitCodes:
    """The codes of an 8-bit weight, and the largest weight of each row."""

    codes: Tensor
    scales: Tensor

    def restore(self) -> Tensor:
        return self.codes * (self.scales.float() / 127)[:, None]


class RestoredLinear(nn.Module):
    """What a 4-bit linear layer of bitsandbytes computes, without changing it."""

    bias: Tensor | None
    compute_dtype: torch.dtype | None = None
    codes: Codes
    present: Tensor | None = None  # the restored weight, while the layer runs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.compute_dtype is None else x.to(self.compute_dtype)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        self.present = self.load().to(wide.dtype)
        try:
            return F.linear(wide, self.present, bias).to(x.dtype)
        finally:
            self.present = None

    @property
    def load(self) -> Callable[[], Tensor]:
        return self.codes.restore


rounds_inputs: ContextVar[bool] = ContextVar("rounds_inputs", default=True)


@contextmanager
def round_nothing() -> Iterator[None]:
    """Inside, 8-bit layers do not round what they are applied to, so that small changes show."""
    before = rounds_inputs.set(False)
    try:
        yield
    finally:
        rounds_inputs.reset(before)


class RoundingLinear(RestoredLinear):
    """What an 8-bit layer computes, by its own kernel, with the slope of its weight. Put before the layer's class."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if rounds_inputs.get():
            with torch.no_grad(), without_interception():
                made.data.copy_(super(RestoredLinear, self).forward(x.detach()))
        return made


FOUR_BIT_LAYERS, EIGHT_BIT_LAYER = ("Linear4bit", "LinearNF4", "LinearFP4"), "Linear8bitLt"


def choose_shadow_class(module: nn.Module) -> type[nn.Module]:
    """The class of the shadow of a layer: its own, unless its weights are restored from codes."""
    if find_codes(module) is None:
        return type(module)
    return RestoredLinear if type(module).__name__ in FOUR_BIT_LAYERS else make_rounding_class(type(module))  # type: ignore[arg-type]


@cache
def make_rounding_class(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (RoundingLinear, kind), {"__module__": kind.__module__})


def has_rounding_layers(module: nn.Module) -> bool:
    return any(type(part).__name__ == EIGHT_BIT_LAYER and find_codes(part) is not None for part in list_modules(module))


def find_codes(module: nn.Module) -> Codes | None:
    """The codes of a layer whose weights have been quantised; what they mean may be kept at the weight or the layer."""
    weight, name = parameters_of(module).get("weight"), type(module).__name__
    if weight is None or name not in (*FOUR_BIT_LAYERS, EIGHT_BIT_LAYER):
        return None
    if name == EIGHT_BIT_LAYER:
        scales = getattr(weight, "SCB", None)
        scales = getattr(getattr(module, "state", None), "SCB", None) if scales is None else scales
        if weight.dtype != torch.int8 or not isinstance(scales, Tensor):
            return None
        return EightBitCodes(weight.data.as_subclass(Tensor), scales)
    state = getattr(weight, "quant_state", None)
    state = getattr(module, "quant_state", None) if state is None else state
    if state is None:
        return None
    return FourBitCodes(weight.data.as_subclass(Tensor), copy.copy(state), int(module.in_features))  # type: ignore[arg-type]


def is_rewritten(value: Tensor) -> bool:
    """A weight that the forward of its layer may rewrite, and that has attributes of its own."""
    return type(value).__module__.partition(".")[0] in REWRITTEN_BY_THEIR_FORWARD
