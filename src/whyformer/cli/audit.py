"""whyformer audit: does attention explain the answers of this model?"""

import os
from pathlib import Path
from typing import Any

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.cli import destination, output, parsing, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import File, Number, Word, Words
from whyformer.cli.shell import app
from whyformer.cli.waiting import wait_asleep
from whyformer.errors import InputError

EXAMPLES = (
    "whyformer audit reviews.tsv -M my/folder --limit 500 -o runs/audit",
    "whyformer audit photos/ -M demo/pets -a last -a 6:each -m rollout",
)
DATA_HELP = "A table of texts (.tsv, .csv, .jsonl) or a folder of images; or several texts or images."
ATTENTION_HELP = "3 (a block), 3:2 (block and head), 3:each, each, last, rollout; repeatable. Default: last."


@app.command(
    "audit",
    of="audit",
    without=("kinds", "steps", "top", "out"),
    examples=EXAMPLES,
    data=DATA_HELP,
    attention=(ATTENTION_HELP, "WHICH", "-a --attention"),
    training=("Training examples for the diagnostic model and the adversary.", "DATA"),
    target=("The class to compare evidence for; default: predicted.", "CLASS", "-t --target"),
    out_folder="Save rows, audit.html and audit.json there; rerun to resume.",
)
def run_audit(
    *, data: list[str], model: str = "demo/sentiment", attention: Words, methods: Words, limit: Number, split: Word,
    columns: Words, classes: Words, training: Word, target: Word, out_folder: File, **settings: Any,
) -> None:  # fmt: skip
    """Test whether attention explains the answers: agreement, permutation, adversarial search, counter-tests."""
    wait_asleep()  # before torch is imported
    from whyformer._audit import audit, choose_audit_settings

    settings["methods"] = parsing.parse_methods(methods) if methods else ()
    settings["target"] = int(target) if target is not None and target.isdecimal() else target
    twins = {name: settings.pop(name) for name in ("checkpoints", "baseline") if name in settings}
    choose_audit_settings(**settings)  # reports misspelt names before a large model is opened
    destination.check_out_folder(out_folder)
    examples = read_examples(choose_source(data), columns, classes, split=split, limit=limit, seed=settings["seed"])
    taught = None if training is None else read_examples(training, columns, classes)
    opened = running.open_quietly(model)
    images = [word for word in data if Path(word).suffix.lower() in IMAGE_SUFFIXES]
    if opened.kind == "text" and images:  # which must not be read as texts
        advice = "Choose an image model: -M demo/pets."
        raise InputError(f"{images[0]} is an image, but {opened.name} takes texts. {advice}")
    try:
        result = audit(opened, examples, attention or ["last"], training=taught, out=out_folder, **twins, **settings)
    except KeyboardInterrupt:
        if out_folder is not None:
            output.print_to_stderr(f"The rows so far are in {out_folder}. Run the same command again to continue.")
        raise
    running.show_result(result)
    running.end_run(out_folder, "audit.html")


def choose_source(words: list[str]) -> str | list[str]:
    """One file or folder of examples, or the examples themselves. A single word with a suffix is always a file name."""
    path = Path(words[0])
    is_file = os.path.exists(path) or (path.suffix != "" and " " not in words[0])
    is_data_set = len(words) == 1 and is_file and path.suffix.lower() not in IMAGE_SUFFIXES
    return words[0] if is_data_set else list(words)
