"""Options that every command has without listing them: --json, --debug, --open, and --device where a model runs.

`running.open_quietly` reads the device, `running.show_result` prints JSON, `output.print_saved` opens what was saved;
the program itself looks for --debug (shell.py). A path that is not there is refused before torch is imported, which
takes seconds.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.cli.options import DEFAULT_MODEL, OPTIONS, TEXT_AS_INPUT, TEXT_SUFFIXES, Word, make_parameter
from whyformer.errors import InputError, ModelNotFound, OutputError

DEVICE: ContextVar[str | None] = ContextVar("device", default=None)
OPENS: ContextVar[bool] = ContextVar("opens", default=False)
AS_JSON: ContextVar[bool] = ContextVar("as_json", default=False)
WITHOUT_MODEL = {"methods", "metrics", "compare-runs"}  # they run no model, so there is nothing for --device to change
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".mat")
SHARED = {"device": Word, "as_json": bool, "debug": bool, "open_page": bool}
Run = TypeVar("Run", bound=Callable[..., Any])


def add_options(verb: str, run: Callable[..., None], described: dict[str, inspect.Parameter]) -> Callable[..., None]:
    """The command with these parameters, and with the shared options that are not among them."""
    absent = {"device"} if verb in WITHOUT_MODEL else set()
    shared = {name: kind for name, kind in SHARED.items() if name not in absent and name not in described}
    own = set(inspect.signature(run).parameters)
    listed = [*described.values(), *(make_parameter(name, kind, OPTIONS[name]) for name, kind in shared.items())]

    def run_with_options(**arguments: Any) -> None:
        chosen = {name: arguments.pop(name) for name in shared}
        opens = chosen.get("open_page", False)
        if "out_folder" in arguments:
            check_report_folder(arguments["out_folder"], opens=opens)
        refuse_missing_paths(arguments)
        # What was not given is left out: the Python function has its own default.
        given = {name: value for name, value in arguments.items() if value is not None or name in own}
        with choose_shared(chosen.get("device"), opens, chosen.get("as_json", False)):
            run(**given)

    run_with_options.__doc__ = run.__doc__
    run_with_options.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    run_with_options.__annotations__ = {one.name: one.annotation for one in listed}
    return run_with_options


@contextmanager
def choose_shared(device: str | None, opens: bool, as_json: bool) -> Iterator[None]:
    """These choices hold while the block runs."""
    before = DEVICE.get(), OPENS.get(), AS_JSON.get()
    DEVICE.set(device), OPENS.set(opens), AS_JSON.set(as_json)
    try:
        yield
    finally:
        DEVICE.set(before[0]), OPENS.set(before[1]), AS_JSON.set(before[2])


def check_report_folder(out: Path | None, *, opens: bool) -> None:
    from whyformer.cli.destination import check_out_folder

    if opens and out is None:
        raise OutputError("--open needs a folder for the report: add -o FOLDER.", code="E_USAGE")
    check_out_folder(out)


# --- paths ------------------------------------------------------------------------------------------------------------


def refuse_missing_paths(arguments: Mapping[str, Any]) -> None:
    """Refuse a model folder or an input file that is written as a path but is not there."""
    model = arguments.get("model")
    if isinstance(model, str) and model.startswith(("/", "./", "../", "~")) and not os.path.exists(expand(model)):
        raise ModelNotFound(f"{model!r} is neither an existing model folder nor a valid model name.")
    data = arguments.get("data")
    if isinstance(data, str) and is_path(data) and not os.path.exists(expand(data)):
        raise InputError(f"Cannot read {data!r}: there is no such file or folder.", code="E_DATA")
    inputs = arguments.get("inputs")
    if isinstance(inputs, list) and not arguments.get("pair"):
        for word in inputs:
            refuse_missing_file(word, takes_images=model == DEFAULT_MODEL)


def is_path(data: str) -> bool:
    """Whether the name of a data set can only be a file or folder: by its suffix or its beginning, and no pattern."""
    is_written_so = data.lower().endswith((*TABLE_SUFFIXES, "/")) or data.startswith(("/", "./", "../", "~"))
    return is_written_so and "://" not in data and not any(letter in "*?[{" for letter in data)


def refuse_missing_file(word: str, *, takes_images: bool) -> None:
    """A single word that ends like a file is one, unless it is a pattern; for a model of texts it may be a text."""
    is_other = "://" in word or any(letter.isspace() or letter in "*?[" for letter in word)
    if is_other or os.path.exists(expand(word)):
        return
    if word.lower().endswith(IMAGE_SUFFIXES):
        advice = "" if takes_images else f" {TEXT_AS_INPUT}"
        raise InputError(f"Cannot read {word!r}: there is no such file.{advice}", code="E_IMG_READ")
    if word.lower().endswith(TEXT_SUFFIXES):
        raise InputError(f"Cannot read {word!r}: there is no such file. {TEXT_AS_INPUT}")


def expand(path: str) -> Path:
    return Path(os.path.expanduser(path))
