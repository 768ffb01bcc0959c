"""What the verbs do around the library call: open a model, run in batches, print and save the result."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer._plain.progress import Wait, show_activity, show_progress
from whyformer.cli import output
from whyformer.cli.collection import resume_collection
from whyformer.cli.gathering import gather_inputs
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from whyformer._model import Model
    from whyformer.results.result import Result

BATCH = 16  # inputs explained at once


def silence_libraries() -> None:
    """Turn off the progress bars and advice of transformers and the hub."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def open_quietly(name: str, device: str | None = None) -> "Model":
    """Open a model without output from other libraries."""
    from whyformer._model.loading import open as open_model

    silence_libraries()
    with show_activity(Wait(f"opening {make_visible(name)}")):
        model = open_model(name, device=device)
    resume_collection()
    return model


def open_with_inputs(name: str, words: list[str] | None, pair: list[str] | None = None) -> "tuple[Model, Any]":
    """The model, and the inputs for it; `pair` has the second texts."""
    model = open_quietly(name)
    return model, gather_inputs(model, words or [], pair)


def iterate_batches(inputs: Any, targets: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The inputs in batches, each with its target= and versus=; shows progress on stderr."""
    if not isinstance(inputs, list) or len(inputs) <= BATCH:
        yield inputs, dict(targets)
        return
    from whyformer._engine import expand_per_example

    per_example = {name: expand_per_example(target, len(inputs), name) for name, target in targets.items()}
    with show_progress(len(inputs), "explaining") as progress:
        for start in range(0, len(inputs), BATCH):
            batch = slice(start, start + BATCH)
            yield inputs[batch], {name: target[batch] for name, target in per_example.items()}
            progress.advance(len(inputs[batch]))


def show_result(result: "Result", out: Path | None = None, *, to_json: Callable[[Any], bytes] | None = None) -> None:
    """Print a result, as JSON if `to_json` is given, and then save it to `out`."""
    if to_json is None:
        output.print_result(result)
    else:
        output.print_text(to_json(result).decode("ascii"))
    if out is not None:
        result.save(out)
        output.print_saved(out)
