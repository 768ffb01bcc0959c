"""Weights that are stored quantised: what a shadow runs instead, so that the model keeps its own.

The 4-bit layers of bitsandbytes compute y = x W^T + b with W restored from its codes at every call. Their forward also
rewrites the layer: on CPU the first call repacks the codes, in the layer and in an object that a shadow would share
with it. A shadow therefore computes the same product from the restored W. It differs from the layer by the rounding of
its kernel and by nothing else, and gradients and relevance work as for any linear layer.

Other layers have a kernel without a gradient, or one that also rounds x to 8 bits: y = W x^ + b (LLM.int8, dynamic int8
of torch and torchao, GPTQ, AWQ, HQQ). A shadow takes the value of the kernel and the slope of the weight, as if x had
not been rounded: y = W x + b + e, with e = W (x^ - x) a constant without relevance. The numbers of W come from the
codes where their format is known here, and else from the layer itself, applied to unit vectors: what the layer adds to
W x there is nothing that depends on x. That is checked once for each layer; a layer that is not linear runs as it is.

Weights that are there only while their layer runs: offloaded ones, and those restored from 4- or 8-bit codes.

A graph would keep each of them until the backward pass, so that all were there at the end of the forward pass. Instead
it keeps how to get them, and the backward pass loads or restores one at a time.
"""

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._model import OffloadedWeight, list_modules, list_offloaded
from whyformer._plain.private_torch import (
    buffers_of,
    list_function_modes,
    parameters_of,
    without_interception,
    without_modes,
)

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


@dataclass(frozen=True)
class WeightCodes:
    """A weight of a class of its own that can restore its numbers (torchao)."""

    weight: Tensor

    def restore(self) -> Tensor:
        return self.weight.dequantize()


@dataclass(frozen=True)
class AppliedLayer:
    """A layer whose codes only its kernel can read: the columns of its weight are what it makes of unit vectors."""

    layer: nn.Module
    in_features: int
    dtype: torch.dtype = torch.float32

    def restore(self) -> Tensor:
        device = next((t.device for t in list_tensors(self.layer)), torch.device("cpu"))
        units = torch.eye(self.in_features, device=device, dtype=self.dtype)
        with torch.no_grad():
            return (self.apply(units) - self.apply(torch.zeros_like(units[:1]))).mT.contiguous()

    def apply(self, x: Tensor) -> Tensor:
        return type(self.layer).forward(self.layer, x)  # type: ignore[no-any-return]

    def is_linear(self) -> bool:
        """Whether random vectors give what the restored weight gives; 8 bits for x leave about a percent."""
        try:
            weight = self.restore()
            x = torch.randn(16, self.in_features, generator=torch.Generator().manual_seed(0))
            x = x.to(weight.device, self.dtype)
            with torch.no_grad():
                ours = x @ weight.mT + self.apply(torch.zeros_like(x[:1]))
                return float((self.apply(x) - ours).norm()) < ROUNDED * float(ours.norm())
        except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):  # whatever a kernel raises
            return False


