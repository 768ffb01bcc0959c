"""The code that a model runs: whether it is that of libraries, and whether it was replaced.

Whether a model runs code of libraries only. Its programs are then used without being asked for (replay.py).

A program repeats the operations of a forward pass and nothing else that `forward` does: it prints nothing, counts
nothing and reads no variable. Modules of these libraries do nothing else that anybody waits for, and whether they
have changed can be seen (model_state.py). Of a class, a function or a tensor from elsewhere that is not known.

The code that a model runs: every name, function and registry on the way of its forward that may be replaced.

From `forward` of each class of modules, names are followed as Python would resolve them: globals of the file that
defines a function, attributes of modules and classes, closures, decorators, registries such as
`ALL_ATTENTION_FUNCTIONS`. What they stand for is compared by identity, and of functions the code and the defaults too,
since both can be swapped. Code of Python's own modules, and of torch below `torch.nn`, is compared by name only.

Following takes some milliseconds for a class of models, and is done again after a difference was found: what was put in
place of something has names of its own. Comparing takes some ten microseconds.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter, itemgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
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


# --- what may be replaced ---------------------------------------------------------------------------------------------


FOLLOWED_TORCH = ("torch.nn.modules", "torch.nn.functional")
# Parts of libraries that decide nothing about the numbers of a run: messages, files, training, what is installed; and
# kernels with which a model is refused
PASSED_OVER = tuple(
    "logging import_utils hub doc deprecation trainer generation quantizers loss initialization packaging safetensors "
    "accelerate distributed heterogeneity flash flex eager_paged sdpa_paged deepgemm finegrained sonicmoe "
    "modeling_flash".split()
)
CALLED_BY_PYTHON = ("__init__", "__call__", "__getitem__", "__getattr__", "__post_init__", "forward")
CALLED_OF_MODULES = ("__call__", "forward")
LARGEST = 500  # entries of a list or a dictionary that are compared


class WatchedCode:
    """What the classes of a model's modules run. `read()` gives what can be replaced, to be compared by identity."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self.namespaces: list[Any] = []  # dictionaries and lists, of which all values are compared
        self.entries: dict[int, tuple[Mapping[str, Any], list[str]]] = {}  # single names of a file or class
        self.functions: list[FunctionType] = []
        self.cells: list[CellType] = []
        self.seen: set[Any] = set()
        self.waiting: list[tuple[FunctionType, type | None]] = []
        self.registered: list[Any] = []
        for kind in sorted(kinds, key=lambda one: (one.__module__, one.__qualname__)):
            self.meet_class(kind, ())
        self.follow_all()
        self.direct = tuple(self.functions)  # used by name; the others are in registries, and perhaps not used at all
        for registered in self.registered:
            self.meet(registered, ())
            self.follow_all()
        several = [(names, used) for names, used in self.entries.values() if len(used) > 1]
        self.readers = [(names, itemgetter(*used)) for names, used in several]
        self.single = [(names, used[0]) for names, used in self.entries.values() if len(used) == 1]
        self.before = self.read()

    @property
    def has_changed(self) -> bool:
        return not is_same_code(self.read(), self.before)

    def read(self) -> list[Any]:
        found: list[Any] = []
        for names in self.namespaces:
            found += names.values() if isinstance(names, dict) else names
        try:
            for names, read in self.readers:
                found += read(names)
            found += [names[name] for names, name in self.single]
        except KeyError as name:  # it is not there any more
            return [name]
        found += map(read_function, self.functions)
        found += map(read_cell, self.cells)
        return found

    # --- following ---------------------------------------------------------------------------------------------------

    def follow_all(self) -> None:
        while self.waiting:
            self.follow(*self.waiting.pop())

    def follow(self, function: FunctionType, owner: type | None) -> None:
        """Meet all that a function may use. owner: the class that `self` is of."""
        if (function, owner) in self.seen:
            return
        self.seen.add((function, owner))
        if function not in self.seen:
            self.seen.add(function)
            self.functions.append(function)
        names = find_names(function.__code__)
        for name in names:
            if name in function.__globals__:
                self.meet_entry(function.__globals__, name, names, owner)
        if owner is not None:
            self.meet_members(owner, names)
        for cell in function.__closure__ or ():
            if id(cell) not in self.seen:
                self.seen.add(id(cell))
                self.cells.append(cell)
            self.meet(read_cell(cell), names, owner)

    def meet_entry(self, names: Mapping[str, Any], name: str, used: Sequence[str], owner: type | None = None) -> None:
        if (id(names), name) not in self.seen:
            self.seen.add((id(names), name))
            self.entries.setdefault(id(names), (names, []))[1].append(name)
        self.meet(names[name], used, owner)

    def meet_members(self, kind: type, names: Sequence[str]) -> None:
        """What these names are in a class and all that it is derived from."""
        for base in kind.__mro__:
            own = vars(base)
            if base in (object, nn.Module, Tensor) or not is_followed(base):
                continue
            for name in names:
                if name in own:
                    self.meet_entry(own, name, names, kind)

    def meet(self, value: Any, names: Sequence[str], owner: type | None = None) -> None:
        """Follow what a name stands for."""
        if isinstance(value, FunctionType):
            if is_followed(value):
                self.waiting.append((value, owner))
        elif isinstance(value, MethodType):
            self.meet(value.__func__, names, type(value.__self__))
        elif isinstance(value, staticmethod | classmethod):
            self.meet(value.__func__, names, owner)
        elif isinstance(value, partial | property):
            self.meet(value.func if isinstance(value, partial) else value.fget, names, owner)
        elif isinstance(value, ModuleType):
            for name in names:
                if (value, name) not in self.seen and name in vars(value):
                    self.seen.add((value, name))
                    self.meet_entry(vars(value), name, names)
        elif isinstance(value, type):
            self.meet_class(value, names)
        elif isinstance(value, dict | list):
            self.meet_contents(value)
        elif isinstance(value, SimpleNamespace) or (has_settings(value) and is_followed(type(value))):
            self.meet_object(value, names)

    def meet_class(self, kind: type, names: Sequence[str]) -> None:
        key = (kind, *names)
        if not is_followed(kind) or key in self.seen:
            return
        self.seen.add(key)
        called = CALLED_OF_MODULES if issubclass(kind, nn.Module) else CALLED_BY_PYTHON
        self.meet_members(kind, (*called, *names))

    def meet_contents(self, value: dict[Any, Any] | list[Any]) -> None:
        if id(value) in self.seen or len(value) > LARGEST:
            return
        self.seen.add(id(value))
        self.namespaces.append(value)
        for item in list(value.values()) if isinstance(value, dict) else value:
            if isinstance(item, FunctionType | MethodType | partial):
                self.registered.append(item)

    def meet_object(self, value: Any, names: Sequence[str]) -> None:
        """An object that code uses by a global name: its attributes, the tables that it and its class keep."""
        if ("object", id(value)) in self.seen:
            return
        self.seen.add(("object", id(value)))
        self.meet_contents(vars(value))
        tables = [vars(value)] + [vars(base) for base in type(value).__mro__ if is_followed(base)]
        for table in [item for own in tables for item in own.values() if isinstance(item, dict | list)]:
            self.meet_contents(table)
        self.meet_class(type(value), names)


def has_settings(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, Tensor | nn.Module)


def is_followed(code: Any) -> bool:
    """Whether the code of a function or class is looked into."""
    where = str(getattr(code, "__module__", "") or "")
    top = where.partition(".")[0]
    if top == "torch":
        return where.startswith(FOLLOWED_TORCH)
    if top in ("whyformer", "whyformer_papers", "numpy") or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    return not any(part.startswith(PASSED_OVER) for part in where.split("."))


def find_names(code: CodeType) -> tuple[str, ...]:
    """The names that a function uses, also in the functions and classes inside it."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(name for one in inner for name in find_names(one)))))


def read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


read_function = attrgetter("__code__", "__defaults__", "__kwdefaults__")


def is_same_code(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the same objects are in both, or equal numbers and strings."""
    try:
        return one == other
    except Exception:  # arrays have no single answer to `==`, and other objects may raise anything
        return False
