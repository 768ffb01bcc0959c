"""Which weights a model has, for whoever must check it later: the hash of the files they were read from.

    describe_versions(model)["weights"]     'sha256 1c5e...', as sha256sum prints it for model.safetensors

Files are hashed when a result first needs it, and only once for an open model. Weights that were changed since, on disk
or in memory, are said to be changed: no hash is given that is not theirs.
"""

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from whyformer._model.unwrap import list_modules, unwrap
from whyformer._plain.private_torch import buffers_of, parameters_of, writes_of

NO_FILES = "not hashed: a module in memory, or weights that a library fetched"


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of a model, as they were when it was opened."""

    source: Path = field(repr=False)  # a folder, or the only file
    stamps: tuple[tuple[str, int, int], ...]  # name, size, time of the last change
    written: tuple[int, ...] = field(repr=False)  # how often each tensor had been written to

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of the file; of several files, that of the lines that sha256sum prints for them."""
        hashes = {}
        for path in list_weight_files(self.source):
            with path.open("rb") as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        if read_stamps(self.source) != self.stamps:
            return "the files changed after the model was opened"
        if len(hashes) == 1:
            return f"sha256 {next(iter(hashes.values()))}"
        lines = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
        return f"sha256 {hashlib.sha256(lines.encode()).hexdigest()} of the hashes of {len(hashes)} files"


def find_weight_files(source: Path | str, module: nn.Module) -> WeightFiles | None:
    """The weight files in a folder, or a single one; None for a name on the hub."""
    stamps = read_stamps(source) if isinstance(source, Path) else ()
    return WeightFiles(Path(source), stamps, count_writes(module)) if stamps else None


def describe_weights(files: WeightFiles | None, module: nn.Module) -> str:
    """The hash of the weight files, the commit on the hub, or why there is neither."""
    if files is not None:
        return files.hash if count_writes(module) == files.written else "changed in memory after the model was opened"
    commit = getattr(getattr(unwrap(module), "config", None), "_commit_hash", None)
    return f"commit {commit} on the hub" if isinstance(commit, str) else NO_FILES


def list_weight_files(source: Path) -> list[Path]:
    return [source] if source.is_file() else sorted(file for file in source.glob("*.safetensors") if file.is_file())


def read_stamps(source: Path) -> tuple[tuple[str, int, int], ...]:
    try:
        return tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in list_weight_files(source))
    except OSError:
        return ()


def count_writes(module: nn.Module) -> tuple[int, ...]:
    """How often each weight and buffer was written to; tensors made in inference mode do not count."""
    tensors: list[Tensor | None] = []
    for part in list_modules(unwrap(module)):
        if weights := parameters_of(part):
            tensors += weights.values()
        if buffers := buffers_of(part):
            tensors += buffers.values()
    return tuple([0 if one.is_inference() else writes_of(one) for one in tensors if one is not None])


def name_source(source: str) -> str:
    """A model as the user named it; of an absolute path only the last part, which is safe to publish."""
    path = os.path.expanduser(source)
    return Path(path).name or source if os.path.isabs(path) else source
