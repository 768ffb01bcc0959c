"""Remove the wrappers of `torch.compile` and data-parallel training from a module."""

import torch
from torch import nn

from whyformer.errors import UnsupportedModel


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and data-parallel wrappers; scripted modules are refused."""
    while True:
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModel(
                f"{type(module).__name__} is a scripted model, whose operations cannot be followed. "
                "Pass the nn.Module it was scripted from."
            )
        if hasattr(module, "_orig_mod"):  # torch.compile
            module = module._orig_mod  # type: ignore[assignment]
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module
