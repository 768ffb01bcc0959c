"""whyformer serve: ask models why, in a browser."""

from whyformer.cli import output
from whyformer.cli.options import Word, Words, make_option
from whyformer.cli.shared_options import DEVICE, OPENS
from whyformer.cli.shell import app
from whyformer.errors import MethodError
from whyformer.show.visible import make_lines_visible

EXAMPLES = (
    "whyformer serve --open",
    "whyformer serve my/folder demo/reader --port 9000",
    "whyformer serve demo/sentiment runs/films",
)
PUBLIC = "--i-understand-this-is-public"
INSTALL = "The page needs FastAPI and uvicorn. Install them with: pip install 'whyformer[page]'"
MODELS_HELP = "Names or folders of models, and folders of bulk runs. Default: three models that ship with whyformer."


@app.command(
    "serve",
    examples=EXAMPLES,
    models=MODELS_HELP,
    port=make_option("--port", "The port; 0 takes any that is free.", "N", min=0, max=65535),
    host=(f"Another address to listen at than 127.0.0.1; needs {PUBLIC}.", "ADDRESS"),
    is_public=("Whoever reaches the address and has the link can use it.", None, PUBLIC),
    token=make_option("--token", "The token of the link, for tests.", hidden=True),
    as_json=("Print an error as JSON.", None, "--json"),
)
def run_serve(
    *, models: Words, port: int = 8765, host: str = "127.0.0.1", is_public: bool, token: Word, as_json: bool
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
