"""A seal: the SHA-256 of a file inside the file itself, so that a part is one file, complete and checked, or missing.

The header of a part is a JSON object in the metadata of the Parquet file. Its checksum is computed over the whole file
with 64 zeros in its place, and then put there; a reader does the same and compares. No Parquet reader minds.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from whyformer.errors import InputError

ShardFacts: TypeAlias = Mapping[str, Any]  # JSON values that describe a shard
HEADER_KEY = b"whyformer.part"
UNSEALED = "0" * 64
MARK = b'"sha256": "'
END = b'"}'


def make_unsealed_header(facts: ShardFacts) -> bytes:
    """The header before the checksum is known; the checksum comes last."""
    return json.dumps({**facts, "sha256": UNSEALED}, ensure_ascii=True).encode("ascii")


def seal_file(contents: bytes) -> bytes:
    """The file with its checksum filled in."""
    place = find_checksum(contents)
    if place is None or contents[place : place + 64] != UNSEALED.encode():
        raise ValueError("the file has no header to seal")
    checksum = hashlib.sha256(contents).hexdigest().encode()
    return contents[:place] + checksum + contents[place + 64 :]


def read_seal(contents: bytes) -> ShardFacts | None:
    """The facts of the header if the checksum is right; None for a damaged or foreign file."""
    place = find_checksum(contents)
    if place is None:
        return None
    digest = hashlib.sha256(contents[:place])
    digest.update(UNSEALED.encode())
    digest.update(contents[place + 64 :])
    if digest.hexdigest().encode() != contents[place : place + 64]:
        return None
    start = contents.find(b"{", contents.rfind(HEADER_KEY, 0, place), place)
    try:
        facts = json.loads(contents[start : place + 64 + len(END)])
        facts.pop("sha256")
        return facts
    except (ValueError, KeyError, AttributeError):
        return None


def read_sealed_file(path: Path, repair: str) -> tuple[bytes, ShardFacts]:
    """The contents of a sealed file, and the facts of its header. repair: what to do about one that is damaged."""
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. {repair}", code="E_DATA") from None
    facts = read_seal(contents)
    if facts is None:
        raise InputError(
            f"{path} is damaged: it is not what was written there, by the checksum inside it. {repair}", code="E_DATA"
        )
    return contents, facts


def find_checksum(contents: bytes) -> int | None:
    """Where the checksum begins: in the last header of the file."""
    mark = contents.rfind(MARK)
    place = mark + len(MARK)
    return place if mark >= 0 and contents[place + 64 : place + 64 + len(END)] == END else None
