"""The versions a result was computed with, so that it can be reproduced."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from torch import nn


def collect_versions(module: nn.Module) -> dict[str, str]:
    """The versions of the libraries, and the dtype and device of the model."""
    weight = next(module.parameters(), None)
    return {
        **collect_library_versions(),
        "dtype": "none" if weight is None else str(weight.dtype).removeprefix("torch."),
        "device": "none" if weight is None else str(weight.device),
    }


@cache
def collect_library_versions() -> dict[str, str]:
    libraries = {name: version_of(name) for name in ("whyformer", "torch", "transformers")}
    return {**libraries, "python": platform.python_version()}


@cache
def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


__version__ = version_of("whyformer")
