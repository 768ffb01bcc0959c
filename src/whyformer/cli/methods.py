"""whyformer methods: list all methods, what their scores mean, what they need and what they cost."""

import json
from typing import Any

from whyformer.cli import output, running
from whyformer.cli.shared_options import AS_JSON
from whyformer.cli.shell import app


@app.command("methods")
def run_methods() -> None:
    """List all methods: what the scores mean, what they need and what they cost."""
    import whyformer.methods  # noqa: F401 (fills METHODS)
    from whyformer._explain.default_method import list_default_kinds
    from whyformer.methods._registry import METHODS

    rows = [
        {
            "name": method.name,
            "summary": method.summary,
            "default_for": list_default_kinds(method.name),
            "class_specific": method.class_specific,
            "signed": method.signed,
            "cost": method.cost,
            "needs": list(method.needs),
            "settings": dict(method.settings),
            "recipe": method.recipe,
            "paper": method.paper,
        }
        for method in sorted(METHODS.values(), key=lambda method: method.name)
    ]
    if AS_JSON.get():
        output.print_text(json.dumps(rows, indent=2, default=repr))
    else:
        print_table(rows)
    running.open_listing(METHODS)


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("what a score means")
    for row in rows:
        facts = [
            *([f"the default for {' and '.join(row['default_for'])}"] if row["default_for"] else []),
            "class-specific" if row["class_specific"] else "the same for every class",
            "signed" if row["signed"] else "unsigned",
            row["cost"],
            f"needs {', '.join(row['needs'])}",
        ]
        table.add_row(Text(row["name"]), Text(row["summary"]).append(f"\n{'; '.join(facts)}", style="dim"))
    console = Console()
    with console.capture() as drawn:
        console.print(table)
    output.print_rendered(drawn.get().rstrip("\n"))
