"""whyformer audit: is attention an explanation here?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli import parsing
from whyformer.cli.judge import (
    ClassesOption,
    ColumnOption,
    DeviceOption,
    LimitOption,
    MethodsOption,
    SplitOption,
    parse_pairs,
)
from whyformer.cli.options import DebugOption, JsonOption, ModelOption
from whyformer.cli.shell import app
from whyformer.errors import InputError

DATA_HELP = "A file of texts (.tsv, .csv, .jsonl), a folder of pictures; or several texts or pictures."
ATTENTION_HELP = (
    "3 (a block), 3:2 (block and head), 3:each, each, last, rollout; repeatable. The last block if left out."
)
OUT_HELP = "Rows, audit.html and audit.json go there; an audit that was stopped goes on."
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


EXAMPLES = """
whyformer audit reviews.tsv -M my/folder --limit 500 -o runs/audit

whyformer audit photos/ -M demo/pets -a last -a 6:each -m rollout
"""


@app.command(epilog=EXAMPLES)
def audit(
    data: Annotated[list[str], typer.Argument(metavar="DATA_HELP", help=DATA_HELP)],
    model: ModelOption = "demo/sentiment",
    attention: Annotated[
        list[str] | None, typer.Option("-a", "--attention", metavar="ATTENTION_HELP", help=ATTENTION_HELP)
    ] = None,
    method: MethodsOption = None,
    test: Annotated[list[str] | None, typer.Option("--test", metavar="TEST", help="Only this; repeatable.")] = None,
    limit: LimitOption = None,
    draws: Annotated[int, typer.Option("--draws", help="Permutations of each example.")] = 100,
    preset: Annotated[str, typer.Option("--preset", help="Of the search: paper, released.")] = "paper",
    searched: Annotated[int, typer.Option("--searched", help="Examples to search other attention for.")] = 100,
    checkpoint: Annotated[
        list[str] | None, typer.Option("--checkpoint", metavar="MODEL", help="Another seed of it; repeatable.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="MODEL", help="It, trained with equal weights for attention.")
    ] = None,
    training: Annotated[Path | None, typer.Option("--training", help="Examples the small model learns from.")] = None,
    split: SplitOption = None,
    column: ColumnOption = None,
    classes: ClassesOption = None,
    device: DeviceOption = None,
    words_only: Annotated[bool, typer.Option("--words-only", help="Special tokens keep their weight.")] = False,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FOLDER", help=OUT_HELP)] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Whether attention explains the answers: agreement, permutations, other attention, counter-tests."""
    from whyformer._audit import TESTS
    from whyformer._audit import audit as audited
    from whyformer._audit.adversarial import choose_search
    from whyformer._audit.replacement import REPLACEMENT_KINDS
    from whyformer._audit.result import audit_to_json
    from whyformer._audit.settings import AuditSettings, normalise_methods
    from whyformer._model.loading import open as opened
    from whyformer.data import read

    tests = tuple(test) if test else TESTS
    methods = normalise_methods(parsing.parse_methods(method) if method else ())
    wanted = AuditSettings(
        tests, methods, draws, REPLACEMENT_KINDS, choose_search(preset), searched, words_only, 0.2, seed
    )
    wanted.check()  # refuse what is misspelt before a large model is opened
    names = {label: parsing.parse_value(name) for label, name in parse_pairs(classes, "--class").items()}
    examples = read(
        parse_data(data), split=split, columns=parse_pairs(column, "--column"), classes=names, limit=limit, seed=seed
    )
    parsing.silence_libraries()
    questioned = opened(model, device=device)
    refuse_images(data, questioned.kind, questioned.name)
    found = audited(
        questioned, examples, attention or ["last"], tests=tests, methods=methods, draws=draws,
        preset=preset, search_limit=searched, checkpoints=checkpoint or (), baseline=baseline, training=training,
        words_only=words_only, seed=seed, out=out,
    )  # fmt: skip
    print(audit_to_json(found).decode("ascii") if as_json else str(found))
    if out is not None and not as_json:
        print(f"\n{out / 'audit.html'}")


def parse_data(data: list[str]) -> Any:
    """One file or folder of examples, or the examples themselves. One word with an ending is a file, there or not."""
    place = Path(data[0])
    is_file = place.exists() or (place.suffix != "" and " " not in data[0])
    is_set = len(data) == 1 and is_file and place.suffix.lower() not in IMAGE_SUFFIXES
    return data[0] if is_set else list(data)


def refuse_images(data: list[str], kind: str, name: str) -> None:
    """A path of a picture is no sentence."""
    found = [one for one in data if Path(one).suffix.lower() in IMAGE_SUFFIXES]
    if kind == "text" and found:
        raise InputError(f"{found[0]} is a picture, and {name} takes texts. Name a model of pictures: -M demo/pets.")
