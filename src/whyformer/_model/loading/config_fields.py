"""Check the fields of config.json and of an image processor before anything is built from them.

transformers trusts these files: a `num_labels` of a billion makes a table of a billion names, a list in place of a name
ends in a TypeError somewhere inside. Here every field that decides a class, a size or an amount of memory is checked by
type and range, also inside nested configs; an error names the file, the field, its value and what is needed.
"""

import json
import math
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from whyformer._plain.json_value import Json, JsonObject
from whyformer.errors import IncompleteModel

MAX_CONFIG_BYTES = 10_000_000
MAX_CONFIG_DEPTH = 20
MAX_LAYERS = 1_000
MAX_CLASSES = 100_000
MAX_NUMBER = 100_000_000  # in any field
MAX_PROCESSED_PIXELS = 25_000_000  # of an image as the processor passes it on
MAX_SHORTEST_EDGE = 2_048  # the longest edge can be many times as long

DTYPES = ("float64", "float32", "float16", "bfloat16", "auto")
LAYER_COUNTS = re.compile(r"(n|num|encoder|decoder|num_encoder|num_decoder|num_hidden)_layers?|depths?|num_blocks")
SIZE_KEYS = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")

WrongConfig = partial(IncompleteModel, code="E_MODEL_CONFIG")
TooLargeModel = partial(IncompleteModel, code="E_MODEL_TOO_LARGE")


def read_json_object(path: Path, name: str) -> JsonObject:
    """The object in a JSON file of a model folder; error messages call the model `name`."""
    problem = f"{name}: {path.name}"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise WrongConfig(f"{problem} is not a regular file.")
        if found.st_size > MAX_CONFIG_BYTES:
            raise WrongConfig(
                f"{problem} has {found.st_size:,} bytes, too many for a config; the limit is {MAX_CONFIG_BYTES:,}."
            )
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise WrongConfig(f"{problem} cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise WrongConfig(f"{problem} is not valid JSON ({str(error)[:200]}).") from None
    if not isinstance(raw, dict):
        raise WrongConfig(f"{problem} must contain an object, got a {type(raw).__name__}.")
    for field, value in walk_fields(raw, problem):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and math.isnan(number):
                raise _make_field_error(problem, field, value, "a number")
            if isinstance(number, int) and abs(number) > MAX_NUMBER:
                raise _make_size_error(problem, field, number, MAX_NUMBER)
    return raw


def walk_fields(raw: JsonObject, problem: str, depth: int = 0) -> Iterator[tuple[str, Json]]:
    """Every field with its value, those of nested objects and lists included."""
    if depth > MAX_CONFIG_DEPTH:
        raise WrongConfig(f"{problem} is nested more than {MAX_CONFIG_DEPTH} levels deep.")
    for field, value in raw.items():
        yield field, value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from walk_fields(inner, problem, depth + 1)
            elif isinstance(inner, list):
                yield from walk_fields({field: inner}, problem, depth + 1)


def _make_field_error(problem: str, field: str, value: Json, needed: str) -> IncompleteModel:
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    return WrongConfig(f"{problem}: {field} must be {needed}, got {shown}.")


def _make_size_error(problem: str, field: str, value: int, limit: int) -> IncompleteModel:
    shown = f"{value:,}" if abs(value) < 10**30 else repr(value)[:40]
    return TooLargeModel(f"{problem}: {field} is {shown}; the limit is {limit:,}.")


# --- kinds of values --------------------------------------------------------------------------------------------------


class Need(NamedTuple):
    """What a field must be, in words, and whether a value is that."""

    wanted: str
    fits: Callable[[Any], bool]

    def check(self, problem: str, field: str, value: Json) -> None:
        if not self.fits(value):
            raise _make_field_error(problem, field, value, self.wanted)


def list_parts(value: Any) -> list[Any]:
    """The values of a list; anything else is the only one."""
    return value if isinstance(value, list) else [value]


def is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_size(value: Any) -> bool:
    """One whole number, or one per axis."""
    return value != [] and all(is_count(part, 1) for part in list_parts(value))


def is_image_size(value: Any) -> bool:
    """A number, [height width], or an object with some of SIZE_KEYS."""
    if isinstance(value, dict):
        fits = set(value) <= set(SIZE_KEYS) and ("height" in value) == ("width" in value)
        value = list(value.values()) if fits else []
    return is_size(value) and len(list_parts(value)) <= 4


def has_labels(value: Any) -> bool:
    """{"0": "cat", "1": "dog"}."""
    if not isinstance(value, dict) or len(value) > MAX_CLASSES:
        return False
    return all(re.fullmatch("[0-9]{1,9}", key) and isinstance(value[key], str | int | float) for key in value)


COUNT = Need("a whole number >= 0", is_count)
COUNTS = Need("a whole number >= 0", lambda value: all(map(is_count, list_parts(value))))
SIZE = Need("a whole number >= 1", is_size)
NAME = Need("a name", lambda value: isinstance(value, str) and value != "")
NAMES = Need(
    "a list of names of classes",
    lambda value: isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value),
)
FLAG = Need("true or false", lambda value: isinstance(value, bool))
LABELS = Need('an object from numbers to names, such as {"0": "cat"}', has_labels)
LABEL_NUMBERS = Need(
    'an object from names to numbers, such as {"cat": 0}',
    lambda value: isinstance(value, dict) and all(isinstance(number, int | str) for number in value.values()),
)
DTYPE = Need(
    f"one of {', '.join(DTYPES)}", lambda value: isinstance(value, str) and value.removeprefix("torch.") in DTYPES
)
IMAGE_SIZE = Need("a whole number >= 1, or an object with height and width, or with shortest_edge", is_image_size)
CHANNELS = Need(
    "one number for each of up to 4 channels",
    lambda value: 1 <= len(parts := list_parts(value)) <= 4 and all(map(is_finite_number, parts)),
)
SCALES = Need("numbers > 0", lambda value: all(part > 0 for part in list_parts(value)))
FACTOR = Need("a number > 0", lambda value: is_finite_number(value) and value > 0)
CROP_SHARE = Need("a number from 0.1 to 1", lambda value: is_finite_number(value) and 0.1 <= value <= 1)
RESAMPLING = Need("a number from 0 to 5 (a resampling filter of Pillow)", lambda value: is_count(value) and value <= 5)


