"""Find the inputs for a verb: files, folders, glob patterns, standard input, a bundled sample, or a data set."""

import glob
import os
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer._plain.progress import hide_status_line
from whyformer.cli.options import TEXT_AS_INPUT, TEXT_SUFFIXES
from whyformer.cli.output import print_to_stderr
from whyformer.cli.parsing import parse_pairs, parse_value
from whyformer.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from whyformer._model import ImageOrWords, Model
    from whyformer.data.example import Data

    CliInput: TypeAlias = str | Image | dict[str, str] | dict[str, ImageOrWords]
    CliInputs: TypeAlias = list[CliInput] | dict[str, Tensor]

PATTERN_CHARACTERS = "*?["
MAX_BYTES = 256 * 2**20  # of standard input, and of a text file


def gather_inputs(model: "Model", words: list[str] | None, pair: list[str] | None = None) -> "CliInputs":
    """All inputs in the order they were typed; the files of a folder or pattern are sorted by name.

    pair: the second text of each, or one for all.
    """
    words = words or []
    if pair:
        return add_second_texts(model, words, pair)
    if model.kind == "tensors":
        return read_tensors(model, words)
    if model.joint_processor is not None:
        return gather_pictures(words)
    if not words:
        return [choose_sample_input(model)]
    inputs = [item for word in words for item in expand_word(model, word)]
    if not inputs:
        raise InputError(f"Found no inputs for {', '.join(map(repr, words))}.")
    return inputs


def gather_pictures(words: list[str]) -> "list[CliInput]":
    """Each text with all of the images; without arguments, a generated image with a question."""
    if not words:
        from whyformer.demo import tour

        return [tour.open_question()]
    images = [word for word in words if word.lower().endswith(IMAGE_SUFFIXES)]
    texts = [read_if_text_file(word) for word in words if word not in images]
    if not images or not texts:
        missing = "text" if images else "image"
        raise InputError(
            f'This model reads images with a text, but there is no {missing}: explain cat.jpg "What is this?"',
            code="E_USAGE",
        )
    files: ImageOrWords = [refuse_special_file(image, "E_IMG_READ") for image in images]
    return [{"images": files, "text": text} for text in texts]


def add_second_texts(model: "Model", words: list[str], pair: list[str]) -> "list[CliInput]":
    """The inputs as pairs of texts."""
    if model.kind != "text":
        raise InputError(f"--pair is for texts, but {model.name} takes {model.kind}s. Leave it out.", code="E_USAGE")
    if not words:
        raise InputError("--pair is the second text of a pair. Pass the first one too.", code="E_USAGE")
    firsts = gather_inputs(model, words)
    if len(pair) not in (1, len(firsts)):
        raise InputError(
            f"Got --pair {len(pair)} times for {len(firsts)} inputs. Pass it once for all, or once per input.",
            code="E_USAGE",
        )
    seconds = [read_if_text_file(word) for word in pair]
    seconds = seconds * len(firsts) if len(seconds) == 1 else seconds
    return [
        {"text": str(first["text"] if isinstance(first, dict) else first), "text_pair": second}
        for first, second in zip(firsts, seconds, strict=True)
    ]


def choose_sample_input(model: "Model") -> str:
    """The bundled sample for this kind of model."""
    from whyformer.demo import tour

    if model.kind == "image":
        return str(tour.CAT)
    kind = type(model.module).__name__
    return tour.AGREEMENT_PROMPT if "LMHead" in kind or "CausalLM" in kind else tour.SENTENCE


def expand_word(model: "Model", word: str) -> "Iterator[CliInput]":
    """The inputs that one command-line argument refers to: paths, images, texts, or {"text": ...} for what was read."""
    if word == "-":
        yield from expand_standard_input(model)
    elif model.kind == "image":
        files = list_input_files(word, IMAGE_SUFFIXES) if is_folder_or_pattern(word) else [word]
        yield from (refuse_special_file(file, "E_IMG_READ") for file in files)
    elif is_folder_or_pattern(word) and (files := list_input_files(word, TEXT_SUFFIXES)):
        yield from ({"text": read_text_file(path)} for path in files)
    elif is_existing_file(word) and word.lower().endswith(TEXT_SUFFIXES):
        yield {"text": read_text_file(word)}
    else:
        refuse_file_name(model, word)
        yield word


def refuse_file_name(model: "Model", word: str) -> None:
    """Refuse a folder without texts that is no plain word, and one word that ends like the name of a file."""
    if "/" in word and os.path.isdir(word):
        raise InputError(f"The folder {word!r} contains no file with the suffix {', '.join(TEXT_SUFFIXES)}.")
    if any(letter.isspace() for letter in word):
        return
    if word.lower().endswith(TEXT_SUFFIXES):
        raise InputError(f"Cannot read {word!r}: there is no such file. {TEXT_AS_INPUT}")
    if word.lower().endswith(IMAGE_SUFFIXES):
        raise InputError(
            f"{word!r} is the name of an image file, but {model.name} takes texts. Name a model for images with -M, "
            f"such as demo/pets. {TEXT_AS_INPUT}",
            code="E_TXT_TYPE",
        )


