"""URLs given where a file or folder of this machine is needed.

A path drops one slash of a URL: `Path("s3://bucket/cat.jpg")` is `s3:/bucket/cat.jpg`.
"""

import os
import re
from typing import Any

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")  # at least two letters: C:/ is a drive


def find_url(path: Any) -> str | None:
    """The URL that was given as a path, with both slashes; None if it is not one."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    found = SCHEME.match(text) if isinstance(text, str) else None
    return None if found is None else f"{found[1]}://{text[found.end() :]}"[:200]
