"""Saved results: safetensors or JSON, exact to the last bit, never pickle.

A result is a mapping from field names to values: tensors, and everything else as JSON. A safetensors file keeps the
JSON in its metadata. A JSON file holds the tensors as well, as nested lists with their dtype, with enough digits to
restore the same bits. Images to draw on are embedded as PNG or JPEG. Files are written under a temporary name and then
renamed, so a file is either complete or missing.
"""

import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from typing_extensions import TypeAliasType

from whyformer._plain.paths import find_url
from whyformer._plain.schema import SchemaError, check_schema
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError, OutputError, ResourceError, WhyformerError

LAYOUT_VERSION = 2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
READ_ERRORS = (
    SafetensorError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, ArithmeticError,
    InputError,
)  # fmt: skip

# What is written into a file: tensors and plain values, and collections of these.
Field = TypeAliasType("Field", "str | float | Tensor | Sequence[Field] | Mapping[str, Field] | None")
WrittenFields: TypeAlias = Mapping[str, Field]
Fields: TypeAlias = Mapping[str, Any]
LoadedFields: TypeAlias = dict[str, Any]
Restored = TypeVar("Restored")
FilePath = str | os.PathLike[str]


# --- writing ----------------------------------------------------------------------------------------------------------


def write_file(path: FilePath, contents: bytes) -> None:
    """Write the whole file, or leave the old one untouched."""
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL, or one that is not Unicode
        raise make_write_error(path, error, len(contents)) from None
    finally:
        with suppress(OSError, ValueError):  # already renamed if nothing failed
            temporary.unlink()


def make_write_error(path: Path, error: OSError | ValueError, size: int | None = None) -> WhyformerError:
    """The error to raise where a file or folder could not be written; `size` is the number of bytes it needs."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        needed = "" if size is None else f" {size:,} bytes are needed."
        return ResourceError(
            f"Cannot write {path}: {describe_os_error(error)}.{needed} Free some space, then repeat the call.",
            code="E_DISK_FULL",
        )
    if (url := find_url(path)) is not None:
        return OutputError(f"Cannot write {url}: it is a URL. Write a file, then upload it.")
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return OutputError(f"Cannot write {str(path)[:1000]}: there is no folder {str(path.parent)[:1000]!r}. Make it.")
    return OutputError(f"Cannot write {str(path)[:1000]}: {describe_os_error(error)}.")


def describe_os_error(error: OSError | ValueError) -> str:
    """What the operating system said."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def suffix_of(path: FilePath, known: Iterable[str]) -> str:
    """The file suffix in lower case; an error if it is not one of `known`."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputError(f"The name of a file must be a string or a path, got {type(path).__name__}.", code="E_OPTION")
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise InputError(
            f"Unknown file format: {os.fspath(path)!r}. Supported suffixes: {', '.join(known)}.", code="E_OPTION"
        )
    return suffix


def to_json_text(kind: str, fields: Fields) -> str:
    """A result as ASCII JSON."""
    return json.dumps({"kind": kind, "version": LAYOUT_VERSION, **as_json_value(fields)}, allow_nan=False)


def as_json_value(value: Any) -> Any:
    """The value as JSON types.

    Tuples become lists, infinity {"float": "inf"}, tensors {"dtype": ..., "shape": ..., "data": ...}. Functions and
    other objects, which occur only in settings, are stored as their repr.
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


def read_archive(path: FilePath, kind: str, build: Callable[[LoadedFields], Restored]) -> Restored:
    """Read the fields of a file and pass them to `build`. Raises InputError for any other kind of file."""
    suffix = suffix_of(path, READERS)
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe or a device could be read for ever
            raise OSError("it is not a regular file")
        fields = READERS[suffix](os.fspath(path))
        check_schema(fields, {"kind": str, "version": int}, "the file")
        saved_kind, version = fields.pop("kind"), fields.pop("version")
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.", code="E_ARCHIVE") from None
    except READ_ERRORS as error:
        raise make_read_error(path, kind, error) from None
    if version > LAYOUT_VERSION:
        raise InputError(
            f"{path} was written by a newer version of whyformer (file layout {version}; this version reads up to "
            f"{LAYOUT_VERSION}). Update whyformer.",
            code="E_ARCHIVE",
        )
    if saved_kind != kind:
        raise InputError(f"{path} contains a saved {saved_kind[:40]}, not a saved {kind}.", code="E_ARCHIVE")
    try:
        return build(fields)
    except (*READ_ERRORS, OSError) as error:  # OSError: what Pillow raises for a damaged image
        raise make_read_error(path, kind, error) from None


def make_read_error(path: FilePath, kind: str, error: Exception) -> InputError:
    reason = f": {error}" if isinstance(error, SchemaError) else ""
    return InputError(f"{path} is not a saved {kind}, or the file is damaged{reason}.", code="E_ARCHIVE")


def read_safetensors(path: str) -> LoadedFields:
    with safe_open(path, framework="pt") as file:
        facts = parse_json((file.metadata() or {})["whyformer"])
        return facts | {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def read_json_file(path: str) -> LoadedFields:
    return parse_json(Path(path).read_bytes())


def parse_json(contents: str | bytes) -> LoadedFields:
    return json.loads(contents, object_hook=restore_value, parse_int=parse_integer, parse_constant=refuse_constant)


def parse_integer(text: str) -> int:
    """Integers of any length are JSON, but none of a result needs more than 64 bits."""
    if len(text) > 20:
        raise SchemaError(f"an integer of {len(text)} digits")
    return int(text)


def refuse_constant(text: str) -> NoReturn:
    raise SchemaError(f"{text} is not JSON")


def restore_value(value: LoadedFields) -> LoadedFields | float | Tensor:
    """Undo `as_json_value` for infinite floats and tensors."""
    if value.keys() == {"float"}:
        if value["float"] not in ("inf", "-inf", "nan"):
            raise SchemaError("a number that is neither infinite nor NaN")
        return float(value["float"])
    if value.keys() == {"dtype", "shape", "data"}:
        if value["dtype"] not in FLOAT_DTYPES:
            raise SchemaError("a tensor has no floating-point dtype")
        check_schema(value["shape"], [int], "the shape of a tensor")
        return torch.tensor(value["data"], dtype=getattr(torch, value["dtype"])).reshape(value["shape"])
    return value


READERS: dict[str, Callable[[str], LoadedFields]] = {".safetensors": read_safetensors, ".json": read_json_file}
