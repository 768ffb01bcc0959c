"""The command line: one file per verb, with the same verbs as in Python.

    whyformer explain cat.png -M google/vit-base-patch16-224 -t tabby -o map.png
    whyformer compare "a gorgeous film" -M my/folder -m rollout -m libragrad
    whyformer audit reviews.tsv -M my/folder -a last -o runs/audit
    whyformer methods
    whyformer metrics

Slow imports (torch, transformers, the rest of this package) are inside the commands, so that --help is fast. An error
is one line on stderr: `error[CODE]: ...`, or one JSON object with --json. Exit codes: 2 usage, 3 input, 4 model or
output folder, 5 numbers, memory or disk, 6 some rows of a benchmark or a bulk run failed or some methods do not
work, 7 no method works (doctor), 130 interrupted, 143 terminated, 1 a bug.

Shared by the verbs: options.py (what options are called and say), signatures.py (what verbs take in Python), parsing.py
(strings to values), gathering.py (find inputs), prompts.py (prompts of language models), destination.py (check where to
save), running.py (open models, run in batches, print and save), output.py (print, and streams that are closed or full),
collection.py (the garbage collector during start-up), shell.py (the program and its errors).
"""

from whyformer.cli import (
    audit,
    bulk,
    bulk_summary,
    cite,
    compare,
    compare_runs,
    demo,
    doctor,
    explain,
    generate,
    inspect,
    judge,
    methods,
    metrics,
    reproduce,
    serve,
    similarity,
    trace,
)
from whyformer.cli.collection import postpone_collection
from whyformer.cli.shell import app


def main() -> None:
    postpone_collection()
    app()
