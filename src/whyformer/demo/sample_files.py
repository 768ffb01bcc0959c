"""Files to try things on: a photograph, a drawing, film reviews with labels, and passages with a question.

why.demo.sample("cat.jpg")           or whyformer demo --sample cat.jpg
"""

import os
from pathlib import Path

from whyformer._plain import archive
from whyformer.demo.draws import refuse_unknown_name
from whyformer.errors import OutputError

SAMPLES = Path(__file__).parent / "samples"
SAMPLE_NAMES = ("cat.jpg", "passages.txt", "question.png", "reviews.csv")


def sample(name: str = "cat.jpg", folder: str | os.PathLike[str] = ".") -> Path:
    """Copy a bundled file into a folder, by default the current one; returns its path.

    A file of that name that holds something else is left alone.
    """
    refuse_unknown_name("sample", name, SAMPLE_NAMES)
    contents, path = (SAMPLES / name).read_bytes(), Path(folder) / name
    if path.exists() and (not path.is_file() or path.read_bytes() != contents):
        raise OutputError(f"{str(path)!r} is there already and is not the sample. Move it, or use another folder.")
    archive.write_file(path, contents)
    return path
