"""The command line of a benchmark whose table of methods belongs on a page of the docs, between two comments."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import whyformer as why
from whyformer.methods._registry import METHODS

DOCS = Path(__file__).parents[1] / "docs"
END = "<!-- end of the table -->"


def run_for_page(
    program: str,
    description: str,
    page: str,
    *,
    model: str,
    items: int,
    make_table: Callable[[why.Model, int, Sequence[str]], list[str]],
) -> None:
    """Write the table of `benchmarks/<program>` into docs/<page>, or print it with --print.

    model, items: the defaults of these options; make_table: the lines for a model, a number of items and methods.
    """
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--model", default=model)
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS), metavar="METHOD")
    parser.add_argument("--items", type=int, default=items)
    parser.add_argument("--print", action="store_true", help="print the table instead of writing it into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = make_table(why.open(arguments.model), arguments.items, arguments.methods)
    if arguments.print:
        print("\n".join(lines))
    else:
        insert_table(DOCS / page, f"<!-- table of benchmarks/{program} -->", lines)


def insert_table(page: Path, begin: str, lines: Sequence[str]) -> None:
    """Replace what is between the comments `begin` and END."""
    before, begin, rest = page.read_text("utf-8").partition(begin)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", "utf-8")
