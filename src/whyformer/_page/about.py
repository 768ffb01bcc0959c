"""The version, without importing what computes."""

from importlib.metadata import PackageNotFoundError, version


def find_version() -> str:
    try:
        return version("whyformer")
    except PackageNotFoundError:
        return "not installed"


VERSION = find_version()
