"""whyformer inside: what every head of every layer attends to."""

from whyformer.cli import gathering, parsing
from whyformer.cli.options import (
    DEFAULT_MODEL,
    DebugOption,
    InputsArgument,
    ModelOption,
    OutOption,
    TargetOption,
    VersusOption,
)
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer inside cat.jpg -o inside.html

whyformer inside "a gorgeous film" -M demo/sentiment -o heads.svg"""


@app.command(epilog=EXAMPLES)
def inside(
    inputs: InputsArgument = None,
    model: ModelOption = DEFAULT_MODEL,
    target: TargetOption = None,
    versus: VersusOption = None,
    out: OutOption = None,
    debug: DebugOption = False,
) -> None:
    """Attention of every head, its gradient and relevance, as a page or a figure (-o, by default inside.html)."""
    from pathlib import Path

    from whyformer._explain.attention import inspect_attention as looked_into
    from whyformer.results.attention_view import AttentionView

    out = Path("inside.html") if out is None else out
    parsing.check_out_file(out, inputs or [], AttentionView.formats)
    opened = parsing.open_quietly(model)
    items = parsing.prepare_inputs(opened, gathering.gather_inputs(opened, inputs or []))
    found = looked_into(opened, items, **parsing.parse_aims(opened, target, versus))
    found.save(out)
    print(f"{found.title}\n{found!r}: {out}")
