"""whyformer judge: which method to trust for this model and data."""

import json

import whyformer as why
from whyformer.cli import destination, output, parsing, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import DEFAULT_MODEL, File, Number, Word, Words
from whyformer.cli.shared_options import AS_JSON
from whyformer.cli.shell import app

EXAMPLES = (
    "whyformer judge reviews.csv -M demo/sentiment -m rollout -m libragrad -o runs/reviews",
    "whyformer judge photos/ --masks masks/ --limit 200",
    "whyformer judge demo/creatures -M demo/creatures --degrade gamma_attribution -k deletion -k insertion",
)


DEGRADE_HELP = (
    "Judge the metrics instead: do they rank the maps of METHOD above the same maps with noise? With -m also: do they "
    "rank methods as the exact evidence of a generated world does?"
)


@app.command(
    "judge",
    examples=EXAMPLES,
    metrics=("Repeatable, with settings: 'aopc(fill=\"pad\")'.", "METRIC", "-k --metric"),
    degrade=(DEGRADE_HELP, "METHOD"),
)
def run_judge(
    *, data: str, model: str = DEFAULT_MODEL, methods: Words, metrics: Words, target: Word, degrade: Word,
    limit: Number, batch_size: Number, split: Word, columns: Words, classes: Words, masks: File,
    mask_values: str = "binary", out_folder: File,
) -> None:  # fmt: skip
    """Score methods on your data against controls that know nothing, with confidence intervals, and recommend one."""
    from whyformer.methods._registry import METHODS
    from whyformer.metrics._registry import METRICS

    chosen = parsing.parse_methods(methods or ["quick"])
    measures = [parsing.parse_call(word, METRICS, "metric") for word in metrics] if metrics else None
    destination.check_out_folder(out_folder)
    examples = read_examples(data, columns, classes, split=split, masks=masks, mask_values=mask_values, limit=limit)
    opened = running.open_quietly(model)
    aim = target if target in (None, "predicted", "label") else parsing.parse_target(opened, [target])
    result: why.Judgement | why.MetricTrust
    if degrade is not None:
        degraded, several = parsing.parse_call(degrade, METHODS, "method"), chosen if methods else None
        result = why.judge_metrics(
            opened, examples, measures, degraded, methods=several, target=aim, out=out_folder, batch_size=batch_size
        )
    else:
        result = why.judge(opened, examples, chosen, measures, out=out_folder, target=aim, batch_size=batch_size)
    if AS_JSON.get() and isinstance(result, why.Judgement):
        fields = {"verdict": result.verdict, "cautions": result.cautions, "lines": result.table.records()}
        output.print_text(json.dumps(fields, indent=1))
    else:
        output.print_rendered(str(result))
    running.end_run(out_folder, *(["report.html"] if degrade is None else []), failed=result.failed)
