"""Remove the wrappers of `torch.compile`, data-parallel training and PEFT from a module; refuse sharded models.

A PEFT adapter (LoRA, IA3, ...) is part of the layers it was injected into, so the wrapper around the model adds nothing
to what it computes. Wrappers that do add something stay: prompt learning, X-LoRA, activated LoRA, Poly.
"""

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from whyformer._plain.private_torch import CHILDREN, COMPILED_MODULE, children_of
from whyformer.errors import UnsupportedModel

if TYPE_CHECKING:
    from peft import PeftConfig


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, data-parallel and PEFT wrappers; scripted and sharded modules are refused."""
    while True:
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModel(
                f"{type(module).__name__} is a scripted model, whose operations cannot be followed. "
                "Pass the nn.Module it was scripted from."
            )
        if has_original(module):  # torch.compile
            module = getattr(module, COMPILED_MODULE)
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif "torch.distributed.fsdp" in sys.modules and is_sharded(module):
            raise UnsupportedModel(
                f"The weights of {type(module).__name__} are sharded over processes (FSDP). Gather them with "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True)), load them into an unsharded model and open that."
            )
        elif "peft" in sys.modules and adds_nothing(module):
            module = module.base_model.model  # type: ignore[assignment, union-attr]
        else:
            return module


def unwrap_parts(module: nn.Module) -> dict[int, nn.Module]:
    """Each module inside, also a wrapper, by its id, without its own wrappers."""
    return {id(part): unwrap(part) for part in list_modules(unwrap(module))}


def has_original(module: nn.Module) -> bool:
    """As `hasattr(module, COMPILED_MODULE)`, which is slow on a module that has none."""
    own = getattr(module, "__dict__", {})
    return COMPILED_MODULE in own.get(CHILDREN, ()) or COMPILED_MODULE in own


def list_modules(module: nn.Module) -> list[nn.Module]:
    """The modules of `module.modules()`, in their order, without a generator for each level."""
    found: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            if children := children_of(part):
                waiting.extend(child for child in reversed(children.values()) if child is not None)
    return list(found.values())


def is_sharded(module: nn.Module) -> bool:
    """Whether this is a module of FSDP, whose parameters are only a part of the weights."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # without this module there are no instances
    kinds = [getattr(fsdp, name) for name in ("FullyShardedDataParallel", "FSDPModule") if hasattr(fsdp, name)]
    return isinstance(module, tuple(kinds))


def adds_nothing(module: nn.Module) -> bool:
    """Whether this is a PeftModel that only passes its inputs on to the model with the adapter."""
    if not is_peft_model(module) or module.active_peft_config.is_prompt_learning:  # type: ignore[union-attr]
        return False
    tuners = sys.modules["peft.tuners.tuners_utils"]
    config = module.active_peft_config
    reads_inputs = getattr(config, "alora_invocation_tokens", None) or name_adapter(config) == "POLY"
    tuner: Any = module.base_model
    return isinstance(tuner, tuners.BaseTuner) and type(tuner).forward is tuners.BaseTuner.forward and not reads_inputs


def is_peft_model(module: nn.Module) -> bool:
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def name_adapter(config: "PeftConfig") -> str:
    """The PEFT type, an enum or a string."""
    return str(getattr(config.peft_type, "value", config.peft_type))
