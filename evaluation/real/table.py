"""Writes the tables of docs/real.md, from the files of this folder and the stored results.

PYTHONPATH=evaluation python -m real.table
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from real.make import ABSENT, NAMES, load
from real.shelf import Package

PAGE = Path(__file__).parents[2] / "docs" / "real.md"
RESULTS = Path(__file__).parent / "results"


def make_table() -> str:
    rows = ["| name | model | what it does | packages | licence | weights |", "| --- | --- | --- | --- | --- | --- |"]
    for name in NAMES:
        model = load(name)
        packages = "<br>".join(list_packages(model.packages))
        licence = model.licence if model.may_be_shown else f"{model.licence} †"
        weights = f"`{model.weights[:12]}`"
        rows.append(f"| `{name}` | {model.what} | {model.task} | {packages} | {licence} | {weights} |")
    absent = "\n".join(f"* {what}: {why}." for what, why in ABSENT)
    return "\n".join(rows) + f"\n\nLooked for in both registries and not to be had:\n\n{absent}"


def list_packages(packages: Sequence[Package]) -> Iterator[str]:
    """Pieces of one file as the first and the last of them."""
    for kind in dict.fromkeys(one.name.rstrip("0123456789") for one in packages if one.name[-1].isdigit()):
        pieces = [one for one in packages if one.name.rstrip("0123456789") == kind]
        if len(pieces) > 2:
            yield f"{pieces[0].registry} `{pieces[0].name}` to `{pieces[-1].name[len(kind) :]}` {pieces[0].version}"
            packages = [one for one in packages if one not in pieces]
    yield from (f"{one.registry} `{one.name}` {one.version}" for one in packages)


def write_section(page: str, name: str, content: str) -> str:
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise ValueError(f"The page has no section {name}.")
    return f"{before}{begin}{content}\n{end}{after}"


def make_verbs_table() -> str:
    """Models x checks: a tick, how many methods work, or the number of the reason below."""
    stored = json.loads((RESULTS / "verbs.json").read_text())
    verbs = list(dict.fromkeys(verb for name in NAMES for verb in stored.get(name, {})))
    reasons: dict[str, int] = {}
    rows = [f"|model|{'|'.join(verbs)}|", "|---|" + "---|" * len(verbs)]
    for name in (name for name in NAMES if name in stored):
        cells = [write_cell(verb, stored[name].get(verb), reasons) for verb in verbs]
        rows.append(f"|`{name}`|{'|'.join(cells)}|")
    numbered = [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join([*rows, "", *numbered])


def write_cell(verb: str, found: dict[str, str] | None, reasons: dict[str, int]) -> str:
    if found is None:
        return ""
    if found["state"] == "right":
        return found["detail"].partition(" work")[0] if verb == "every method" else "✓"
    sentences = " ".join(found["detail"].split()).split(". ")
    reason = ". ".join(sentences[: 1 + (len(sentences[0]) < 40)]).rstrip(".")
    return f"{found['state']} ({reasons.setdefault(reason, len(reasons) + 1)})"


def make_page(page: str) -> str:
    return write_section(write_section(page, "shelf", make_table()), "verbs", make_verbs_table())


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
