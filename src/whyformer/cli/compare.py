"""whyformer compare: several methods side by side."""

from typing import TYPE_CHECKING

import whyformer as why
from whyformer.cli import destination, parsing, running
from whyformer.cli.gathering import gather_inputs
from whyformer.cli.options import DEFAULT_MODEL, File, Word, Words
from whyformer.cli.shell import app
from whyformer.errors import MethodError

if TYPE_CHECKING:
    from whyformer._explain.compare import MethodsLike

EXAMPLES = (
    "whyformer compare",
    "whyformer compare cat.jpg -o methods.html",
    'whyformer compare "a gorgeous film" -M demo/sentiment -m rollout -m libragrad -m chance',
)
METHOD_HELP = (
    "A method, with settings if you like, such as 'rollout(start=1)'; repeat -m to compare several. Or a group: quick, "
    "the methods that need a single run of the model, or all. By default six that are worth comparing for this model."
)
ALL_HELP = "Every method that needs a single run of the model, as -m quick."


@app.command("compare", examples=EXAMPLES, methods=METHOD_HELP, every=(ALL_HELP, None, "--all"))
def run_compare(
    *, inputs: Words, pair: Words, model: str = DEFAULT_MODEL, methods: Words, every: bool = False, targets: Words,
    versus: Word, out: File,
) -> None:  # fmt: skip
    """Compare several methods from one run of the model. Without arguments, runs on the bundled demo model."""
    from whyformer.results.joining import join_comparisons

    if every and methods:
        raise MethodError("--all stands for every quick method. Leave it out, or leave out -m.", code="E_OPTION")
    chosen = choose_comparison_methods(["quick"] if every else methods)
    destination.check_out_file(out, inputs, why.Comparison.formats)
    opened = running.open_quietly(model)
    items = gather_inputs(opened, inputs, pair)
    batches = running.iterate_batches(items, parsing.parse_targets(opened, targets, versus))
    compared = join_comparisons([why.compare(opened, batch, chosen, **aim) for batch, aim in batches])
    running.show_result(compared, out)


def choose_comparison_methods(words: list[str] | None) -> "MethodsLike | None":
    """Methods, with or without settings, a group (quick, all) or None; misspelt and repeated ones are refused."""
    from whyformer._explain.method_call import label_methods

    methods = parsing.parse_methods(words or [])
    if not isinstance(methods, str):
        label_methods(methods)
    return methods or None
