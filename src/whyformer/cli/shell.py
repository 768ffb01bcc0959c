"""The program around the verbs: exit codes, and errors in one line."""

import ctypes
import json
import random
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from whyformer._plain.progress import Wait, show_activity
from whyformer.cli import output
from whyformer.cli.options import list_parameters, make_option
from whyformer.cli.shared_options import Run, add_options
from whyformer.errors import WhyformerError, find_exit_code
from whyformer.show.visible import make_lines_visible, make_visible

FIRST_STEPS = """\
Why did the transformer say that? Three things to do first:

  whyformer explain photo.jpg --open               what a prediction rests on
  whyformer judge reviews.csv -M my/model -o run   which method to trust on your data
  whyformer cite "prompt" -M my/model              which passage an answer comes from

-M takes a folder, a name on the hub or a bundled model (demo/pets, demo/sentiment, demo/reader).
No file at hand? whyformer demo --sample cat.jpg writes one. All commands: whyformer --help"""


class CommandGroup(TyperGroup):
    """The commands, with every error reported in one line."""

    def main(self, args: Any = None, *, standalone_mode: bool = True, **more: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        output.prepare_streams()
        state = random.getstate()
        try:
            with show_activity(Wait(f"whyformer {' '.join(arguments[:1])} is running")):
                code = super().main(arguments, standalone_mode=False, **more)
            with output.convert_write_errors():
                sys.stdout.flush()
            if code == 130:  # typer has caught the interrupt
                raise KeyboardInterrupt
        except BrokenPipeError:  # `whyformer methods | head`
            code = 1
        except BaseException as error:
            code = print_error(error, debug="--debug" in options, as_json="--json" in options)
        random.setstate(state)  # for who calls this from Python: rich draws a number when it is imported
        try:
            sys.stdout.flush()
        except OSError:
            output.discard_rest(sys.stdout)
        if code == find_exit_code("E_INTERRUPTED"):
            # Let Python exit with a status. If an extension was running Python code when the interrupt came, as in an
            # import of torch, Python would remember it as unhandled and end itself by the signal; any such run forgets
            # it.
            ctypes.pythonapi.PyRun_SimpleString(b"pass")
        sys.exit(code if isinstance(code, int) else 0)


def print_error(error: BaseException, *, debug: bool, as_json: bool = False) -> int:
    """Print what went wrong in one line, or as one JSON object; returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    code, message = describe_error(error)
    message = make_visible(" ".join(message.split()))
    trace = make_lines_visible("".join(traceback.format_exception(error))) if debug else ""
    if as_json:
        fields = {"code": code, "message": message, "exit_code": find_exit_code(code)}
        output.print_to_stderr(json.dumps({"error": fields | ({"traceback": trace} if debug else {})}))
    else:
        output.print_to_stderr(trace + output.wrap_for_terminal(f"error[{code}]: {message}"))
    return find_exit_code(code)


def describe_error(error: BaseException) -> tuple[str, str]:
    """The code of an error and what to say about it."""
    match error:
        case WhyformerError():
            return error.code, str(error)
        case KeyboardInterrupt() | typer.Abort():
            return "E_INTERRUPTED", "interrupted"
        case MemoryError():
            return "E_MEMORY", "out of memory"
        case OSError() if error.errno in output.FULL:
            return "E_DISK_FULL", str(output.make_stream_error(error))
        case OSError() if error.filename is None and not output.is_writable(sys.stdout):  # the help, which typer prints
            return "E_OUT_PATH", str(output.make_stream_error(error))
    if hasattr(error, "format_message"):  # a wrong option or argument
        message = error.format_message().rstrip(".")
        return "E_USAGE", f"{message}{'' if message.endswith('?') else '.'} See whyformer --help."
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which is not imported here
        return "E_MEMORY", "out of memory on the device; explain fewer inputs at once"
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch on the processor
        return "E_MEMORY", "out of memory; explain fewer inputs at once"
    if follows_interrupt(error):  # stopped while a library was imported
        return "E_INTERRUPTED", "interrupted"
    return "E_INTERNAL", f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def follows_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt is among the errors that led to this one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


class Program(typer.Typer):
    """The commands, each with the shared options."""

    def command(  # type: ignore[override]
        self, command: str, *, of: str | None = None, without: Collection[str] = (), examples: Sequence[str] = (),
        status: str = "", **own: Any,
    ) -> Callable[[Run], Run]:  # fmt: skip
        """own: options by parameter. of: a Python function whose other parameters are options too (options.py)."""
        epilog = "\n\n".join([*([status] if status else []), "Examples:", *examples]) if examples else None

        def register(run: Run) -> Run:
            full = add_options(command, run, list_parameters(run, own, of, without))
            super(Program, self).command(command, epilog=epilog)(full)
            return run

        return register


app = Program(
    cls=CommandGroup,
    help="Why did the transformer say that?",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(requested: bool) -> None:
    if requested:
        try:
            output.print_text(f"whyformer {version('whyformer')}")
        except PackageNotFoundError:
            output.print_text("whyformer (not installed)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def run_program(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version.")
    ] = False,
    as_json: Annotated[bool, make_option("--json", "Print an error as JSON.")] = False,
    with_date: Annotated[bool, typer.Option("--date/--no-date", help="Put today's date on saved pages.")] = True,
) -> None:
    if context.invoked_subcommand is None:
        output.print_text(FIRST_STEPS)
    if not with_date:
        from whyformer.show.page_facts import date_pages

        context.with_resource(date_pages(""))
