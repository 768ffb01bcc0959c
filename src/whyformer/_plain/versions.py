"""What a result was made with, so that it can be made again."""

import platform
from importlib.metadata import PackageNotFoundError, version

from torch import nn


def collect_versions(module: nn.Module) -> dict[str, str]:
    """Versions of what computed the scores, and the model's number format and device."""
    weight = next(module.parameters(), None)
    return {
        "whyformer": version_of("whyformer"),
        "torch": version_of("torch"),
        "transformers": version_of("transformers"),
        "python": platform.python_version(),
        "dtype": "none" if weight is None else str(weight.dtype).removeprefix("torch."),
        "device": "none" if weight is None else str(weight.device),
    }


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


__version__ = version_of("whyformer")
