"""Files of results: every number bit for bit, as safetensors or as JSON. Never pickle.

A result is a mapping from field to value: tensors, and facts that JSON has words for. A safetensors file carries the
facts as JSON in its metadata. A JSON file carries the tensors too, as nested lists with their dtype; the digits written
are enough to get the same bits back. Pictures that were kept to draw on are PNG or JPEG inside. A file is complete or
not there: it is written under a temporary name and renamed.
"""

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whyformer._plain.tokens import Grid
from whyformer.errors import InputError

LAYOUT_VERSION = 1  # of the layout below
FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
READ_ERRORS = (SafetensorError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, InputError)

Fields = Mapping[str, Any]
FilePath = str | os.PathLike[str]


# --- writing ----------------------------------------------------------------------------------------------------------


def write_file(path: FilePath, contents: bytes) -> None:
    """Put the contents there, whole or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from None
    finally:
        with suppress(OSError):  # gone already if all went well
            temporary.unlink()


def suffix_of(path: FilePath, known: Mapping[str, Any]) -> str:
    """The ending of the file name, if it is among the known ones."""
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise InputError(f"Cannot tell the format of {os.fspath(path)!r}. Names that end in {', '.join(known)} work.")
    return suffix


def to_json_text(kind: str, fields: Fields) -> str:
    """A result as JSON in ASCII."""
    return json.dumps({"kind": kind, "version": LAYOUT_VERSION, **as_json_value(fields)}, allow_nan=False)


def as_json_value(value: Any) -> Any:
    """The value in the words of JSON.

    Tuples become lists, infinity {"float": "inf"}, tensors {"dtype": ..., "shape": ..., "data": ...}; functions and
    other objects, which only settings can hold, are kept by their repr.
    """
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Mapping():
            return {str(key): as_json_value(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json_value(inner) for inner in value]
        case Tensor():
            dtype = str(value.dtype).removeprefix("torch.")
            return {"dtype": dtype, "shape": list(value.shape), "data": as_json_value(value.tolist())}
        case Grid(rows, columns, None):
            return {"rows": rows, "columns": columns}
        case _ if hasattr(value, "to_json_value"):
            return value.to_json_value()
        case _ if is_dataclass(value) and not isinstance(value, type):
            return as_json_value(asdict(value))
    return repr(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_archive(path: FilePath, kind: str, build: Callable[..., Any]) -> Any:
    """What `build` makes of the fields in the file; a file that is not ours, or of another kind, is refused."""
    reader = READERS[suffix_of(path, READERS)]
    try:
        held = reader(os.fspath(path))
        found, version = held.pop("kind"), int(held.pop("version"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    except READ_ERRORS:
        raise make_read_error(path, kind) from None
    if version > LAYOUT_VERSION:
        raise InputError(
            f"{path} was written by a newer whyformer (layout {version}, not {LAYOUT_VERSION}). Update whyformer."
        )
    if found != kind:
        raise InputError(f"{path} holds a saved {found}, no {kind}. Load it as what it is.")
    try:
        return build(held)
    except READ_ERRORS:
        raise make_read_error(path, kind) from None


def make_read_error(path: FilePath, kind: str) -> InputError:
    return InputError(f"{path} is no {kind} saved by whyformer, or it is damaged.")


def read_safetensors(path: str) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        facts = parse_json((file.metadata() or {})["whyformer"])
        return facts | {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def read_json(path: str) -> dict[str, Any]:
    return parse_json(Path(path).read_bytes())


def parse_json(contents: str | bytes) -> dict[str, Any]:
    return json.loads(contents, object_hook=restore_value)


def restore_value(found: dict[str, Any]) -> Any:
    """Floats and tensors as they were before `plain`."""
    if found.keys() == {"float"}:
        return float(found["float"])
    if found.keys() == {"dtype", "shape", "data"}:
        if found["dtype"] not in FLOAT_DTYPES:
            raise ValueError(f"no floating point numbers: {found['dtype']}")
        return torch.tensor(found["data"], dtype=getattr(torch, found["dtype"])).reshape(found["shape"])
    return found


def as_strings(held: list[str]) -> tuple[str, ...]:
    if not all(isinstance(one, str) for one in held):
        raise ValueError("not a list of strings")
    return tuple(held)


READERS: dict[str, Callable[[str], dict[str, Any]]] = {".safetensors": read_safetensors, ".json": read_json}
