"""What a model returned: a tensor, a tuple, a dictionary or an output object of transformers, and the tensors in it."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from torch import Tensor, nn

from whyformer.errors import UnsupportedModel

ANSWER_WORDS = ("logit", "class", "label", "pred", "score", "prob", "answer", "output")


class FieldsOfOutput(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Tensor]]]


Returned: TypeAlias = "Tensor | Mapping[str, Returned] | Sequence[Returned] | FieldsOfOutput | None"


def iterate_tensors(returned: Returned) -> Iterator[Tensor]:
    """Every tensor in what a model returned, in its order."""
    if isinstance(returned, Tensor):
        yield returned
    elif isinstance(returned, Mapping):
        for value in returned.values():
            yield from iterate_tensors(value)
    elif isinstance(returned, list | tuple):
        for value in returned:
            yield from iterate_tensors(value)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        for one in dataclasses.fields(returned):
            yield from iterate_tensors(getattr(returned, one.name))


def map_tensors(returned: Returned, change: Callable[[Tensor], Tensor]) -> Returned:
    """The same structure with every tensor changed. The original is left as it is."""
    if isinstance(returned, Tensor):
        logits = logits_of(returned)
        return change(returned) if logits is returned else attach_logits(change(returned), change(logits))
    if isinstance(returned, MutableMapping):
        made = copy.copy(returned)
        for name, value in returned.items():
            made[name] = map_tensors(value, change)
        return made
    if isinstance(returned, list | tuple):
        values = [map_tensors(value, change) for value in returned]
        return getattr(returned, "_make", type(returned))(values)  # a named tuple has `_make`
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        made_fields = copy.copy(returned)
        for one in dataclasses.fields(returned):
            object.__setattr__(made_fields, one.name, map_tensors(getattr(returned, one.name), change))
        return made_fields
    return returned


def get_field(returned: Returned, name: str) -> Tensor | None:
    """The tensor of that name, if what the model returned has names and this one among them."""
    found = returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
    return found if isinstance(found, Tensor) else None


def logits_of(tensor: Tensor) -> Tensor:
    """The logits beneath returned probabilities (output_scale.py); of other tensors these themselves."""
    return getattr(tensor, "_whyformer_logits", tensor)


def attach_logits(tensor: Tensor, logits: Tensor) -> Tensor:
    tensor._whyformer_logits = logits  # type: ignore[attr-defined]
    return tensor


def find_output(returned: Returned, module: nn.Module | None = None) -> Tensor:
    """The logits: those beneath the output, or the output itself."""
    return logits_of(find_returned_output(returned, module))


def find_returned_output(returned: Returned, module: nn.Module | None = None) -> Tensor:
    """The output: the field named logits, or the first tensor with axes that the model returned.

    Of several tensors without names, (loss, logits) or (features, logits), the one as wide as the last linear layer of
    the module. Of those with names, the one whose name says that it is the answer, or else the widest of classes.
    """
    if (logits := get_field(returned, "logits")) is not None:
        return logits
    if len(named := list_outputs(returned)) > 1:
        return named[choose_name(named)]
    tensors = [tensor for tensor in iterate_tensors(returned) if tensor.dim() and tensor.is_floating_point()]
    if not tensors:
        raise UnsupportedModel(f"The model returned {type(returned).__name__}, which contains no tensor to explain.")
    if isinstance(returned, list | tuple) and len(tensors) > 1 and module is not None:
        tops = [tensor for tensor in returned if isinstance(tensor, Tensor) and tensor.dim()]
        fitting = [tensor for tensor in tops if tensor.size(-1) == find_last_width(module)]
        if len(fitting) == 1:
            return fitting[0]
    return tensors[0]


def list_outputs(returned: Returned) -> dict[str, Tensor]:
    """The tensors that have names: of a dictionary, named tuple or dataclass, and of those in it.

    Empty for all else, such as outputs of transformers.
    """
    parts = list_fields(returned)
    if parts is None:
        return {}
    found: dict[str, Tensor] = {}
    for name, value in parts.items():
        if isinstance(value, Tensor) and value.dim() and value.is_floating_point():
            found[name] = value
        is_list = isinstance(value, list) or type(value) is tuple
        inner: Returned = {str(place): one for place, one in enumerate(value)} if is_list else value  # type: ignore[arg-type]
        found |= {f"{name}.{of}": tensor for of, tensor in list_outputs(inner).items()}
    return found


def list_fields(returned: Returned) -> "dict[str, Returned] | None":
    """What has names of its own; None for tensors, lists, and outputs of transformers."""
    if type(returned) is dict:
        return {str(name): value for name, value in returned.items()}
    if isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        return dict(returned._asdict())
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type | Mapping):
        return {one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)}
    return None


def choose_name(named: Mapping[str, Tensor]) -> str:
    """Which of several named outputs is explained: by its name, else the first with several numbers per example."""
    for word in ANSWER_WORDS:
        if (found := next((name for name in named if word in name.rpartition(".")[2].lower()), None)) is not None:
            return found
    flat = [name for name, tensor in named.items() if tensor.dim() == 2]
    return next((name for name in flat if named[name].size(1) > 1), next(iter([*flat, *named])))


def find_last_width(module: nn.Module) -> int | None:
    """The number of outputs of the last linear layer."""
    return next((one.out_features for one in reversed(list(module.modules())) if isinstance(one, nn.Linear)), None)
