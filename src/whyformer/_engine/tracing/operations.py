"""Operations: calls of torch functions, and which kind of operation each name is.

A name is that of the function, without the double underscores of operators: `torch.add`, `Tensor.add` and `a + b` are
all `add`. A property such as `x.T` is `T`. In-place operations keep their underscore: `add_`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import EllipsisType
from typing import Any, TypeAlias

import torch
from torch import Tensor

Arguments = tuple[Any, ...]  # of a call of torch, by position
Options = dict[str, Any]  # by name

VIEWS = frozenset(
    "view reshape view_as reshape_as transpose swapaxes swapdims permute movedim moveaxis flatten unflatten squeeze "
    "unsqueeze expand expand_as broadcast_to getitem select narrow index_select chunk split tensor_split unbind T mT t "
    "roll flip repeat repeat_interleave tile unfold take_along_dim gather pad diagonal hsplit vsplit split_with_sizes "
    "constant_pad_nd".split()
)  # the gradient of a view is the index rule
CONCATENATIONS = frozenset("cat concat concatenate stack hstack".split())
IDENTITIES = frozenset(
    "contiguous clone to float double half bfloat16 type type_as cuda cpu dropout dropout1d dropout2d alpha_dropout "
    "feature_dropout masked_fill nan_to_num where triu tril alias maximum "
    "minimum fmax fmin scatter masked_scatter index_put index_copy index_fill slice_scatter select_scatter".split()
)  # every entry is passed on or blocked
MAX_POOLS = frozenset("max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d".split())
EXTREMA = frozenset("amax max amin min topk sort".split()) | MAX_POOLS  # the gradient goes to the selected entry
QUERIES = frozenset("shape size dim ndim numel len dtype device is_floating_point is_complex is_cuda".split())
HARMLESS = frozenset("requires_grad_ retain_grad detach_ register_hook set_ data grad".split())

ACTIVATIONS = frozenset(
    "gelu relu silu sigmoid tanh elu celu leaky_relu selu softplus mish hardswish hardsigmoid hardtanh relu6 softsign "
    "logsigmoid log_sigmoid prelu erf exp expm1 log log1p pow rpow square sqrt rsqrt reciprocal abs clamp clip "
    "clamp_min clamp_max sin cos tan atan threshold".split()
)
LOGARITHMS = frozenset("log logsigmoid log_sigmoid".split())  # activations that are not 0 where their operand is
SOFTMAXES = frozenset("softmax _softmax softmin log_softmax".split())
NORMS = frozenset("layer_norm rms_norm group_norm batch_norm instance_norm normalize native_layer_norm".split())
POOLS = frozenset("mean sum avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d".split())
GRID_POOLS = frozenset("avg_pool2d max_pool2d adaptive_avg_pool2d adaptive_max_pool2d".split())
STATISTICS = frozenset("mean sum var std norm vector_norm amax amin logsumexp linalg_norm linalg_vector_norm".split())
ORDER_STATISTICS = {"median": 1, "nanmedian": 1, "mode": 1, "quantile": 2, "nanquantile": 2, "kthvalue": 2}  # -> dim
RESIZES = frozenset("interpolate upsample".split())  # linear in the image
ROW_SUMS = frozenset(("index_add", "scatter_add"))  # onto zeros: linear in the rows
SAMPLINGS = frozenset(("grid_sample", "grid_sampler"))  # linear in the image; where it is read is held constant
LINEAR_IN_ONE = frozenset("cumsum linalg_solve_triangular fold as_strided fft_fftn real".split()) | ROW_SUMS
CASTS = frozenset("contiguous clone to type type_as cuda cpu alias long int short".split())
CONSTRUCTORS = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full new_empty".split()
)
ROUNDINGS = frozenset("sign sgn round floor ceil trunc fix heaviside".split())
STEPS = frozenset("embedding getitem index_select one_hot".split()) | ROUNDINGS  # through which numbers act as codes
WHOLE = frozenset(  # of whole numbers
    "long int short remainder fmod mod rmod floordiv floor_divide bitwise_and and or xor lshift rshift".split()
)
REDUCTIONS = POOLS | STATISTICS | EXTREMA
CONVOLUTIONS = frozenset("conv1d conv2d conv3d".split())
TRANSPOSED_CONVOLUTIONS = frozenset("conv_transpose1d conv_transpose2d conv_transpose3d".split())
PRODUCTS = frozenset("matmul rmatmul bmm mm baddbmm addmm einsum".split())
ADDITIONS = frozenset("add radd sub rsub subtract".split())
DIVISIONS = frozenset("div rdiv truediv rtruediv divide true_divide".split())
MULTIPLICATIONS = frozenset("mul rmul multiply neg".split()) | DIVISIONS
ELEMENTWISE = ACTIVATIONS | MULTIPLICATIONS | ADDITIONS

EMBEDDINGS = frozenset(("embedding",))
MERGES = frozenset(("masked_scatter", "where"))  # by which features of images take the place of embeddings
FUSED_ATTENTION = "scaled_dot_product_attention"
IN_PLACE = {  # `x += y` calls add_
    name: name.removesuffix("_") for name in ("add_", "sub_", "mul_", "div_", "relu_", "log1p_")
}
OPAQUE_KERNELS = (
    "flash_attn",
    "memory_efficient_attention",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
)

# An argument of a torch function, or what it returns.
Plain: TypeAlias = "int | float | str | slice | EllipsisType | torch.dtype | torch.device | None"
Argument: TypeAlias = "Tensor | list[Argument] | tuple[Argument, ...] | Plain"


def name_of(function: Callable[..., Argument]) -> str:
    name = getattr(function, "__name__", None) or str(function)
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


@cache
def hides_attention(name: str) -> bool:
    return any(hidden in name for hidden in OPAQUE_KERNELS)


def find_tensors(values: Iterable[Argument]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from find_tensors(value)


def expand_equation(equation: str, factors: Sequence[Tensor]) -> str:
    """An einsum equation without spaces, and with letters for `...` if it has the same axes in all factors."""
    equation = equation.replace(" ", "")
    letters = equation.partition("->")[0].split(",")
    implied = {f.dim() - len(x) + 3 for x, f in zip(letters, factors, strict=False) if "..." in x}
    unused = [x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if x not in equation]
    return equation.replace("...", "".join(unused[: implied.pop()])) if len(implied) == 1 else equation


def map_nested(values: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """The same arguments with `change` applied to every entry, also inside lists and tuples."""
    if isinstance(values, list | tuple) and type(values) in (list, tuple):
        return type(values)(map_nested(value, change) for value in values)
    return change(values)


@cache
def is_marked_in_place(name: str) -> bool:
    return name == "setitem" or (name.endswith("_") and name not in HARMLESS)


@dataclass
class Operation:
    """One call of a torch function. Nothing changes it; it is not frozen because one is made for every call."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    given: list[Tensor] = field(init=False, repr=False)  # all tensors among the arguments

    def __post_init__(self) -> None:
        self.given = given = []
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor):
                given.append(value)
            elif isinstance(value, (list, tuple)):
                given.extend(find_tensors(value))

    @property
    def dependent(self) -> list[Tensor]:
        """The operands that depend on the explained input."""
        return [tensor for tensor in self.given if tensor.requires_grad]

    @property
    def is_in_place(self) -> bool:
        """Whether it writes into its first operand."""
        return is_marked_in_place(self.name) or bool(self.kwargs.get("inplace"))

    def run(self) -> Any:
        result = self.function(*self.args, **self.kwargs)
        if self.name == "batch_norm" and isinstance(result, Tensor) and result.requires_grad:
            # On the CPU, its backward outside training (torch 2.13) reads the gradient of a single image in the wrong
            # order if that is a transposed view, as behind every `flatten(2).transpose(1, 2)`.
            result.register_hook(lambda gradient: None if gradient is None else gradient.contiguous())
        return result

    def map_arguments(self, change: Callable[[Argument], Argument]) -> "Operation":
        args = tuple(map_nested(arg, change) for arg in self.args)
        return Operation(
            self.name, self.function, args, {key: map_nested(value, change) for key, value in self.kwargs.items()}
        )

    def argument(self, index: int, *names: str, default: Argument = None) -> Any:
        """An argument that is passed by position or under one of several names."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[index] if len(self.args) > index else default

    def linear_arguments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.argument(0, "input"), self.argument(1, "weight"), self.argument(2, "bias")

    def concatenation_arguments(self) -> tuple[list[Tensor], int]:
        """The parts of a concatenation, without the empty tensor that caches start from, and its axis."""
        parts = list(self.argument(0, "tensors"))
        axis = self.argument(1, "dim", "axis", default=int(self.name == "hstack" and parts[0].dim() > 1))
        return [p for p in parts if p.dim() > 1 or p.numel() or len(parts) == 1], axis
