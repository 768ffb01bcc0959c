"""Every private name of torch that whyformer uses, with its reason. All were tried with torch 2.11 (H200) and 2.13.

No other file uses one (`tests/test_rooms.py`). What torch renames or removes is repaired here. This file imports torch,
so `import whyformer` and `whyformer --help` must not import it.

Names of operators in tables (`"_softmax"`, `"_to_copy"`) are data: an operator of another name is an unknown one.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch._ops import OpOverload as OpOverload
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# Inside, function modes do not see operations: what the interception computes itself is not part of the model. Its
# neighbour `DisableTorchFunctionSubclass` leaves modes on.
without_interception = torch._C.DisableTorchFunction


@contextmanager
def without_modes() -> Iterator[None]:
    """The same for tensors with operations of their own, which `without_interception` takes away from them."""
    with ExitStack() as stack:
        for _ in _get_current_function_mode_stack():
            stack.enter_context(_pop_mode_temporarily())
        yield


# The modes that are on: a recording must know whether it is watched, and must find the recorder above it.
list_function_modes = _get_current_function_mode_stack
list_dispatch_modes = _get_current_dispatch_mode_stack

# --- modules ---------------------------------------------------------------------------------------------------------

# What a module has itself. `parameters()` and `buffers()` skip None, build names, and take ten times as long, which
# counts where all modules are read in every run; `__dict__` of a copied module is filled by these names.
PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"
parameters_of: Callable[[nn.Module], dict[str, nn.Parameter | None]] = attrgetter(PARAMETERS)
buffers_of: Callable[[nn.Module], dict[str, Tensor | None]] = attrgetter(BUFFERS)
children_of: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter(CHILDREN)

# There is no public way to ask for hooks, or to copy them to another module.
FORWARD_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
has_global_hooks = nn.modules.module._has_any_global_hook

# `torch.compile` wraps a module, which has no public name in the wrapper, or replaces its call.
COMPILED_MODULE = "_orig_mod"
COMPILED_CALL = "_compiled_call_impl"

# --- tensors and operators -------------------------------------------------------------------------------------------

# How often a tensor was written into; not for tensors made in inference mode.
writes_of: Callable[[Tensor], int] = attrgetter("_version")

# What an operator takes and writes into, and its kernel without a layer of Python.
schema_of: Callable[[OpOverload], torch.FunctionSchema] = attrgetter("_schema")
kernel_of: Callable[[OpOverload], Callable[..., Tensor]] = attrgetter("_op")

UNIQUE = torch.ops.aten._unique2.default
READ_NUMBER = torch.ops.aten._local_scalar_dense.default
TO_COPY = torch.ops.aten._to_copy.default

# Hooks on what autograd keeps, of which the last one that was set counts; None if there are none. `checkpoint` is one.
top_saving_hooks: Callable[[bool], tuple[Callable[..., object], ...] | None] = (
    torch._C._autograd._top_saved_tensors_default_hooks
)

# The class of the nodes that an autograd function leaves in the graph.
backward_class_of: Callable[[type[torch.autograd.Function]], type[torch.autograd.graph.Node]] = attrgetter(
    "_backward_cls"
)


def storage_of(tensor: Tensor) -> int:
    """The identity of the memory of a tensor, also of one without memory, where `data_ptr()` is 0."""
    return tensor.untyped_storage()._cdata


def forward_class_of(node: object) -> type | None:
    """The autograd function that a node of the graph belongs to."""
    return getattr(type(node), "_forward_cls", None)


def source_of_scripted(function: object) -> Callable[..., object] | None:
    """The Python function that a scripted one was made from."""
    return getattr(function, "_torchdynamo_inline", None)


# `torch.vmap` and `torch.func.vmap` look this function up on every call; there is no public way to map by a loop.
VMAP, VMAP_CALL = torch._functorch.apis, "vmap_impl"
read_vmap_inputs = (
    torch._functorch.vmap._process_batched_inputs
)  # -> size, axis of each argument, arguments, their tree
flatten_tree, unflatten_tree = torch.utils._pytree.tree_flatten, torch.utils._pytree.tree_unflatten
broadcast_tree = torch.utils._pytree._broadcast_to_and_flatten


# --- threads ----------------------------------------------------------------------------------------------------------

# Python's own and documented: what each thread is doing.
frames_of_threads = sys._current_frames

# The function that called the function that calls this, and so on outwards.
caller_of_operation = sys._getframe


# --- memory of a GPU -------------------------------------------------------------------------------------------------


def end_pool_of_failed_capture(device: int, pool: tuple[int, int]) -> None:
    """A CUDA graph whose capture fails goes on to direct memory to its pool. There is no public way to end that."""
    with suppress(RuntimeError):  # it has ended
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
