"""The passages behind an answer, or behind the part of it that was selected."""

from typing import Any

from whyformer._cite.run import CITE_METHOD, cite
from whyformer._engine import Answer
from whyformer._page.answers import recipes
from whyformer._page.answers.inputs import PageQuestion
from whyformer._page.answers.units import (
    UNITS,
    describe_units,
    join_by,
    shorten_number,
    shorten_numbers,
    show_limits,
)
from whyformer._page.answers.writing import list_sources
from whyformer.results.citations import Citation, Citations, Claim
from whyformer.results.explanation import Explanation
from whyformer.show.chips import make_scored_text
from whyformer.show.visible import make_visible


def answer_cite(question: PageQuestion) -> dict[str, Any]:
    found = cite_question(question)
    order = {one.name: n for n, one in enumerate(list_sources(found.prompt, question.body["by"]))}
    by_token = as_explanation(found)
    by_unit = {unit: join_by(by_token, unit) for unit in UNITS}
    return {
        "answer": found.prompt.answer_text,
        "prompt_text": found.prompt.text[: found.prompt.answer_start],
        "target": make_visible(found.target.label),
        "reading": show_claim(found.claim),
        "lines": found.describe()[1:],
        "sentences": [show_claim(one) for one in found.sentences],
        "sources": [describe_citation(found, one, order.get(one.name)) for one in found.citations],
        "apart": [describe_citation(found, one, None) for one in found.apart],
        "regions": [
            {"name": make_visible(one.name), "kind": one.kind, "start": one.start, "stop": one.stop}
            for one in found.prompt.named_tokens
        ],
        "text": found.prompt.text,
        "units": describe_units(by_token),
        "scores": {unit: shorten_numbers(e.scores[0]) for unit, e in by_unit.items()},
        "scale": {unit: describe_scale(e) for unit, e in by_unit.items()},
        "signed": True,
        "log_probability": shorten_number(found.log_probability),
        "notes": [make_visible(note) for note in found.notes],
        "method": found.method,
        "code": recipes.write_cite(question),
    }


def cite_question(question: PageQuestion) -> Citations:
    body, span = question.body, question.body["span"]
    part = None if span is None else Answer((span["start"], span["stop"]), unit="character")
    method = CITE_METHOD  # so that words have scores of their own
    return cite(question.model, question.prompt, body["by"], select=part, method=method, effort=body["effort"])


def as_explanation(found: Citations) -> Explanation:
    """The scores of the tokens, to join them to words and sentences."""
    facts = {name: getattr(found, name) for name in ("method", "settings", "model", "versions")}
    return Explanation(
        found.scores[None], (found.prompt.pieces,), (found.target,), (found.prompt.text,), class_specific=True,
        signed=True, **facts,
    )  # fmt: skip


def describe_scale(explained: Explanation) -> dict[str, Any]:
    text = make_scored_text(explained.tokens[0], explained.scores[0].double(), signed=True)  # type: ignore[arg-type]
    return show_limits(*text.between, "")


def show_claim(claim: Claim) -> dict[str, Any]:
    return {
        "text": claim.text,
        "kind": claim.kind,
        "how": claim.how,
        "words": make_visible(str(claim)),
        "rests_on": [make_visible(name) for name in claim.rests_on],
        "also": [make_visible(name) for name in claim.also],
        "against": [make_visible(name) for name in claim.against],
    }


def describe_citation(found: Citations, one: Citation, index: int | None) -> dict[str, Any]:
    spans = [span for span in found.prompt.pieces.spans[one.start : one.stop] if span is not None]
    return {
        "index": index,
        "name": make_visible(one.name),
        "kind": one.kind,
        "text": one.text,
        "start": spans[0][0] if spans else None,
        "end": spans[-1][1] if spans else None,
        "score": shorten_number(one.score),
        "share": shorten_number(one.share),
        "role": one.role,
    }
