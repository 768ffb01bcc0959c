"""whyformer doctor: what was found in a model, which methods work on it, why the others do not, and what each costs."""

from typing import Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, parsing, running
from whyformer.cli.options import Words, list_examples, make_option
from whyformer.cli.shell import app

STATUS = "Exit status: 0 every method works, 6 some do not, 7 none does, 3 the input and 4 the model cannot be used."
EXAMPLES = list_examples(
    "whyformer doctor demo/pets",
    'whyformer doctor my/folder "a gorgeous, witty film" -o doctor.html',
    "whyformer doctor my/folder cat.jpg -m rollout -m attnlrp --json",
)


@app.command("doctor", epilog=f"{STATUS}\n\n{EXAMPLES}")
def run_doctor(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, autocompletion=options.complete_model_names)
    ],
    inputs: options.InputsArgument = None,
    pair: options.PairOption = None,
    method: Annotated[Words, options.make_method_option("A method to try, repeatable. Default: all of them.")] = None,
    target: options.TargetOption = None,
    full: Annotated[
        bool, make_option("--full", "Try sampling methods with their full budget, which may take minutes.")
    ] = False,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Say what was found in a model, which methods work on it, why the others do not, and what each costs."""
    from whyformer._explain.method_call import label_methods
    from whyformer.cli.gathering import gather_inputs

    label_methods(method or [])  # misspelt names, before a model is opened
    destination.check_out_file(out, inputs, why.Diagnosis.formats)
    opened = running.open_quietly(model, device)
    items = gather_inputs(opened, inputs, pair) if inputs or pair else None
    aim = parsing.parse_targets(opened, target, None)["target"]
    diagnosis = why.diagnose(opened, items, method or None, target=aim, full=full)
    running.show_result(diagnosis, out, as_json=as_json)
    if diagnosis.exit_code:
        raise typer.Exit(diagnosis.exit_code)
