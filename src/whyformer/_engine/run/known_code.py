"""Whether a model runs code of libraries only. Its programs are then used without being asked for (replay.py).

A program repeats the operations of a forward pass and nothing else that `forward` does: it prints nothing, counts
nothing and reads no variable. Modules of these libraries do nothing else that anybody waits for, and whether they
have changed can be seen (model_state.py). Of a class, a function or a tensor from elsewhere that is not known.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from whyformer._plain.private_torch import BUFFERS, PARAMETERS

LIBRARIES = {"torch", "transformers", "timm", "torchvision", "open_clip", "sentence_transformers", "peft"}
LIBRARIES |= {"whyformer", "whyformer_papers"}
# What the files of these libraries import: Python's own modules, and those that load files and show progress.
OTHERS = {"accelerate", "einops", "filelock", "huggingface_hub", "jinja2", "numpy", "packaging", "PIL", "regex"}
OTHERS |= {"requests", "safetensors", "tokenizers", "tqdm", "typing_extensions", "yaml"}
IMPORTED = (sys.stdlib_module_names - {"__main__"}) | OTHERS
KNOWN_CODE = LIBRARIES | IMPORTED
# Where transformers looks up functions by the name of an attention
REGISTRIES = (
    ("modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    ("masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
)
ATTENTIONS = {None, "eager", "sdpa", "flash_attention_2", "flash_attention_3"}


def is_of_libraries(parts: Sequence[nn.Module], names: Iterable[Mapping[str, Any]]) -> bool:
    """Whether modules, their settings and weights, and the names that their code uses, are those of libraries.

    names: of the classes of the modules, and of the files that define these.
    """
    return (
        are_modules_known(parts)
        and all(is_setting_known(value) for own in names for value in own.values() if not isinstance(value, type))
        and all(is_attention_known(vars(part).get("config")) for part in parts)
    )


def are_modules_known(parts: Iterable[nn.Module]) -> bool:
    for part in parts:
        if not are_classes_known(type(part).__mro__):
            return False
        own = vars(part)
        for weight in (*own[PARAMETERS].values(), *own[BUFFERS].values()):
            if weight is not None and type(weight) not in (nn.Parameter, nn.Buffer, Tensor):
                return False
        for value in own.values():
            if callable(value) and not isinstance(value, nn.Module) and not is_setting_known(value):
                return False
    return True


@cache
def are_classes_known(kinds: tuple[type, ...]) -> bool:
    return all(map(is_known, kinds))


def is_setting_known(value: Any) -> bool:
    """A function or an object to call, such as an activation, comes from a library; what is only read may be any."""
    if isinstance(value, partial):
        return is_setting_known(value.func)
    if isinstance(value, FunctionType | MethodType | type):
        return is_known(value)
    return not callable(value) or isinstance(value, nn.Module) or is_known(type(value))


def is_attention_known(config: Any) -> bool:
    """Whether the attention of a Hugging Face model is one of its own, and nobody has replaced it."""
    implementation = getattr(config, "_attn_implementation", None)
    if implementation not in ATTENTIONS:
        return False
    registries = [getattr(sys.modules.get(f"transformers.{file}"), name, {}) for file, name in REGISTRIES]
    functions = [registry[implementation] for registry in registries if implementation in registry]
    return all(is_setting_known(function) for function in functions)


def are_known(functions: Iterable[Any]) -> bool:
    """Whether all functions that a model calls come from libraries."""
    return all(is_setting_known(function) for function in functions)


def is_known(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).partition(".")[0] in KNOWN_CODE
