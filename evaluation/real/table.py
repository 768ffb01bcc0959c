"""Writes the table of the shelf into docs/real.md, from the files of this folder.

PYTHONPATH=evaluation python -m real.table
"""

import re
from pathlib import Path

from real.make import ABSENT, NAMES, load

PAGE = Path(__file__).parents[2] / "docs" / "real.md"


def make_table() -> str:
    rows = ["| name | model | what it does | packages | licence | weights |", "| --- | --- | --- | --- | --- | --- |"]
    for name in NAMES:
        model = load(name)
        packages = "<br>".join(f"{one.registry} `{one.name}` {one.version}" for one in model.packages)
        licence = model.licence if model.may_be_shown else f"{model.licence} †"
        weights = f"`{model.weights[:12]}`"
        rows.append(f"| `{name}` | {model.what} | {model.task} | {packages} | {licence} | {weights} |")
    absent = "\n".join(f"* {what}: {why}." for what, why in ABSENT)
    return "\n".join(rows) + f"\n\nLooked for in both registries and not to be had:\n\n{absent}"


def write_section(page: str, name: str, content: str) -> str:
    return re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", lambda m: f"{m[1]}{content}{m[2]}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(write_section(PAGE.read_text(), "shelf", make_table()))
