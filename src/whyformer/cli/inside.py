"""whyformer inside: what every head of every layer attends to."""

from whyformer.cli import gather, typed
from whyformer.cli.options import DEFAULT, Debug, Inputs, ModelName, Out, Target, Versus
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer inside cat.jpg -o inside.html

whyformer inside "a gorgeous film" -M demo/sentiment -o heads.svg"""


@app.command(epilog=EXAMPLES)
def inside(
    inputs: Inputs = None,
    model: ModelName = DEFAULT,
    target: Target = None,
    versus: Versus = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Attention of every head, its gradient and relevance, as a page or a figure (-o, by default inside.html)."""
    from pathlib import Path

    from whyformer.heads import FORMATS
    from whyformer.heads import inside as looked_into

    out = Path("inside.html") if out is None else out
    typed.check_out(out, inputs or [], FORMATS)
    opened = typed.quietly_opened(model)
    items = typed.inputs_for(opened, gather.gathered(opened, inputs or []))
    found = looked_into(opened, items, **typed.aims_for(opened, target, versus))
    found.save(out)
    print(f"{found.title}\n{found!r}: {out}")
