"""Paths of files on this machine: the suffixes of images, and URLs that were given where a path is needed.

A path drops one slash of a URL: `Path("s3://bucket/cat.jpg")` is `s3:/bucket/cat.jpg`.
"""

import os
import re
from typing import Any

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MAX_PATH = 4096  # longer texts are never looked up
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")  # at least two letters: C:/ is a drive


def find_url(path: Any) -> str | None:
    """The URL that was given as a path, with both slashes; None if it is not one."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    found = SCHEME.match(text) if isinstance(text, str) else None
    return None if found is None else f"{found[1]}://{text[found.end() :]}"[:200]


def is_file_path(text: str | os.PathLike[str]) -> bool:
    """Whether a text is the path of a regular file."""
    try:
        return len(os.fspath(text)) < MAX_PATH and os.path.isfile(text)
    except (OSError, ValueError):
        return False
