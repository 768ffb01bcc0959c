"""whyformer inspect: the attention of every head in every layer."""

from pathlib import Path

import whyformer as why
from whyformer.cli import destination, options, parsing, running
from whyformer.cli.gathering import gather_inputs
from whyformer.cli.options import list_examples
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    "whyformer inspect cat.jpg -o attention.html",
    'whyformer inspect "a gorgeous film" -M demo/sentiment -o heads.svg',
)


@app.command("inspect", epilog=EXAMPLES)
def run_inspect(
    inputs: options.InputsArgument = None,
    pair: options.PairOption = None,
    model: options.ModelOption = options.DEFAULT_MODEL,
    target: options.TargetOption = None,
    versus: options.VersusOption = None,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Show the attention of every head with its gradient and relevance (-o, default: inspect.html)."""

    out = Path("inspect.html") if out is None else out
    destination.check_out_file(out, inputs, why.AttentionView.formats)
    opened = running.open_quietly(model)
    items = gather_inputs(opened, inputs, pair)
    view = why.inspect_attention(opened, items, **parsing.parse_targets(opened, target, versus))
    running.show_result(view, out, as_json=as_json)
