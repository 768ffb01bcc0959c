"""whyformer serve: ask models why, in a browser."""

from typing import Annotated

import typer

from whyformer.cli import options, output
from whyformer.cli.options import Word, Words, list_examples, make_option
from whyformer.cli.shared_options import DEVICE, OPENS
from whyformer.cli.shell import app
from whyformer.errors import MethodError
from whyformer.show.visible import make_lines_visible

EXAMPLES = list_examples(
    "whyformer serve --open",
    "whyformer serve my/folder demo/reader --port 9000",
)
PUBLIC = "--i-understand-this-is-public"
HOST_HELP = f"Another address to listen at than 127.0.0.1; needs {PUBLIC}."
INSTALL = "The page needs FastAPI and uvicorn. Install them with: pip install 'whyformer[page]'"
MODELS_HELP = "Names or folders. Default: an image model, a text model and a language model that ship with it."
Models = Annotated[Words, typer.Argument(metavar="[MODEL]...", help=MODELS_HELP)]


@app.command("serve", epilog=EXAMPLES)
def run_serve(
    models: Models = None,
    port: Annotated[int, make_option("--port", "The port; 0 takes any that is free.", "N", min=0, max=65535)] = 8765,
    host: Annotated[str, make_option("--host", HOST_HELP, "ADDRESS")] = "127.0.0.1",
    is_public: Annotated[bool, make_option(PUBLIC, "Whoever reaches the address and has the link can use it.")] = False,
    token: Annotated[Word, make_option("--token", "The token of the link, for tests.", hidden=True)] = None,
    as_json: options.JsonErrorsOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Ask models why, in a browser: a page on this machine, opened by the link that is printed."""
    try:
        from whyformer._page.serving import LOOPBACK, serve
    except ModuleNotFoundError as error:
        raise MethodError(f"{INSTALL} ({error.name} is missing.)", code="E_USAGE") from None
    if host not in LOOPBACK and not is_public:
        problem = f"{host} can be reached by others, who could use your models. Add {PUBLIC} if that is meant."
        raise MethodError(problem, code="E_USAGE")
    serve(
        models or (),
        port,
        host=host,
        token=token,
        device=DEVICE.get(),
        say=lambda text: output.print_text(make_lines_visible(text)),
        visit=output.open_address if OPENS.get() else None,
    )
