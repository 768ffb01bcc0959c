"""The program around the verbs: exit codes, errors in one line, and old names of verbs."""

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from whyformer.errors import WhyformerError
from whyformer.show.visible import make_visible

FAILED_EXIT_CODE = 6  # finished, but some rows have no number because something failed


class CommandGroup(TyperGroup):
    """The commands, with every error reported in one line."""

    def main(self, args: Any = None, *, standalone_mode: bool = True, **more: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # escape characters that the terminal cannot show
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().main(arguments, standalone_mode=False, **more)
            sys.stdout.flush()
            if code == 130:  # typer has caught the interrupt
                raise KeyboardInterrupt
        except BrokenPipeError:  # `whyformer methods | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no error when Python flushes at exit
            code = 1
        except BaseException as error:
            code = print_error(error, debug="--debug" in arguments)
        sys.exit(code if isinstance(code, int) else 0)


def print_error(error: BaseException, *, debug: bool) -> int:
    """Print what went wrong in one line; returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if debug:
        traceback.print_exception(error)
    message, code = describe_error(error)
    print(f"error: {make_visible(' '.join(message.split()))}", file=sys.stderr)
    return code


def describe_error(error: BaseException) -> tuple[str, int]:
    match error:
        case WhyformerError():
            return str(error), error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", 130
        case MemoryError():
            return "out of memory", 5
    if hasattr(error, "format_message"):  # a wrong option or argument
        message = error.format_message().rstrip(".")
        return f"{message}{'' if message.endswith('?') else '.'} See whyformer --help.", 2
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which is not imported here
        return "out of memory on the device; explain fewer inputs at once", 5
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)", 1


app = typer.Typer(
    cls=CommandGroup,
    help="Why did the transformer say that?",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(requested: bool) -> None:
    if requested:
        try:
            print(f"whyformer {version('whyformer')}")
        except PackageNotFoundError:
            print("whyformer (not installed)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def run_program(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def keep_old_verb(old: str, new: str, command: Callable[..., None]) -> None:
    """Register a renamed command under its old name too, hidden from --help."""

    @wraps(command)
    def run_renamed(*args: Any, **options: Any) -> None:
        print(f"whyformer {old} is now whyformer {new}", file=sys.stderr)
        command(*args, **options)

    app.command(old, hidden=True)(run_renamed)
