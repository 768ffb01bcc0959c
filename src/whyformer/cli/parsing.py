"""From words to values: what was typed, as the library takes it."""

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer._plain.progress import show_progress
from whyformer.errors import InputError, MethodError

if TYPE_CHECKING:
    from whyformer._model.model import Model


BATCH = 16  # inputs explained at once


def silence_libraries() -> None:
    """Without the progress bars and advice of the libraries that load models."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def open_quietly(name: str) -> "Model":
    from whyformer._model.loading import open as opened

    silence_libraries()
    return opened(name)


def parse_aims(model: "Model", target: list[str] | None, versus: str | None) -> dict[str, Any]:
    """What is to be explained, and rather than what."""
    return {
        "target": parse_target(model, target or []),
        "versus": parse_target(model, [] if versus is None else [versus]),
    }


def batch_inputs(items: Any, aims: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The inputs, some at a time, each with its own aims; progress is told on stderr."""
    if not isinstance(items, list) or len(items) <= BATCH:
        yield items, dict(aims)
        return
    from whyformer._engine.target import expand_per_example

    each = {name: expand_per_example(aim, len(items), name) for name, aim in aims.items()}
    with show_progress(len(items), "explaining") as progress:
        for start in range(0, len(items), BATCH):
            part = slice(start, start + BATCH)
            yield items[part], {name: aim[part] for name, aim in each.items()}
            progress.advance(len(items[part]))


def refuse_useless_options(given: Mapping[str, Any], what: str) -> None:
    """Options that say nothing here."""
    for option, value in given.items():
        if value:
            raise MethodError(f"{option} does not go with {what}. Explain by one method at a time.")


def compare_and_show(
    inputs: list[str] | None,
    model: str,
    method: list[str] | None,
    target: list[str] | None,
    versus: str | None,
    out: Path | None,
    as_json: bool,
    classes: int | None,
) -> None:
    """Several methods, or several classes, printed and saved."""
    from whyformer._explain.classes import DEFAULT_METHODS, explain_classes
    from whyformer._explain.compare import compare
    from whyformer._explain.method_call import label_methods
    from whyformer.cli import gathering
    from whyformer.results.class_grid import ClassGrid
    from whyformer.results.comparison import Comparison, comparison_to_json
    from whyformer.results.joining import join_comparisons

    named = method[0] if method in (["all"], ["quick"]) else method or None
    label_methods(named if isinstance(named, list) else [])
    check_out_file(out, inputs or [], Comparison.formats if classes is None else ClassGrid.formats)
    if classes is not None:
        refuse_useless_options({"--target": target, "--versus": versus, "--json": as_json}, "--classes")
    opened = open_quietly(model)
    items = prepare_inputs(opened, gathering.gather_inputs(opened, inputs or []))
    if classes is not None:
        made = explain_classes(opened, items, named or DEFAULT_METHODS, classes=classes)
        print(made)
        if out is not None:
            made.save(out)
        return
    aims = parse_aims(opened, target, versus)
    found = join_comparisons([compare(opened, part, named or "quick", **at) for part, at in batch_inputs(items, aims)])
    print(comparison_to_json(found).decode("ascii") if as_json else str(found))
    if out is not None:
        found.save(out)


def prepare_inputs(model: "Model", inputs: list[Any]) -> Any:
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


def check_out_file(out: Path | None, inputs: list[str], formats: Mapping[str, Any]) -> None:
    """Refuse, before anything is run, a file that cannot be written as asked or that is one of the inputs."""
    from whyformer._plain.archive import suffix_of

    if out is None:
        return
    suffix_of(out, formats)
    if any(os.path.abspath(out) == os.path.abspath(given) for given in inputs):
        raise InputError(f"{out} is the input; saving there would overwrite it. Give -o another name.")


def parse_target(model: "Model", wanted: list[str]) -> Any:
    """A label if the model has it, else an index if it is a number; one for all inputs, or a list with one for each."""
    if not wanted:
        return None
    labels = model.labels or ()
    aims = [int(word) if word not in labels and re.fullmatch(r"-?[0-9]{1,18}", word) else word for word in wanted]
    return aims[0] if len(aims) == 1 else aims


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """start=1, own=zero, normalise=true: Python values where they are, words otherwise."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise MethodError(f"{setting!r} is not a setting. Write NAME=VALUE, such as -s start=1.")
        if name in ("method", "model", "inputs", "target", "versus"):
            raise MethodError(f"{name} is not a setting of a method. Use the option of that name.")
        parsed[name] = parse_value(value.strip())
    return parsed


def parse_value(word: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if word.lower() in words:
        return words[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return word


def parse_call(word: str, registry: Mapping[str, Any], what: str) -> Any:
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


def parse_methods(words: list[str]) -> Any:
    """Names of methods, with settings or not; quick and all stand for many."""
    import whyformer.methods  # noqa: F401 (fills METHODS)
    from whyformer.methods._registry import METHODS

    if len(words) == 1 and words[0] in ("quick", "all"):
        return words[0]
    return [parse_call(word, METHODS, "method") for word in words]
