"""whyformer compare: several methods side by side."""

from pathlib import Path
from typing import Annotated

from whyformer.cli import destination, options, parsing, running
from whyformer.cli.options import Words
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer compare

whyformer compare cat.jpg -o methods.html

whyformer compare "a gorgeous film" -M demo/sentiment -m rollout -m libragrad -m chance"""

METHOD_HELP = (
    "A method; repeat -m to compare several. Or a group: quick (the default), the methods that need a single run of "
    "the model, or all."
)


@app.command("compare", epilog=EXAMPLES)
def run_compare(
    inputs: options.InputsArgument = None,
    pair: options.PairOption = None,
    model: options.ModelOption = options.DEFAULT_MODEL,
    method: Annotated[Words, options.make_method_option(METHOD_HELP)] = None,
    target: options.TargetOption = None,
    versus: options.VersusOption = None,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Compare several methods from one run of the model. Without arguments, runs on the bundled demo model."""
    compare_and_show(inputs, pair, model, method, target, versus, out, as_json)


def compare_and_show(
    inputs: list[str] | None,
    pair: list[str] | None,
    model: str,
    method: list[str] | None,
    target: list[str] | None,
    versus: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare methods, print the result and save it."""
    from whyformer._explain.compare import compare
    from whyformer.results.comparison import Comparison
    from whyformer.results.joining import join_comparisons

    methods = choose_comparison_methods(method)
    destination.check_out_file(out, inputs, Comparison.formats)
    opened, items = running.open_with_inputs(model, inputs, pair)
    targets = parsing.parse_targets(opened, target, versus)
    compared = join_comparisons(
        [compare(opened, batch, methods or "quick", **aim) for batch, aim in running.iterate_batches(items, targets)]
    )
    running.show_result(compared, out, to_json=Comparison.formats[".json"] if as_json else None)


def choose_comparison_methods(names: list[str] | None) -> str | list[str] | None:
    """The names of methods, a group (quick, all) or None; misspelt and repeated names are refused."""
    from whyformer._explain.method_call import label_methods

    if names in (["all"], ["quick"]):
        return names[0]
    label_methods(names or [])
    return names or None
