"""From words to values: what was typed, as the library takes it."""

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer.errors import InputError, MethodError

if TYPE_CHECKING:
    from whyformer.model import Model


def quietly() -> None:
    """Without the progress bars and advice of the libraries that load models."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def quietly_opened(name: str) -> "Model":
    from whyformer.loading import open as opened

    quietly()
    return opened(name)


def inputs_for(model: "Model", inputs: list[str]) -> Any:
    """What was typed, as the model takes it. A model without a processor takes tensors from a safetensors file."""
    if model.kind != "tensors":
        return inputs
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if len(inputs) != 1 or Path(inputs[0]).suffix != ".safetensors":
        raise InputError(
            f"{model.name} has no processor or tokenizer, so it takes tensors: give one .safetensors file that "
            "holds its inputs by name (input_ids, pixel_values), or use a model with a processor."
        )
    try:
        return load_file(inputs[0])
    except OSError as error:
        raise InputError(f"Cannot read {inputs[0]}: {error.strerror or error}.") from None
    except SafetensorError:
        raise InputError(f"{inputs[0]} is no safetensors file, or it is damaged.") from None


def check_out(out: Path | None, inputs: list[str], formats: Mapping[str, Any]) -> None:
    """Refuse, before anything is run, a file that cannot be written as asked or that is one of the inputs."""
    from whyformer.archive import suffix_of

    if out is None:
        return
    suffix_of(out, formats)
    if any(os.path.abspath(out) == os.path.abspath(given) for given in inputs):
        raise InputError(f"{out} is the input; saving there would overwrite it. Give -o another name.")


def target_for(model: "Model", wanted: list[str]) -> Any:
    """A label if the model has it, else an index if it is a number; one for all inputs, or a list with one for each."""
    if not wanted:
        return None
    labels = model.labels or ()
    aims = [int(word) if word not in labels and re.fullmatch(r"-?[0-9]{1,18}", word) else word for word in wanted]
    return aims[0] if len(aims) == 1 else aims


def parsed_settings(settings: list[str]) -> dict[str, Any]:
    """start=1, own=zero, normalise=true: Python values where they are, words otherwise."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise MethodError(f"{setting!r} is not a setting. Write NAME=VALUE, such as -s start=1.")
        if name in ("method", "model", "inputs", "target", "versus"):
            raise MethodError(f"{name} is not a setting of a method. Use the option of that name.")
        parsed[name] = value_of(value.strip())
    return parsed


def value_of(word: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if word.lower() in words:
        return words[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return word


def called(word: str, registry: Mapping[str, Any], what: str) -> Any:
    """rollout, or with settings rollout(start=1, normalise=True): a name, or a function with them filled in."""
    from functools import partial

    name, bracket, _ = word.partition("(")
    if not bracket:
        return word
    try:
        call = ast.parse(word.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        settings = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise MethodError(f"{word!r} is no {what} with settings. Write NAME(SETTING=VALUE), words in quotes.") from None
    return partial(registry[name].compute, **settings) if name in registry else name


def methods_called(words: list[str]) -> Any:
    """Names of methods, with settings or not; quick and all stand for many."""
    import whyformer.methods  # noqa: F401 (fills METHODS)
    from whyformer.method import METHODS

    if len(words) == 1 and words[0] in ("quick", "all"):
        return words[0]
    return [called(word, METHODS, "method") for word in words]