def is_folder_or_pattern(word: str) -> bool:
    """Whether this is a folder, or a glob pattern that is not itself the name of a file."""
    return os.path.isdir(word) or (any(sign in word for sign in PATTERN_CHARACTERS) and not os.path.exists(word))


def is_existing_file(word: str) -> bool:
    return len(word) < 4096 and os.path.isfile(word)  # not a pipe or device, which could be read for ever


def list_input_files(word: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files of a folder that have one of these suffixes, or the files that match a pattern.

    If there are none, that is an error for an image model; for a text model the word itself is the text.
    """
    if os.path.isdir(word):
        files = sorted(str(path) for path in Path(word).iterdir() if path.suffix.lower() in suffixes)
        message = f"The folder {word!r} contains no file with the suffix {', '.join(suffixes)}."
    else:
        files = sorted(path for path in glob.glob(word, recursive=True) if os.path.isfile(path))
        message = f"No file matches {word!r}."
    if not files and suffixes is IMAGE_SUFFIXES:
        raise InputError(message)
    return files


def expand_standard_input(model: "Model") -> "Iterator[CliInput]":
    """One text or path per line; for an image model also the bytes of one image."""
    data = read_stdin_bytes()
    if model.kind == "image" and not data[:64].isascii():
        yield image_from_bytes(data)
        return
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"Standard input is not UTF-8 at byte {error.start}.", code="E_TXT_ENCODING") from None
    words = [line for line in lines if line.strip()]
    if not words:
        raise InputError("Standard input is empty. Write one text or path per line.")
    if model.kind == "image":
        yield from (refuse_special_file(word, "E_IMG_READ") for word in words)
    else:
        yield from ({"text": word} for word in words)


def read_stdin_bytes() -> bytes:
    if sys.stdin is None:
        raise InputError("Standard input is closed.")
    with hide_status_line():
        if sys.stdin.isatty():
            print_to_stderr("Reading standard input; end it with Ctrl-D.")
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"Standard input is longer than {MAX_BYTES // 2**20} MiB.")
    return data


def image_from_bytes(data: bytes) -> "Image":
    from PIL import Image

    from whyformer._model import FORMATS, as_image

    try:
        return as_image(Image.open(BytesIO(data), formats=FORMATS))
    except OSError:
        raise InputError("Standard input is neither a list of paths nor an image.", code="E_IMG_FORMAT") from None


def refuse_special_file(path: str, code: str = "E_INPUT") -> str:
    """The path, unless it is a pipe or a device: these could be read for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"Cannot read {path!r}: not a regular file.", code=code)
    return path


def read_text_file(path: str) -> str:
    """The text of a file without the line break at its end, which editors add: a language model would read it."""
    try:
        with open(refuse_special_file(path), "rb") as file:
            contents = file.read(MAX_BYTES + 1)
        if len(contents) > MAX_BYTES:
            raise InputError(f"{path!r} is longer than {MAX_BYTES // 2**20} MiB.", code="E_TXT_TOO_LONG")
        return contents.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InputError(f"Cannot read {path!r}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path!r} is not UTF-8 at byte {error.start}.", code="E_TXT_ENCODING") from None


def read_if_text_file(word: str) -> str:
    """The text of a file if the word is the name of one, else the word."""
    return read_text_file(word) if is_existing_file(word) and word.lower().endswith(TEXT_SUFFIXES) else word


def read_tensors(model: "Model", words: list[str]) -> "dict[str, Tensor]":
    """The inputs of a model without a processor, from one safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if len(words) != 1 or Path(words[0]).suffix != ".safetensors":
        raise InputError(
            f"{model.name} has no processor or tokenizer, so it needs tensors: pass one .safetensors file with its "
            "inputs by name (input_ids, pixel_values), or use a model with a processor.",
            code="E_TENSOR",
        )
    try:
        return load_file(refuse_special_file(words[0]))
    except OSError as error:
        raise InputError(f"Cannot read {words[0]}: {error.strerror or error}.") from None
    except SafetensorError:
        raise InputError(f"{words[0]} is not a safetensors file, or it is damaged.", code="E_TENSOR") from None


def read_examples(
    source: str | list[str], column: list[str] | None, classes: list[str] | None, **options: Any
) -> "Data":
    """The examples of a data set, with the options --column and --class; the other options go to data.read()."""
    from whyformer.data import read

    if any(not word.strip() for word in ([source] if isinstance(source, str) else source)):
        raise InputError("DATA is blank. Name a folder, a file or an example.")

    labels = {label: parse_value(name) for label, name in parse_pairs(classes, "--class").items()}
    return read(source, columns=parse_pairs(column, "--column"), classes=labels, **options)
