"""Options that every verb has without listing them: --open, --device where a model runs, and paths checked early.

    @app.command("explain")
    def run_explain(inputs, model, ...): ...        also takes --open and --device

`running.open_quietly` reads the device, `output.print_saved` opens what was saved. A path that is not there is refused
before torch is imported, which takes seconds.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypeVar

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.cli.options import DEFAULT_MODEL, TEXT_AS_INPUT, TEXT_SUFFIXES, DeviceOption, make_option
from whyformer.errors import InputError, ModelNotFound, OutputError

DEVICE: ContextVar[str | None] = ContextVar("device", default=None)
OPENS: ContextVar[bool] = ContextVar("opens", default=False)
WITHOUT_MODEL = {"methods", "metrics", "compare-runs"}  # they run no model, so there is nothing for --device to change
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".mat")
INTO_A_FOLDER = {"judge", "audit", "reproduce"}  # their page is saved with -o
OpenOption = Annotated[bool, make_option("--open", "Open the saved page in a browser; without -o, a temporary one.")]
Run = TypeVar("Run", bound=Callable[..., Any])


def add_shared_options(verb: str, run: Callable[..., None]) -> Callable[..., None]:
    """The verb with the shared options that it does not list itself."""
    own = inspect.signature(run, eval_str=True)
    shared: dict[str, tuple[Any, Any]] = {"open_page": (OpenOption, False)}
    shared |= {} if verb in WITHOUT_MODEL else {"device": (DeviceOption, None)}
    shared = {name: option for name, option in shared.items() if name not in own.parameters}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
    ]

    @functools.wraps(run)
    def run_with_options(**arguments: Any) -> None:
        chosen = {name: arguments.pop(name) for name in shared}
        opens = chosen.get("open_page", False)
        if verb in INTO_A_FOLDER:
            check_report_folder(arguments.get("out"), opens=opens)
        refuse_missing_paths(arguments)
        with choose_shared(chosen.get("device"), opens):
            run(**arguments)

    vars(run_with_options).pop("__wrapped__")
    signature = own.replace(parameters=[*own.parameters.values(), *added])
    run_with_options.__signature__ = signature  # type: ignore[attr-defined]
    run_with_options.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    return run_with_options


@contextmanager
def choose_shared(device: str | None, opens: bool) -> Iterator[None]:
    """These choices hold while the block runs."""
    tokens = DEVICE.set(device), OPENS.set(opens)
    try:
        yield
    finally:
        DEVICE.reset(tokens[0])
        OPENS.reset(tokens[1])


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
