"""whyformer metrics: all metrics, what their numbers mean, what they need and which way is better."""

import json

from whyformer.cli.options import AsJson, Debug
from whyformer.cli.shell import app


@app.command()
def metrics(as_json: AsJson = False, debug: Debug = False) -> None:
    """All metrics: what the numbers mean, what they need, which way is better."""
    import whyformer.metrics  # noqa: F401 (fills METRICS)
    from whyformer.metric import listing, table

    print(json.dumps(table(), indent=2, default=repr) if as_json else listing())
