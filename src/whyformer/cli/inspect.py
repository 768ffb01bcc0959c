"""whyformer inspect: the attention of every head in every layer."""

from pathlib import Path

import whyformer as why
from whyformer.cli import destination, parsing, running
from whyformer.cli.gathering import gather_inputs
from whyformer.cli.options import DEFAULT_MODEL, File, Word, Words
from whyformer.cli.shell import app

EXAMPLES = (
    "whyformer inspect cat.jpg -o attention.html",
    'whyformer inspect "a gorgeous film" -M demo/sentiment -o heads.svg',
)


@app.command("inspect", examples=EXAMPLES)
def run_inspect(
    *, inputs: Words, pair: Words, model: str = DEFAULT_MODEL, targets: Words, versus: Word, out: File
) -> None:
    """Show the attention of every head with its gradient and relevance (-o, default: inspect.html)."""

    out = Path("inspect.html") if out is None else out
    destination.check_out_file(out, inputs, why.AttentionView.formats)
    opened = running.open_quietly(model)
    items = gather_inputs(opened, inputs, pair)
    view = why.inspect_attention(opened, items, **parsing.parse_targets(opened, targets, versus))
    running.show_result(view, out)
