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
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from whyformer.errors import InputError
from whyformer.picture import Kept, View
from whyformer.target import Target
from whyformer.tokens import Grid, Pieces, Tokens

VERSION = 1  # of the layout below
DTYPES = ("float16", "bfloat16", "float32", "float64")
DAMAGE = (SafetensorError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, InputError)

Fields = Mapping[str, Any]
FilePath = str | os.PathLike[str]


# --- writing ----------------------------------------------------------------------------------------------------------


def write(path: FilePath, contents: bytes) -> None:
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


def safetensors(kind: str, fields: Fields) -> bytes:
    details = {f"details.{name}": value for name, value in fields.get("details", {}).items()}
    kept = fields.get("pictures", ())
    pictures = {f"picture.{i}": torch.frombuffer(bytearray(one.data), dtype=torch.uint8) for i, one in enumerate(kept)}
    held = {**fields, **details, **pictures}
    tensors = {name: v.contiguous() for name, v in held.items() if isinstance(v, Tensor)}
    facts = {name: value for name, value in fields.items() if not isinstance(value, Tensor) and name != "details"}
    if "pictures" in facts:
        facts["pictures"] = [{"view": one.view} for one in kept]
    return safetensors_bytes(tensors, {"whyformer": text(kind, facts)})


def text(kind: str, fields: Fields) -> str:
    """A result as JSON in ASCII."""
    return json.dumps({"kind": kind, "version": VERSION, **plain(fields)}, allow_nan=False)


def plain(value: Any) -> Any:
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
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner) for inner in value]
        case Tensor():
            dtype = str(value.dtype).removeprefix("torch.")
            return {"dtype": dtype, "shape": list(value.shape), "data": plain(value.tolist())}
        case Grid(rows, columns, None):
            return {"rows": rows, "columns": columns}
        case Kept():
            return {"view": plain(value.view), "data": b64encode(value.data).decode("ascii")}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return plain(asdict(value))
    return repr(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: FilePath, kind: str, build: Callable[..., Any]) -> Any:
    """What `build` makes of the fields in the file; a file that is not ours, or of another kind, is refused."""
    reader = READERS[suffix_of(path, READERS)]
    try:
        held = reader(os.fspath(path))
        found, version = held.pop("kind"), int(held.pop("version"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    except DAMAGE:
        raise not_ours(path, kind) from None
    if version > VERSION:
        raise InputError(
            f"{path} was written by a newer whyformer (layout {version}, not {VERSION}). Update whyformer."
        )
    if found != kind:
        raise InputError(f"{path} holds a saved {found}, no {kind}. Load it as what it is.")
    try:
        return build(held)
    except DAMAGE:
        raise not_ours(path, kind) from None


def not_ours(path: FilePath, kind: str) -> InputError:
    return InputError(f"{path} is no {kind} saved by whyformer, or it is damaged.")


def read_safetensors(path: str) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        facts = parsed((file.metadata() or {})["whyformer"])
        return facts | {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def read_json(path: str) -> dict[str, Any]:
    return parsed(Path(path).read_bytes())


def parsed(contents: str | bytes) -> dict[str, Any]:
    return json.loads(contents, object_hook=restored)


def restored(found: dict[str, Any]) -> Any:
    """Floats and tensors as they were before `plain`."""
    if found.keys() == {"float"}:
        return float(found["float"])
    if found.keys() == {"dtype", "shape", "data"}:
        if found["dtype"] not in DTYPES:
            raise ValueError(f"no floating point numbers: {found['dtype']}")
        return torch.tensor(found["data"], dtype=getattr(torch, found["dtype"])).reshape(found["shape"])
    return found


def explanation_fields(held: Fields) -> dict[str, Any]:
    """The fields of an explanation, lists made into what they were."""
    apart = {name.removeprefix("details."): held[name] for name in held if name.startswith("details.")}
    pictures = tuple(kept_from(one, held.get(f"picture.{i}")) for i, one in enumerate(held.get("pictures", ())))
    held = {name: value for name, value in held.items() if not name.startswith(("details.", "picture."))}
    return {
        **held,
        "details": {**held.get("details", {}), **apart},
        "pictures": pictures,
        "tokens": tuple(map(tokens_from, held["tokens"])),
        "targets": tuple(Target(**target) for target in held["targets"]),
        "names": strings(held["names"]),
        "notes": strings(held["notes"]),
    }


def tokens_from(held: Fields) -> Tokens:
    if "rows" in held:
        return Grid(held["rows"], held["columns"], tuple(held["covers"]) if held.get("covers") else None)
    spans = tuple(None if span is None else (span[0], span[1]) for span in held["spans"])
    return Pieces(strings(held["pieces"]), tuple(held["special"]), tuple(held["padding"]), spans, held["text"])


def kept_from(held: Fields, apart: Tensor | None) -> Kept:
    """A picture that was kept: its bytes stand by themselves, or in base 64 among the facts."""
    data = bytes(apart.tolist()) if apart is not None else b64decode(held["data"], validate=True)
    return Kept.read(data, None if held["view"] is None else View(**held["view"]))


def strings(held: list[str]) -> tuple[str, ...]:
    if not all(isinstance(one, str) for one in held):
        raise ValueError("not a list of strings")
    return tuple(held)


READERS: dict[str, Callable[[str], dict[str, Any]]] = {".safetensors": read_safetensors, ".json": read_json}
