"""whyformer metrics: list all metrics, what their numbers mean and whether higher is better."""

import json

from whyformer.cli import output, running
from whyformer.cli.shared_options import AS_JSON
from whyformer.cli.shell import app


@app.command("metrics")
def run_metrics() -> None:
    """List all metrics: what the numbers mean, what they need, and whether higher is better."""
    import whyformer.metrics  # noqa: F401 (fills METRICS)
    from whyformer.metrics._registry import METRICS, format_metrics, list_metrics

    if AS_JSON.get():
        output.print_text(json.dumps(list_metrics(), indent=2, default=repr))
    else:
        output.print_prose(format_metrics())
    running.open_listing(METRICS)
