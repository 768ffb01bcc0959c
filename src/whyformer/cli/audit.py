"""whyformer audit: does attention explain the answers of this model?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.cli import destination, options, output, parsing, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import Word, Words, list_examples, make_option
from whyformer.cli.shell import app
from whyformer.cli.waiting import wait_asleep
from whyformer.errors import InputError

DATA_HELP = "A table of texts (.tsv, .csv, .jsonl) or a folder of images; or several texts or images."
ATTENTION_HELP = "3 (a block), 3:2 (block and head), 3:each, each, last, rollout; repeatable. Default: last."
OUT_HELP = "Save rows, audit.html and audit.json there; rerun to resume."

EXAMPLES = list_examples(
    "whyformer audit reviews.tsv -M my/folder --limit 500 -o runs/audit",
    "whyformer audit photos/ -M demo/pets -a last -a 6:each -m rollout",
)


@app.command("audit", epilog=EXAMPLES)
def run_audit(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=DATA_HELP)],
    model: options.ModelOption = "demo/sentiment",
    attention: Annotated[Words, make_option("-a --attention", ATTENTION_HELP, "WHICH")] = None,
    method: options.MethodsOption = None,
    test: Annotated[Words, make_option("--test", "Run only this test; repeatable.", "TEST")] = None,
    limit: options.LimitOption = None,
    samples: Annotated[int, make_option("--samples", "Random permutations per example.")] = 100,
    preset: Annotated[str, make_option("--preset", "Settings of the adversarial search: paper, released.")] = "paper",
    search_limit: Annotated[int, make_option("--search-limit", "Number of examples for the adversarial search.")] = 100,
    checkpoint: Annotated[
        Words, make_option("--checkpoint", "The same model trained with another seed; repeatable.", "MODEL")
    ] = None,
    baseline: Annotated[
        Word, make_option("--baseline", "The same model trained with uniform attention.", "MODEL")
    ] = None,
    training: Annotated[
        Path | None, make_option("--training", "Training examples for the diagnostic model and the adversary.")
    ] = None,
    adversary_epochs: Annotated[
        int, make_option("--adversary-epochs", "Train a model with the same answers and other attention.", "N")
    ] = 0,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    classes: options.ClassesOption = None,
    device: options.DeviceOption = None,
    words_only: Annotated[
        bool,
        make_option(
            "--words-only", "Change only the attention weights of words; leave those of special tokens unchanged."
        ),
    ] = False,
    target: Annotated[
        Word, make_option("-t --target", "The class to compare evidence for; default: predicted.", "CLASS")
    ] = None,
    seed: options.SeedOption = 0,
    swap_limit: Annotated[
        int, make_option("--swap-limit", "Save heads.html, a page to swap heads on, for N examples.", "N")
    ] = 0,
    out: Annotated[Path | None, options.make_folder_option(OUT_HELP)] = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Test whether attention explains the answers: agreement, permutation, adversarial search, counter-tests."""
    wait_asleep()  # before torch is imported
    from whyformer._audit import TESTS, AuditSettings, audit, normalise_methods
    from whyformer._audit.checks import REPLACEMENT_KINDS, choose_search

    tests = tuple(test) if test else TESTS
    methods = normalise_methods(parsing.parse_methods(method) if method else ())
    search = choose_search(preset)
    chosen = int(target) if target is not None and target.isdecimal() else target
    settings = AuditSettings(
        tests,
        methods,
        samples,
        REPLACEMENT_KINDS,
        search,
        search_limit,
        words_only,
        0.2,
        seed,
        chosen,
        adversary_epochs,
        swap_limit,
    )
    settings.check()  # report misspelt names before a large model is opened
    destination.check_out_folder(out)
    if swap_limit and out is None:
        raise InputError("--swap-limit saves a page, so it needs a folder: add -o FOLDER.", code="E_OPTION")
    examples = read_examples(choose_source(data), column, classes, split=split, limit=limit, seed=seed)
    taught = None if training is None else read_examples(str(training), column, classes)
    opened = running.open_quietly(model, device)
    images = [word for word in data if Path(word).suffix.lower() in IMAGE_SUFFIXES]
    if opened.kind == "text" and images:  # which must not be read as texts
        advice = "Choose an image model: -M demo/pets."
        raise InputError(f"{images[0]} is an image, but {opened.name} takes texts. {advice}")
    try:
        result = audit(
            opened, examples, attention or ["last"], tests=tests, methods=methods, samples=samples,
            preset=preset, search_limit=search_limit, checkpoints=checkpoint or (), baseline=baseline, training=taught,
            adversary_epochs=adversary_epochs, words_only=words_only, target=chosen, seed=seed,
            swap_limit=swap_limit, out=out,
        )  # fmt: skip
    except KeyboardInterrupt:
        if out is not None:
            output.print_to_stderr(f"The rows so far are in {out}. Run the same command again to continue.")
        raise
    running.show_result(result, as_json=as_json)
    if out is not None:
        output.print_saved(out, out / "audit.html", *([out / "heads.html"] if swap_limit else []))


def choose_source(words: list[str]) -> str | list[str]:
    """One file or folder of examples, or the examples themselves. A single word with a suffix is always a file name."""
    path = Path(words[0])
    is_file = os.path.exists(path) or (path.suffix != "" and " " not in words[0])
    is_data_set = len(words) == 1 and is_file and path.suffix.lower() not in IMAGE_SUFFIXES
    return words[0] if is_data_set else list(words)
