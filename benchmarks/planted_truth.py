"""Which method finds what decides? Six models wired by hand, 200 items each, every registered method.

    python benchmarks/planted_truth.py [--methods ...] [--items 200] [--print]

Writes docs/planted.md; with --print it only prints the table. With --methods only these rows are measured, the others
stay as they are on the page. The models are in tests/planted.py. Every method runs with its default settings, but
those with a budget get 256 variants of each item; those that cannot be used on a model have a dash. About ten minutes
on one core.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import planted as constructions  # noqa: E402
from planted import BLIND, CONSTRUCTIONS, FINDS, SENTENCES, planted  # noqa: E402

import whyformer as why  # noqa: E402
from whyformer.errors import WhyformerError  # noqa: E402
from whyformer.methods._registry import METHODS  # noqa: E402

PAGE = ROOT / "docs" / "planted.md"
AT_ONCE = 50
BUDGET = {"budget": 256}
HONESTLY = (
    "The bold and the † are no predictions: they were written down after a first run had shown hit rates, and the "
    "models were adjusted while looking at hit rates. Read them as regression checks with a reason attached."
)


def hit_rate(name: str, method: str, items: int) -> float | None:
    """None if the method cannot be used there."""
    it, hits = planted(name, items), []
    try:
        for start in range(0, items, AT_ONCE):
            part = it.part(slice(start, start + AT_ONCE))
            settings = BUDGET if "budget" in METHODS[method].settings else {}
            hits.append(part.hits(why.explain(part.model, part.inputs, method, **settings)))
    except WhyformerError as error:
        print(f"{method} on {name}: {error}", file=sys.stderr)
        return None
    return torch.cat(hits).double().mean().item()


def cell(name: str, method: str, text: str) -> str:
    return f"**{text}**" if method in FINDS[name] else f"{text} †" if method in BLIND[name] else text


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.0f}" if rate in (0, 1) else f"{100 * rate:.1f}"


def measured(method: str, items: int) -> list[str]:
    began = time.monotonic()
    row = [percent(hit_rate(name, method, items)) for name in CONSTRUCTIONS]
    print(f"{method}: {', '.join(row)} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return row


def on_the_page() -> dict[str, list[str]]:
    """The rows as they are now, of methods that still exist."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    cells = [[part.strip(" *`†") for part in line.strip("| ").split("|")] for line in lines if line.startswith("| `")]
    return {row[0]: row[1:] for row in cells if row[0] in METHODS and len(row) == 1 + len(CONSTRUCTIONS)}


def table(rows: dict[str, list[str]]) -> list[str]:
    lines = ["| method | " + " | ".join(CONSTRUCTIONS) + " |", "|---|" + "---|" * len(CONSTRUCTIONS)]
    for method, texts in sorted(rows.items()):
        cells = [cell(name, method, text) for name, text in zip(CONSTRUCTIONS, texts, strict=True)]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return lines


def list_reasons() -> list[str]:
    """Why some methods cannot find it: each reason with the methods, by model."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for name in CONSTRUCTIONS:
        for method, reason in BLIND[name].items():
            if method in METHODS:
                reasons.setdefault(reason, {}).setdefault(name, []).append(f"`{method}`")
    lines = []
    for reason, by_model in reasons.items():
        models: dict[str, list[str]] = {}  # the methods -> the models
        for name, methods in by_model.items():
            models.setdefault(", ".join(methods), []).append(name)
        which = "; ".join(f"{', '.join(names)}: {methods}" for methods, names in models.items())
        lines.append(f"* {reason[0].upper()}{reason[1:]}. {which}.")
    return lines


def page(lines: list[str], items: int) -> str:
    parts = [
        "# Planted truth",
        "Which methods find the token or patch that decides, where that is known: the weights of six models are set by "
        "hand, so that one word or patch makes the answer and the rest misleads (`tests/planted.py`). "
        "`tests/test_planted_truth.py` checks the truth itself: changing the planted token changes the answer, "
        "changing all others does not.",
        f"The table shows how often each method gives its strictly highest score to the planted token, in percent of "
        f"{items} items, with default settings; methods with a budget use 256 variants of each item. A tie is a miss, "
        "and a dash means that the method cannot be used. **Bold**: the formula guarantees that the method finds it. "
        "†: the formula rules it out. The rest is measured without a claim.",
        "\n".join(lines),
        HONESTLY,
        "To measure again, run `python benchmarks/planted_truth.py` (ten minutes on one core).",
        "## The models",
    ]
    parts += ["\n".join(f"* **{name}**: {SENTENCES[name]}" for name in CONSTRUCTIONS)]
    parts += ["## Why some cannot find it", "\n".join(list_reasons())]
    parts += ["## What this does not show", constructions.LIMITS]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=constructions.ITEMS)
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), metavar="METHOD")
    parser.add_argument("--print", action="store_true", help="print the table instead of writing the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {} if options.print else on_the_page()
    for method in options.methods or sorted(METHODS):
        rows[method] = measured(method, options.items)
        if not options.print:
            PAGE.write_text(page(table(rows), options.items))
    if options.print:
        print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
