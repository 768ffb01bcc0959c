"""Weights that are stored quantised: what a shadow runs instead, so that the model keeps its own.

The 4-bit layers of bitsandbytes compute y = x W^T + b with W restored from its codes at every call. Their forward also
rewrites the layer: on CPU the first call repacks the codes, in the layer and in an object that a shadow would share
with it. A shadow therefore computes the same product from the restored W. It differs from the layer by the rounding of
its kernel and by nothing else, and gradients and relevance work as for any linear layer.

Layers that also quantise what they are applied to (LLM.int8, dynamic int8) run as they are.
"""

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._plain.private_torch import parameters_of

REWRITTEN_BY_THEIR_FORWARD = ("bitsandbytes",)  # libraries whose weights are rewritten when they are used


@dataclass(frozen=True)
class Codes:
    """The codes of a 4-bit weight [out in], and how to read them."""

    codes: Tensor
    state: Any
    in_features: int

    def restore(self) -> Tensor:
        """The weight that the codes stand for."""
        library = importlib.import_module("bitsandbytes.functional")
        if getattr(self.state, "packing_format_for_cpu", False):  # the kernel of this format is the only one to read it
            own = torch.eye(self.in_features, device=self.codes.device, dtype=torch.bfloat16)
            return library.gemv_4bit(own, self.codes, state=self.state).mT.contiguous()
        return library.dequantize_4bit(self.codes.reshape(-1, 1), self.state)


class RestoredLinear(nn.Module):
    """What a 4-bit linear layer of bitsandbytes computes, without changing it."""

    bias: Tensor | None
    compute_dtype: torch.dtype | None
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


def restores_weights(module: nn.Module) -> bool:
    """A 4-bit linear layer whose weights have been quantised."""
    return type(module).__name__ in ("Linear4bit", "LinearNF4", "LinearFP4") and find_codes(module) is not None


def find_codes(module: nn.Module) -> Codes | None:
    """The codes of a 4-bit layer; the state may be kept at the weight or at the layer."""
    weight = parameters_of(module).get("weight")
    state = getattr(weight, "quant_state", None)
    state = getattr(module, "quant_state", None) if state is None else state
    if weight is None or state is None:
        return None
    return Codes(weight.data.as_subclass(Tensor), copy.copy(state), int(module.in_features))  # type: ignore[arg-type]


def is_rewritten(value: Tensor) -> bool:
    """A weight that the forward of its layer may rewrite, and that has attributes of its own."""
    return type(value).__module__.partition(".")[0] in REWRITTEN_BY_THEIR_FORWARD
