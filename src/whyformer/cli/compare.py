"""whyformer compare: several methods side by side."""

from typing import TYPE_CHECKING, Annotated

import whyformer as why
from whyformer.cli import destination, options, parsing, running
from whyformer.cli.gathering import gather_inputs
from whyformer.cli.options import Words, list_examples
from whyformer.cli.shell import app

if TYPE_CHECKING:
    from whyformer._explain.compare import MethodsLike

EXAMPLES = list_examples(
    "whyformer compare",
    "whyformer compare cat.jpg -o methods.html",
    'whyformer compare "a gorgeous film" -M demo/sentiment -m rollout -m libragrad -m chance',
)


METHOD_HELP = (
    "A method, with settings if you like, such as 'rollout(start=1)'; repeat -m to compare several. Or a group: quick "
    "(the default), the methods that need a single run of the model, or all."
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
    from whyformer.results.joining import join_comparisons

    methods = choose_comparison_methods(method)
    destination.check_out_file(out, inputs, why.Comparison.formats)
    opened = running.open_quietly(model)
    items = gather_inputs(opened, inputs, pair)
    batches = running.iterate_batches(items, parsing.parse_targets(opened, target, versus))
    compared = join_comparisons([why.compare(opened, batch, methods or "quick", **aim) for batch, aim in batches])
    running.show_result(compared, out, as_json=as_json)


def choose_comparison_methods(words: list[str] | None) -> "MethodsLike | None":
    """Methods, with or without settings, a group (quick, all) or None; misspelt and repeated ones are refused."""
    from whyformer._explain.method_call import label_methods

    methods = parsing.parse_methods(words or [])
    if not isinstance(methods, str):
        label_methods(methods)
    return methods or None
