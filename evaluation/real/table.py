"""Writes the tables of docs/real.md, from the files of this folder and the stored results.

PYTHONPATH=evaluation python -m real.table
"""

import json
from pathlib import Path

from real.make import ABSENT, NAMES, load

PAGE = Path(__file__).parents[2] / "docs" / "real.md"
RESULTS = Path(__file__).parent / "results"


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
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise ValueError(f"The page has no section {name}.")
    return f"{before}{begin}{content}\n{end}{after}"


def make_verbs_table() -> str:
    """Models x checks, then the reason for each refusal and what was wrong."""
    stored = json.loads((RESULTS / "verbs.json").read_text())
    verbs = list(dict.fromkeys(verb for found in stored.values() for verb in found))
    rows = [f"| model | {' | '.join(verbs)} |", "| --- |" + " --- |" * len(verbs)]
    reasons = []
    for name, found in stored.items():
        cells = [f"{found[verb]['state']}" if verb in found else "" for verb in verbs]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
        for verb, one in found.items():
            if one["state"] != "right":
                reasons.append(f"* `{name}`, {verb}, {one['state']}: {' '.join(one['detail'].split())}")
    return "\n".join([*rows, "", *reasons])


def make_page(page: str) -> str:
    return write_section(write_section(page, "shelf", make_table()), "verbs", make_verbs_table())


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
