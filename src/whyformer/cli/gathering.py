"""What was typed as INPUT, as a list of things to explain: files, folders, patterns, standard input, or what ships."""

import glob
import os
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer.errors import InputError

if TYPE_CHECKING:
    from whyformer._model.model import Model

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
TEXT_SUFFIXES = (".txt", ".md")
PATTERN_CHARACTERS = "*?["


def gather_inputs(model: "Model", words: list[str]) -> list[Any]:
    """Everything to explain, in the order it was typed; folders and patterns by name."""
    if model.kind == "tensors":
        return words
    if not words:
        return [choose_sample_input(model)]
    found = [item for word in words for item in expand_word(model, word)]
    if not found:
        raise InputError(f"There is nothing to explain in {', '.join(map(repr, words))}.")
    return found


def choose_sample_input(model: "Model") -> Any:
    """The sample for a model when nothing is given."""
    from whyformer.demo import tour

    if model.kind == "image":
        return str(tour.CAT)
    kind = type(model.module).__name__
    return tour.AGREEMENT_PROMPT if "LMHead" in kind or "CausalLM" in kind else tour.SENTENCE


def expand_word(model: "Model", word: str) -> Iterator[Any]:
    """What one word stands for."""
    if word == "-":
        yield from read_standard_input(model)
    elif model.kind == "image":
        yield from list_input_files(word, IMAGE_SUFFIXES) if is_folder_or_pattern(word) else [word]
    elif is_folder_or_pattern(word) and (listed := list_input_files(word, TEXT_SUFFIXES)):
        yield from (read_text_file(path) for path in listed)
    else:
        yield read_text_file(word) if is_existing_file(word) and word.lower().endswith(TEXT_SUFFIXES) else word


def is_folder_or_pattern(word: str) -> bool:
    """A folder, or a pattern that is no file itself."""
    try:
        return os.path.isdir(word) or (any(sign in word for sign in PATTERN_CHARACTERS) and not os.path.exists(word))
    except (OSError, ValueError):
        return False


def is_existing_file(word: str) -> bool:
    try:
        return len(word) < 4096 and os.path.isfile(word)
    except (OSError, ValueError):
        return False


def list_input_files(word: str, endings: tuple[str, ...]) -> list[str]:
    """The files of a folder that have one of these endings, or those that a pattern stands for.

    Without one, a word is an error for a model of pictures, and a text for a model of texts.
    """
    if os.path.isdir(word):
        listed = sorted(str(path) for path in Path(word).iterdir() if path.suffix.lower() in endings)
        missing = f"There is no file that ends in {', '.join(endings)} in the folder {word!r}."
    else:
        listed = sorted(path for path in glob.glob(word, recursive=True) if os.path.isfile(path))
        missing = f"No file is called like {word!r}."
    if not listed and endings is IMAGE_SUFFIXES:
        raise InputError(missing)
    return listed


def read_standard_input(model: "Model") -> Iterator[Any]:
    """One text or path a line; for a model of pictures also a picture itself."""
    data = sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode("utf-8")
    if model.kind == "image" and not data[:64].isascii():
        yield image_from_bytes(data)
        return
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"Standard input is not UTF-8 at byte {error.start}.") from None
    if not any(line.strip() for line in lines):
        raise InputError("Standard input is empty. Give one text or path a line.")
    yield from (line for line in lines if line.strip())


def image_from_bytes(data: bytes) -> Any:
    from PIL import Image

    from whyformer._model.image import FORMATS, as_image

    try:
        return as_image(Image.open(BytesIO(data), formats=FORMATS))
    except OSError:
        raise InputError("Standard input is neither a list of paths nor a picture.") from None


def read_text_file(path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except OSError as error:
        raise InputError(f"Cannot read {path!r}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path!r} is not UTF-8 at byte {error.start}.") from None
