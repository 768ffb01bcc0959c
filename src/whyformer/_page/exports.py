"""Cases as one file: a page, JSON, or a notebook that computes them again."""

import json
from dataclasses import dataclass
from typing import Any

from whyformer._page.about import VERSION
from whyformer._page.bodies import Case, ExportBody
from whyformer._page.desk import Desk, read_problem
from whyformer._page.model_process import Images, ModelProcess
from whyformer.show.markdown_report import escape_markdown

PICTURE_REMARK = "image.png is the picture that the page showed."
TYPES = {
    "html": ("whyformer-cases.html", "text/html; charset=utf-8"),
    "json": ("whyformer-cases.json", "application/json"),
    "notebook": ("whyformer-cases.ipynb", "application/x-ipynb+json"),
}


@dataclass(frozen=True)
class ExportedFile:
    """A file to download."""

    name: str
    media_type: str
    content: str


async def export_cases(desk: Desk, body: ExportBody) -> ExportedFile:
    """Every case is computed by its own model, one after the other."""
    made = [await compute_case(desk, one, body.format) for one in body.cases]
    titles = [one.title or f"case {number}" for number, one in enumerate(body.cases, 1)]
    parts = [
        {"title": title, "note": case.note, **own} for title, case, own in zip(titles, body.cases, made, strict=True)
    ]
    if body.format == "notebook":
        content = json.dumps(make_notebook(parts), indent=1)
    elif body.format == "json":
        content = json.dumps(gather_cases(parts, body.cases))
    else:
        model = desk.find_model(body.cases[0].request.model)
        content = (await run(desk, model, "join", {"cases": parts}, {}))["content"]
    return ExportedFile(*TYPES[body.format], content)


async def compute_case(desk: Desk, case: Case, form: str) -> dict[str, Any]:
    model = desk.find_model(case.request.model)
    images = desk.gather(case.request.list_inputs(), model)
    return await run(desk, model, "case", {"format": form, "request": case.request.model_dump()}, images)


async def run(desk: Desk, model: ModelProcess, route: str, fields: dict[str, Any], images: Images) -> dict[str, Any]:
    job = desk.submit(model, route, fields, images)
    async for kind, data in desk.follow(model, job):
        if kind == "error":
            raise read_problem(data)
        if kind == "result":
            found: dict[str, Any] = json.loads(data)
            return found
    raise AssertionError("a job ends with a result or an error")


def gather_cases(parts: list[dict[str, Any]], cases: list[Case]) -> dict[str, Any]:
    """Each case with the library's own JSON of its result."""
    return {
        "kind": "whyformer cases",
        "version": VERSION,
        "cases": [
            {
                "title": part["title"],
                "note": part["note"],
                "request": case.request.model_dump(),
                "code": part["code"],
                "result": json.loads(part["content"]),
            }
            for part, case in zip(parts, cases, strict=True)
        ],
    }


def make_notebook(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell of text and a cell of code for each case."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        note = "\n\n".join(escape_markdown(line) for line in part["note"].splitlines() if line.strip())
        remark = PICTURE_REMARK if '"image.png"' in part["code"] else ""
        text = "\n\n".join(filter(None, (f"## {escape_markdown(part['title'])}", note, remark)))
        cells.append({"cell_type": "markdown", "id": f"text-{number}", "metadata": {}, "source": text})
        cells.append(
            {
                "cell_type": "code", "id": f"code-{number}", "metadata": {}, "source": part["code"], "outputs": [],
                "execution_count": None,
            }
        )  # fmt: skip
    return {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
