"""The command line: the same verbs as in Python, in the same order.

    whyformer explain cat.png -M google/vit-base-patch16-224 -t tabby -o map.png
    whyformer compare "a gorgeous film" -M my/folder -m rollout -m attcat
    whyformer audit reviews.tsv -M my/folder -a last -o runs/audit
    whyformer methods
    whyformer metrics

What is heavy to import (torch, transformers, the rest of this package) is imported inside the commands, so that --help
is quick. An error is one line on stderr: `error: ...`; the exit code says whose it is (2 usage, 3 input, 4 model,
5 numbers or memory, 130 interrupted).
"""

from whyformer.cli import (  # noqa: F401 (each command registers itself)
    audit,
    compare,
    demo,
    explain,
    generate,
    inspect,
    judge,
    methods,
    metrics,
    reproduce,
)
from whyformer.cli.shell import app


def main() -> None:
    app()
