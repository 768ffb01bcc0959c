"""Webdataset: tar files in which the files of one example have the same name up to the first dot.

    0001.jpg  0001.cls          an image and its class, as a number or a name
    0002.txt  0002.json         a text, and {"label": ...}

Only the table of contents is read now; images are read when they are needed, straight from their place in the tar.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from whyformer._model import read_image_bytes
from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.data.example import Data, DataError, Example, LazyContent, Problem, collect_examples
from whyformer.data.records import LABEL_COLUMNS, RowError, parse_label
from whyformer.errors import InputError

TEXT_SUFFIXES = (".txt", ".text")
MAX_SMALL_FILE = 2**20  # bytes of a class, a text or a JSON object
END_BLOCKS = 1024  # zero bytes at the end of a complete tar

Members = dict[str, tarfile.TarInfo]  # by suffix, with the dot


def read_tar(path: Path) -> Data:
    return collect_examples(path.name, iterate_tar(path))


def iterate_tar(path: Path) -> Iterator[Example | Problem]:
    """The examples of one tar. What follows a cut is a problem: tar files have no other sign of completeness."""
    size = os.path.getsize(path)
    stamp = f"{size}:{os.stat(path).st_mtime_ns}"
    with open(path, "rb") as file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 (closed with the file)
        except tarfile.TarError:
            raise DataError(
                f"{path} is not a tar file, or it is compressed. Bulk reads members from their place, so unpack it "
                "first: gunzip FILE.tar.gz."
            ) from None
        for key, members in group_members(tar):
            yield make_tar_example(path, file, stamp, key, members, size)
        file.seek(max(0, size - END_BLOCKS))
        if any(file.read(END_BLOCKS)):
            yield Problem(f"{path.name}: end", "the tar file ends early; examples may be missing")


def group_members(tar: tarfile.TarFile) -> Iterator[tuple[str, Members]]:
    """Adjacent files with the same key: the path up to the first dot of the file name."""
    key, members = None, Members()
    try:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined] # the library would keep every header
            folder, name = os.path.split(member.name)
            stem, dot, suffix = name.partition(".")
            if not member.isreg() or not stem:  # a hidden file
                continue
            new = os.path.join(folder, stem)
            if key is not None and new != key:
                yield key, members
                members = Members()
            key = new
            members[f"{dot}{suffix}".lower()] = member
    except (tarfile.TarError, OSError):
        pass  # a header that is cut; the missing end is reported
    if key is not None:
        yield key, members


def make_tar_example(
    path: Path, file: BinaryIO, stamp: str, key: str, members: Members, size: int
) -> Example | Problem:
    place = f"{path.name}/{key}"
    if any(member.offset_data + member.size > size for member in members.values()):
        return Problem(place, "the tar file ends in the middle of this example")
    try:
        label = read_label(file, members)
    except (RowError, ValueError) as error:
        return Problem(place, f"the label cannot be read ({str(error)[:80]})")
    image = next((member for suffix, member in members.items() if suffix in IMAGE_SUFFIXES), None)
    if image is not None:
        load = partial(read_tar_image, os.fspath(path), image.offset_data, image.size, place)
        return Example(place, LazyContent(load, f"{stamp}:{image.offset_data}:{image.size}"), label)
    text = next((members[suffix] for suffix in TEXT_SUFFIXES if suffix in members), None)
    if text is None:
        return Problem(place, f"there is no image and no text among {', '.join(members)}")
    try:
        return Example(place, read_small_file(file, text).decode("utf-8"), label)
    except UnicodeDecodeError:
        return Problem(place, "the text is not valid UTF-8")
    except RowError as error:
        return Problem(place, str(error))


def read_label(file: BinaryIO, members: Members) -> int | str | None:
    if ".cls" in members:
        return parse_label(read_small_file(file, members[".cls"]).decode("utf-8").strip())
    if ".json" in members:
        fields = json.loads(read_small_file(file, members[".json"]))
        names = [name for name in LABEL_COLUMNS if isinstance(fields, dict) and name in fields]
        return parse_label(fields[names[0]]) if names else None
    return None


def read_small_file(file: BinaryIO, member: tarfile.TarInfo) -> bytes:
    if member.size > MAX_SMALL_FILE:
        raise RowError(f"{member.name} has {member.size:,} bytes; the limit is {MAX_SMALL_FILE:,}")
    file.seek(member.offset_data)
    return file.read(member.size)


def read_tar_image(path: str, offset: int, size: int, name: str) -> Image.Image:
    """The image at this place of a tar file."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"Cannot read {path!r}: {reason}.", code="E_IMG_READ") from None
    return read_image_bytes(data, name)
