"""A case as part of a file: the library's own HTML or JSON of the result, and the code that computes it again."""

from typing import Any

from whyformer._page.answers.citing import cite_question
from whyformer._page.answers.explaining import choose_targets, explain_target
from whyformer._page.answers.inputs import PageQuestion
from whyformer._page.answers.predicting import rank_answers
from whyformer._page.answers.recipes import write_cite, write_explain
from whyformer.results.class_grid import ClassGrid
from whyformer.results.result import Result
from whyformer.show.blocks import Block, PageSection, Report
from whyformer.show.html import Html, escape_lines, make_element
from whyformer.show.page import make_report_page


def answer_case(question: PageQuestion) -> dict[str, Any]:
    """One case; the server joins several to a file."""
    body = question.body
    asked = PageQuestion(question.model, body["request"], question.images, question.memory)
    targets = asked.body.get("targets") or [None]
    code = write_cite(asked) if asked.body["route"] == "cite" else write_explain(asked, targets[0])
    if body["format"] == "notebook":
        return {"code": code}
    result = compute(asked, takes_classes=body["format"] == "html")
    content = result.to_html() if body["format"] == "html" else result.formats[".json"](result).decode("ascii")
    return {"code": code, "content": content}


def answer_join(question: PageQuestion) -> dict[str, Any]:
    """A page of cases, each with its note and its code; their HTML was made by `answer_case`."""
    cases = [PageSection(one["title"], list_case_blocks(**one), is_example=True) for one in question.body["cases"]]
    return {"content": make_report_page(Report("What the model looked at", cases))}


def list_case_blocks(note: str, content: str, code: str, **_: str) -> list[Block]:
    noted = [make_element("p", escape_lines(note))] if note else []
    return [*noted, Html(content), make_element("pre", code)]


def compute(asked: PageQuestion, *, takes_classes: bool) -> Result:
    """Citations, an explanation, a comparison of methods or, where the file can have it, of classes."""
    if asked.body["route"] == "cite":
        return cite_question(asked)
    ranked = rank_answers(asked) if asked.body["top"] is not None else []
    compared = [explain_target(asked, target) for target in choose_targets(asked.body, ranked)]
    if len(compared) > 1 and takes_classes:
        return ClassGrid(tuple(compared))
    return next(iter(compared[0])) if len(compared[0]) == 1 else compared[0]
