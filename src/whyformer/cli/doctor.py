"""whyformer doctor: what was found in a model, which methods work on it, why the others do not, and what each costs."""

from typing import Any

import typer

import whyformer as why
from whyformer.cli import destination, parsing, running
from whyformer.cli.options import MODEL_ARGUMENT, File, Words
from whyformer.cli.shell import app

STATUS = "Exit status: 0 every method works, 6 some do not, 7 none does, 3 the input and 4 the model cannot be used."
EXAMPLES = (
    "whyformer doctor demo/pets",
    'whyformer doctor my/folder "a gorgeous, witty film" -o doctor.html',
    "whyformer doctor my/folder cat.jpg -m rollout -m attnlrp --json",
)


@app.command(
    "doctor",
    of="diagnose",
    without=("target",),
    examples=EXAMPLES,
    status=STATUS,
    model=MODEL_ARGUMENT,
    methods="A method to try, repeatable. Default: all of them.",
)
def run_doctor(
    *, model: str, inputs: Words, pair: Words, methods: Words, targets: Words, out: File, **settings: Any
) -> None:
    """Say what was found in a model, which methods work on it, why the others do not, and what each costs."""
    from whyformer._explain.method_call import label_methods
    from whyformer.cli.gathering import gather_inputs

    label_methods(methods or [])  # misspelt names, before a model is opened
    destination.check_out_file(out, inputs, why.Diagnosis.formats)
    opened = running.open_quietly(model)
    items = gather_inputs(opened, inputs, pair) if inputs or pair else None
    aim = parsing.parse_targets(opened, targets, None)["target"]
    diagnosis = why.diagnose(opened, items, methods or None, target=aim, **settings)
    running.show_result(diagnosis, out)
    if diagnosis.exit_code:
        raise typer.Exit(diagnosis.exit_code)