class RestoredLinear(nn.Module):
    """What a 4-bit linear layer of bitsandbytes computes, without changing it."""

    compute_dtype: torch.dtype | None = None
    codes: Codes
    present: Tensor | None = None  # the restored weight, while the layer runs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.compute_dtype is None else x.to(self.compute_dtype)
        bias = getattr(self, "bias", None)  # some layers have a method of this name
        bias = bias() if callable(bias) else bias
        bias = None if bias is None else bias.detach().to(wide.dtype)
        with without_modes():
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
    """What a layer computes, by its own kernel, with the slope of its weight. Put before the layer's class."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and not list_function_modes():
            return self.run_kernel(x)
        if isinstance(self.codes, AppliedLayer) and self.codes.dtype != x.dtype:
            self.codes = replace(self.codes, dtype=x.dtype)
        made = super().forward(x)
        if not rounds_inputs.get():
            return made
        with without_modes(), torch.no_grad():
            rounding = self.run_kernel(x.detach()) - made.detach()
        return made + rounding

    def run_kernel(self, x: Tensor) -> Tensor:
        return super(RestoredLinear, self).forward(x)  # type: ignore[no-any-return, misc]


FOUR_BIT_LAYERS, EIGHT_BIT_LAYER = ("Linear4bit", "LinearNF4", "LinearFP4"), "Linear8bitLt"
ROUNDED = 0.05  # of the size of a result: more than 8 bits lose, less than any other function of x
ROUNDING_CLASSES: set[type[nn.Module]] = set()
APPLIED: WeakKeyDictionary[nn.Module, AppliedLayer | None] = WeakKeyDictionary()


def choose_shadow_class(module: nn.Module) -> type[nn.Module]:
    """The class of the shadow of a layer: its own, unless its weights are restored from codes."""
    if isinstance(module, RestoredLinear) or find_codes(module) is None:
        return type(module)
    return RestoredLinear if type(module).__name__ in FOUR_BIT_LAYERS else make_rounding_class(type(module))  # type: ignore[arg-type]


@cache
def make_rounding_class(kind: type[nn.Module]) -> type[nn.Module]:
    made = type(kind.__name__, (RoundingLinear, kind), {"__module__": kind.__module__})
    ROUNDING_CLASSES.add(made)
    return made


def has_rounding_layers(module: nn.Module) -> bool:
    return any(issubclass(choose_shadow_class(part), RoundingLinear) for part in list_modules(module))


def note_rounding_layers(shadow: nn.Module) -> tuple[str, ...]:
    """What gradients and relevance are those of, if layers of a model have a kernel without any."""
    paths = [path for path, part in shadow.named_modules() if isinstance(part, RoundingLinear)]
    return (
        f"{len(paths)} quantised layers (the first is {paths[0]}) are linear for gradients and relevance: their slopes "
        "are the dequantised weights, their values those of their own kernels. What rounding adds is a constant.",
    )


def find_codes(module: nn.Module) -> Codes | None:
    """The codes of a layer whose weights have been quantised; what they mean may be kept at the weight or the layer."""
    if isinstance(module, RestoredLinear):
        return module.codes
    weight, name = parameters_of(module).get("weight"), type(module).__name__
    if type(weight) is nn.Parameter and name != EIGHT_BIT_LAYER:
        return None
    if name == EIGHT_BIT_LAYER and weight is not None:
        scales = getattr(weight, "SCB", None)
        scales = getattr(getattr(module, "state", None), "SCB", None) if scales is None else scales
        if weight.dtype != torch.int8 or not isinstance(scales, Tensor):
            return None
        return EightBitCodes(weight.data.as_subclass(Tensor), scales)
    if name in FOUR_BIT_LAYERS and weight is not None:
        state = getattr(weight, "quant_state", None)
        state = getattr(module, "quant_state", None) if state is None else state
        if state is None:
            return None
        return FourBitCodes(weight.data.as_subclass(Tensor), copy.copy(state), int(module.in_features))  # type: ignore[arg-type]
    if weight is not None and type(module) is nn.Linear:  # torchao: a weight may quantise what it is multiplied by
        return WeightCodes(weight) if getattr(weight, "act_quant_kwargs", None) is not None else None
    own = module.__dict__
    width = own.get("in_features", own.get("infeatures"))
    return find_applied(module, width) if weight is None and isinstance(width, int) and has_codes(module) else None


def has_codes(module: nn.Module) -> bool:
    """Whether a layer keeps integers in the place of a weight."""
    is_packed = type(module).__module__.startswith("torch.ao.nn.quantized.dynamic")
    return is_packed or any(not tensor.is_floating_point() for tensor in list_tensors(module))


def list_tensors(module: nn.Module) -> list[Tensor]:
    return [t for table in (parameters_of(module), buffers_of(module)) for t in table.values() if t is not None]


def find_applied(module: nn.Module, width: int) -> AppliedLayer | None:
    """A copy of the layer, as it may set attributes, to be applied to unit vectors; None if it is not linear."""
    if module not in APPLIED:
        twin = copy.copy(module)
        twin.__dict__ = dict(module.__dict__)
        floating = next((t.dtype for t in list_tensors(module) if t.is_floating_point()), torch.float32)
        with without_modes():
            kinds = [AppliedLayer(twin, width, dtype) for dtype in dict.fromkeys((torch.float32, floating))]
            APPLIED[module] = next((one for one in kinds if one.is_linear()), None)
    return APPLIED[module]


def is_rewritten(value: Tensor) -> bool:
    """A weight that the forward of its layer may rewrite, and that has attributes of its own."""
    return type(value).__module__.partition(".")[0] in REWRITTEN_BY_THEIR_FORWARD


# --- weights that are there only while their layer runs ---------------------------------------------------------------


Load = Callable[[], Tensor]
View = tuple[torch.Size, tuple[int, ...], int]  # size, stride and offset


def reload_weights(shadow: nn.Module) -> AbstractContextManager[None]:
    """The graph of a forward pass inside keeps no such weight: the backward pass gets each one again."""
    parts = list_modules(shadow)
    transient: list[OffloadedWeight | RestoredLinear] = [*list_offloaded(parts)]
    transient += [part for part in parts if isinstance(part, RestoredLinear)]
    if not transient:
        return nullcontext()

    def pack(tensor: Tensor) -> Tensor | Load:
        """A tensor as autograd keeps it; of a transient weight, what gets it again and takes the same view of it.

        That must not hold the shadow: its hooks hold the graph, and Python does not collect a cycle through autograd.
        """
        with without_interception():
            storage = tensor.untyped_storage().data_ptr()
            for one in transient:
                if (weight := one.present) is not None and weight.untyped_storage().data_ptr() == storage:
                    view = (tensor.size(), tensor.stride(), int(tensor.storage_offset()))
                    return partial(load_view, one.load, weight.device, weight.dtype, view)
            return tensor.detach()  # the result of a node would hold the node

    def unpack(kept: Tensor | Load) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept()

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def load_view(load: Load, device: torch.device, dtype: torch.dtype, view: View) -> Tensor:
    return load().to(device, dtype).as_strided(*view)
