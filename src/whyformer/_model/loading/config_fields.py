"""Check the fields of config.json and of an image processor before anything is built from them.

transformers trusts these files: a `num_labels` of a billion makes a table of a billion names, a list in place of a name
ends in a TypeError somewhere inside. Here every field that decides a class, a size or an amount of memory is checked by
type and range, also inside nested configs; an error names the file, the field, its value and what is needed.
"""

import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from whyformer.errors import IncompleteModel, ModelError

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

Check = Callable[[Any], str]  # what is needed, if the value is wrong; otherwise ""


def read_json_object(path: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a model folder; error messages call the model `name`."""
    problem = f"{name}: {path.name}"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _make_config_error(f"{problem} is not a regular file.")
        if found.st_size > MAX_CONFIG_BYTES:
            raise _make_config_error(
                f"{problem} has {found.st_size:,} bytes, too many for a config; the limit is {MAX_CONFIG_BYTES:,}."
            )
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise _make_config_error(f"{problem} cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise _make_config_error(f"{problem} is not valid JSON ({str(error)[:200]}).") from None
    if not isinstance(raw, dict):
        raise _make_config_error(f"{problem} must contain an object, got a {type(raw).__name__}.")
    for field, value in walk_fields(raw, problem):
        _check_number(field, value, problem)
    return raw


def walk_fields(raw: Mapping[str, Any], problem: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every field with its value, those of nested objects and lists included."""
    if depth > MAX_CONFIG_DEPTH:
        raise _make_config_error(f"{problem} is nested more than {MAX_CONFIG_DEPTH} levels deep.")
    for field, value in raw.items():
        yield field, value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from walk_fields(inner, problem, depth + 1)
            elif isinstance(inner, list):
                yield from walk_fields({field: inner}, problem, depth + 1)


def _check_number(field: str, value: Any, problem: str) -> None:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and math.isnan(number):
            raise _make_field_error(problem, field, value, "a number")
        if isinstance(number, int) and abs(number) > MAX_NUMBER:
            raise _make_size_error(problem, field, number, MAX_NUMBER)


def _make_config_error(message: str) -> IncompleteModel:
    return IncompleteModel(message, code="E_MODEL_CONFIG")


def _make_field_error(problem: str, field: str, value: Any, needed: str) -> IncompleteModel:
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    return _make_config_error(f"{problem}: {field} must be {needed}, got {shown}.")


def _make_size_error(problem: str, field: str, value: Any, limit: int) -> ModelError:
    shown = f"{value:,}" if isinstance(value, int) and abs(value) < 10**30 else repr(value)[:40]
    return IncompleteModel(f"{problem}: {field} is {shown}; the limit is {limit:,}.", code="E_MODEL_TOO_LARGE")


# --- kinds of values --------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def need_count(value: Any) -> str:
    return "" if _is_count(value) else "a whole number >= 0"


def need_size(value: Any) -> str:
    """One whole number, or one per axis."""
    parts = value if isinstance(value, list) else [value]
    return "" if parts and all(_is_count(part, 1) for part in parts) else "a whole number >= 1"


def need_counts(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return "" if all(_is_count(part) for part in parts) else "a whole number >= 0"


def need_name(value: Any) -> str:
    return "" if isinstance(value, str) and value else "a name"


def need_names(value: Any) -> str:
    wanted = "a list of names of classes"
    return "" if isinstance(value, list) and value and all(isinstance(name, str) for name in value) else wanted


def need_flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def need_labels(value: Any) -> str:
    """{"0": "cat", "1": "dog"}."""
    if isinstance(value, dict) and len(value) <= MAX_CLASSES:
        numbers = all(re.fullmatch("[0-9]{1,9}", key) for key in value)
        if numbers and all(isinstance(name, str | int | float) for name in value.values()):
            return ""
    return 'an object from numbers to names, such as {"0": "cat"}'


def need_label_numbers(value: Any) -> str:
    if isinstance(value, dict) and all(isinstance(number, int | str) for number in value.values()):
        return ""
    return 'an object from names to numbers, such as {"cat": 0}'


def need_dtype(value: Any) -> str:
    known = isinstance(value, str) and value.removeprefix("torch.") in DTYPES
    return "" if known else f"one of {', '.join(DTYPES)}"


def need_image_size(value: Any) -> str:
    """A number, [height width], or an object with some of SIZE_KEYS."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    fits = not isinstance(value, dict) or (set(value) <= set(SIZE_KEYS) and ("height" in value) == ("width" in value))
    if fits and 1 <= len(parts) <= 4 and all(_is_count(part, 1) for part in parts):
        return ""
    return "a whole number >= 1, or an object with height and width, or with shortest_edge"


def need_channel_values(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    fits = len(parts) in (1, 2, 3, 4) and all(_is_number(part) for part in parts)
    return "" if fits else "one number for each of up to 4 channels"


def need_channel_scales(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return need_channel_values(value) or ("" if all(part > 0 for part in parts) else "numbers > 0")


def need_factor(value: Any) -> str:
    return "" if _is_number(value) and value > 0 else "a number > 0"


def need_crop_share(value: Any) -> str:
    return "" if _is_number(value) and 0.1 <= value <= 1 else "a number from 0.1 to 1"


def need_resampling(value: Any) -> str:
    return "" if _is_count(value) and value <= 5 else "a number from 0 to 5 (a resampling filter of Pillow)"


# --- config.json ------------------------------------------------------------------------------------------------------

CONFIG_FIELDS: dict[str, Check] = {
    "model_type": need_name,
    "architectures": need_names,
    "id2label": need_labels,
    "label2id": need_label_numbers,
    "num_labels": need_count,
    "dtype": need_dtype,
    "torch_dtype": need_dtype,
    "vocab_size": need_count,
    "type_vocab_size": need_count,
    "num_channels": need_size,
    "image_size": need_size,
    "patch_size": need_size,
    "tie_word_embeddings": need_flag,
    **dict.fromkeys(
        ("hidden_size", "num_attention_heads", "intermediate_size", "n_embd", "n_head", "d_model", "embed_dim"),
        need_size,
    ),
}
# Of a model with parts, these belong to the whole and may mean something else inside a part.
TOP_FIELDS = ("model_type", "architectures", "num_channels", "embed_dim")


def check_config_fields(raw: Mapping[str, Any], name: str) -> None:
    """Refuse wrong types and sizes in the contents of a config.json."""
    problem = f"{name}: config.json"
    for field, value in walk_fields(raw, problem):
        check = CONFIG_FIELDS.get(field)
        if value is None or (field in TOP_FIELDS and value is not raw.get(field)):
            continue
        if check is not None and (needed := check(value)):
            raise _make_field_error(problem, field, value, needed)
        if field in ("num_labels", "num_classes") and _is_count(value) and value > MAX_CLASSES:
            raise _make_size_error(problem, field, value, MAX_CLASSES)
    for field, layers in list_layer_counts(raw, name):
        if layers > MAX_LAYERS:
            raise _make_size_error(problem, field, layers, MAX_LAYERS)


def list_layer_counts(raw: Mapping[str, Any], name: str) -> Iterator[tuple[str, int]]:
    """The fields that say how many layers there are, with their totals."""
    problem = f"{name}: config.json"
    for field, value in walk_fields(raw, problem):
        if value is not None and LAYER_COUNTS.fullmatch(str(field)):
            if needed := need_counts(value):
                raise _make_field_error(problem, field, value, needed)
            yield field, sum(value) if isinstance(value, list) else value


# --- preprocessor_config.json -----------------------------------------------------------------------------------------

PROCESSOR_FIELDS: dict[str, Check] = {
    "image_processor_type": need_name,
    "feature_extractor_type": need_name,
    "processor_class": need_name,
    "size": need_image_size,
    "crop_size": need_image_size,
    "pad_size": need_image_size,
    "size_divisor": need_size,
    "resample": need_resampling,
    "image_mean": need_channel_values,
    "image_std": need_channel_scales,
    "rescale_factor": need_factor,
    "crop_pct": need_crop_share,
    **dict.fromkeys(
        ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb", "do_pad"), need_flag
    ),
}


def check_processor_fields(path: Path, name: str, channels: int | None) -> None:
    """Refuse wrong types and sizes in the file of an image processor."""
    raw, problem = read_json_object(path, name), f"{name}: {path.name}"
    inner = raw.get("image_processor", {})  # processor_config.json holds the processor in a field
    for fields in (raw, inner if isinstance(inner, dict) else {}):
        for field, check in PROCESSOR_FIELDS.items():
            if (value := fields.get(field)) is None:
                continue
            if needed := check(value):
                raise _make_field_error(problem, field, value, needed)
            if check is need_image_size:
                _check_processed_size(problem, field, value)
            is_per_channel = check in (need_channel_values, need_channel_scales) and isinstance(value, list)
            if is_per_channel and channels is not None and len(value) not in (1, channels):
                raise _make_field_error(problem, field, value, f"one number for each of the {channels} channels")


def _check_processed_size(problem: str, field: str, value: Any) -> None:
    sides = value if isinstance(value, dict) else dict.fromkeys(("height", "width"), value)
    sides = {"height": value[0], "width": value[-1]} if isinstance(value, list) else sides
    if (edge := sides.get("shortest_edge", 0)) > MAX_SHORTEST_EDGE and "longest_edge" not in sides:
        raise _make_size_error(problem, f"shortest_edge of {field}", edge, MAX_SHORTEST_EDGE)
    largest = max(sides.values())
    pixels = sides["height"] * sides["width"] if sides.keys() >= {"height", "width"} else largest**2
    if pixels > MAX_PROCESSED_PIXELS:
        raise IncompleteModel(
            f"{problem}: {field} asks for images of {pixels:,} pixels; the limit is {MAX_PROCESSED_PIXELS:,}.",
            code="E_MODEL_TOO_LARGE",
        )
