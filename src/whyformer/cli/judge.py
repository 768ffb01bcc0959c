"""whyformer judge: which method to trust for this model and data."""

import json
from typing import Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, output, parsing, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import Word, Words, list_examples, make_option
from whyformer.cli.shell import FAILED_EXIT_CODE, app

EXAMPLES = list_examples(
    "whyformer judge reviews.csv -M demo/sentiment -m rollout -m libragrad -o runs/reviews",
    "whyformer judge photos/ --masks masks/ --limit 200",
    "whyformer judge demo/creatures -M demo/creatures --degrade gamma_attribution -k deletion -k insertion",
)


@app.command("judge", epilog=EXAMPLES)
def run_judge(
    data: options.DataArgument,
    model: options.ModelOption = options.DEFAULT_MODEL,
    method: options.MethodsOption = None,
    metric: Annotated[
        Words, make_option("-k --metric", "Repeatable, with settings: 'aopc(fill=\"pad\")'.", "METRIC")
    ] = None,
    target: options.OneTargetOption = None,
    degrade: Annotated[
        Word,
        make_option(
            "--degrade",
            "Judge the metrics instead: do they rank the maps of METHOD above the same maps with noise? With -m "
            "also: do they rank methods as the exact evidence of a generated world does?",
            "METHOD",
        ),
    ] = None,
    limit: options.LimitOption = None,
    batch_size: options.BatchSizeOption = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    classes: options.ClassesOption = None,
    masks: options.MasksOption = None,
    mask_values: options.MaskValuesOption = "binary",
    device: options.DeviceOption = None,
    out: options.OutFolderOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Score methods on your data against controls that know nothing, with confidence intervals, and recommend one."""
    from whyformer.methods._registry import METHODS
    from whyformer.metrics._registry import METRICS

    methods = parsing.parse_methods(method or ["quick"])
    metrics = [parsing.parse_call(word, METRICS, "metric") for word in metric] if metric else None
    destination.check_out_folder(out)
    examples = read_examples(data, column, classes, split=split, masks=masks, mask_values=mask_values, limit=limit)
    opened = running.open_quietly(model, device)
    aim = target if target in (None, "predicted", "label") else parsing.parse_target(opened, [target])
    result: why.Judgement | why.MetricTrust
    if degrade is not None:
        degraded, several = parsing.parse_call(degrade, METHODS, "method"), methods if method else None
        result = why.judge_metrics(
            opened, examples, metrics, degraded, methods=several, target=aim, out=out, batch_size=batch_size
        )
    else:
        result = why.judge(opened, examples, methods, metrics, out=out, target=aim, batch_size=batch_size)
    if as_json and isinstance(result, why.Judgement):
        fields = {"verdict": result.verdict, "cautions": result.cautions, "lines": result.table.records()}
        output.print_text(json.dumps(fields, indent=1))
    else:
        output.print_rendered(str(result))
    if out is not None:
        output.print_saved(out, *([out / "report.html"] if degrade is None else []))
    if result.failed:
        raise typer.Exit(FAILED_EXIT_CODE)