# --- config.json ------------------------------------------------------------------------------------------------------

CONFIG_FIELDS = {
    NAME: "model_type",
    NAMES: "architectures",
    LABELS: "id2label",
    LABEL_NUMBERS: "label2id",
    COUNT: "num_labels vocab_size type_vocab_size",
    DTYPE: "dtype torch_dtype",
    FLAG: "tie_word_embeddings",
    SIZE: "num_channels image_size patch_size hidden_size num_attention_heads intermediate_size n_embd n_head d_model "
    "embed_dim",
}
NEED_OF_FIELD = {field: need for need, fields in CONFIG_FIELDS.items() for field in fields.split()}
# Of a model with parts, these belong to the whole and may mean something else inside a part.
TOP_FIELDS = ("model_type", "architectures", "num_channels", "embed_dim")


def check_config_fields(raw: JsonObject, name: str) -> None:
    """Refuse wrong types and sizes in the contents of a config.json."""
    problem = f"{name}: config.json"
    for field, value in walk_fields(raw, problem):
        if value is None or (field in TOP_FIELDS and value is not raw.get(field)):
            continue
        if field in NEED_OF_FIELD:
            NEED_OF_FIELD[field].check(problem, field, value)
        if field in ("num_labels", "num_classes") and isinstance(value, int) and value > MAX_CLASSES:
            raise _make_size_error(problem, field, value, MAX_CLASSES)
    for field, layers in list_layer_counts(raw, name):
        if layers > MAX_LAYERS:
            raise _make_size_error(problem, field, layers, MAX_LAYERS)


def list_layer_counts(raw: JsonObject, name: str) -> Iterator[tuple[str, int]]:
    """The fields that say how many layers there are, with their totals."""
    problem = f"{name}: config.json"
    for field, value in walk_fields(raw, problem):
        if value is not None and LAYER_COUNTS.fullmatch(str(field)):
            COUNTS.check(problem, field, value)
            yield field, sum(list_parts(value))


# --- preprocessor_config.json -----------------------------------------------------------------------------------------

PROCESSOR_FIELDS = {
    NAME: "image_processor_type feature_extractor_type processor_class",
    IMAGE_SIZE: "size crop_size pad_size",
    SIZE: "size_divisor",
    RESAMPLING: "resample",
    CHANNELS: "image_mean image_std",
    SCALES: "image_std",
    FACTOR: "rescale_factor",
    CROP_SHARE: "crop_pct",
    FLAG: "do_resize do_rescale do_normalize do_center_crop do_convert_rgb do_pad",
}


def check_processor_fields(path: Path, name: str, channels: int | None) -> None:
    """Refuse wrong types and sizes in the file of an image processor."""
    raw, problem = read_json_object(path, name), f"{name}: {path.name}"
    inner = raw.get("image_processor", {})  # processor_config.json holds the processor in a field
    for fields in (raw, inner if isinstance(inner, dict) else {}):
        for need, field in ((need, field) for need, names in PROCESSOR_FIELDS.items() for field in names.split()):
            if (value := fields.get(field)) is None:
                continue
            need.check(problem, field, value)
            if need is IMAGE_SIZE:
                _check_processed_size(problem, field, value)
            is_per_channel = need is CHANNELS and isinstance(value, list)
            if is_per_channel and channels is not None and len(list_parts(value)) not in (1, channels):
                raise _make_field_error(problem, field, value, f"one number for each of the {channels} channels")


def _check_processed_size(problem: str, field: str, value: Any) -> None:
    sides: dict[str, int] = value if isinstance(value, dict) else dict.fromkeys(("height", "width"), value)
    sides = {"height": value[0], "width": value[-1]} if isinstance(value, list) else sides
    if (edge := sides.get("shortest_edge", 0)) > MAX_SHORTEST_EDGE and "longest_edge" not in sides:
        raise _make_size_error(problem, f"shortest_edge of {field}", edge, MAX_SHORTEST_EDGE)
    largest = max(sides.values())
    pixels = sides["height"] * sides["width"] if sides.keys() >= {"height", "width"} else largest**2
    if pixels > MAX_PROCESSED_PIXELS:
        raise TooLargeModel(
            f"{problem}: {field} asks for images of {pixels:,} pixels; the limit is {MAX_PROCESSED_PIXELS:,}."
        )
