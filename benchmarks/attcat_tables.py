"""The tables of AttCAT on several data sets, per method, in one file.

    python benchmarks/attcat_tables.py RUNS --out docs/data/attcat.json

RUNS has a folder for each of COMMANDS, written by that command with -o RUNS/<name>. Every entry has its command; for
each method and column the mean and its 95 % interval; and for each column how many of the orders that the paper claims
hold, are reversed and are undecided.
"""

import argparse
import csv
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOXICITY = "--class normal=not-toxic --class offensive=toxic --class hatespeech=toxic"
COMMANDS = {
    "sst2": "DATA/sst2/test.tsv -M demo/sentiment --limit 500 --device cuda --batch-size 64",
    "sst2-minilm": "DATA/sst2/test.tsv -M DATA/minilm-l6-sst2 --limit 60",
    "imdb": "imdb-short.jsonl -M demo/sentiment --device cuda --batch-size 64  # the 151 reviews of at most 100 tokens",
    "hatexplain": f"DATA/hatexplain/test.jsonl.gz -M DATA/bert-tiny-toxicity {TOXICITY} --limit 100",
    "generated": "  # 100 generated pairs with demo/entailment",
}
TABLES = ("attcat", "attcat-gradients", "attcat-stability")
ORDER = re.compile(r"^(.+?) \((?:higher|lower) is better\):.*? pairs (\d+) hold, (\d+) reversed.*?, (\d+) undecided")


def read_means(file: Path) -> dict[str, dict[str, list[float]]]:
    """{method: {column: [mean, low, high]}}"""
    methods: dict[str, dict[str, list[float]]] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            numbers = [round(float(row[key]), 4) for key in ("measured", "low", "high") if row[key]]
            methods.setdefault(row["method"], {})[row["column"]] = numbers
    return methods


def list_orders(report: Path) -> Iterator[re.Match[str]]:
    """What the page says about the orders of each column, table by table."""
    lines = re.sub(r"<[^>]+>", "\n", report.read_text("utf-8")).splitlines()
    return (match for line in lines if (match := ORDER.match(html.unescape(line.strip()))))


def read_run(folder: Path) -> dict[str, Any]:
    said, tables = list_orders(folder / "report.html"), {}
    for name in TABLES:
        means = read_means(folder / f"{name}.csv")
        orders = dict(zip(next(iter(means.values())), said, strict=False))  # a sentence for each column
        assert all(match[1] == column for column, match in orders.items())
        tables[name] = {"means": means, "orders": {c: [int(n) for n in m.groups()[1:]] for c, m in orders.items()}}
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    settings = parser.parse_args()
    found = {
        name: {"command": f"whyformer reproduce attcat {command}", **read_run(settings.runs / name)}
        for name, command in COMMANDS.items()
        if (settings.runs / name).is_dir()
    }
    text = json.dumps(found, indent=1)
    text = re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    settings.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
