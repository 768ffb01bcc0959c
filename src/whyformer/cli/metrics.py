"""whyformer metrics: list all metrics, what their numbers mean and whether higher is better."""

import json

from whyformer.cli import options, output, running
from whyformer.cli.shell import app


@app.command("metrics")
def run_metrics(as_json: options.JsonOption = False, debug: options.DebugOption = False) -> None:
    """List all metrics: what the numbers mean, what they need, and whether higher is better."""
    import whyformer.metrics  # noqa: F401 (fills METRICS)
    from whyformer.metrics._registry import METRICS, format_metrics, list_metrics

    if as_json:
        output.print_text(json.dumps(list_metrics(), indent=2, default=repr))
    else:
        output.print_prose(format_metrics())
    running.open_listing(METRICS)
