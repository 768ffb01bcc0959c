"""What a language model writes after a prompt, with all of its passages or without some."""

from collections.abc import Sequence
from typing import Any

from whyformer._cite.documents import choose_unit
from whyformer._cite.sources import find_sources
from whyformer._explain.decoding import generate
from whyformer._model import Model
from whyformer._model.prompt import Prompt, Region
from whyformer._page.answers import recipes
from whyformer._page.answers.inputs import PageQuestion
from whyformer.errors import InputError
from whyformer.show.visible import make_visible


def answer_generate(question: PageQuestion) -> dict[str, Any]:
    """The model's own answer; passages that are switched off are deleted before it reads the prompt."""
    model, body, prompt = question.model, question.body, question.prompt.without_answer()
    sources = list_sources(prompt, body["by"]) if body["without"] else ()
    shown = delete_sources(model, prompt, sources, body["without"]) if body["without"] else prompt
    options = {name: body[name] for name in ("temperature", "top_p", "seed")}
    written = generate(model, shown, max_new_tokens=body["max_new_tokens"], **options)
    return {
        "prompt_text": written.text[: written.answer_start],
        "answer": written.answer_text,
        "ids": list(written.answer_ids),
        "left_out": [make_visible(sources[number].name) for number in body["without"]],
        "notes": [make_visible(note) for note in written.notes],
        "code": recipes.write_generate(question),
    }


def answer_passages(question: PageQuestion) -> dict[str, Any]:
    """The passages of a prompt that an answer may come from; none if there are fewer than two."""
    prompt, by = question.prompt, question.body["by"]
    shown = {"by": by or choose_unit(prompt, None), "text": prompt.text[: prompt.answer_start]}
    try:
        sources = list_sources(prompt, by)
    except InputError as error:
        return shown | {"passages": [], "why_none": make_visible(str(error))}
    return shown | {"passages": [show_source(n, one) for n, one in enumerate(sources)], "why_none": ""}


def list_sources(prompt: Prompt, by: str | None) -> tuple[Region, ...]:
    return find_sources(prompt, choose_unit(prompt, by), None).sources


def show_source(index: int, source: Region) -> dict[str, Any]:
    start, end = source.characters or (None, None)
    return {
        "index": index,
        "name": make_visible(source.name),
        "kind": source.kind,
        "text": source.text,
        "start": start,
        "end": end,
    }


def delete_sources(model: Model, prompt: Prompt, sources: Sequence[Region], without: Sequence[int]) -> Prompt:
    """The prompt with the tokens of these sources deleted, as citations leave them out."""
    for number in without:
        if number >= len(sources):
            raise InputError(f"There is no passage {number}: the prompt has {len(sources)}.", code="E_OPTION")
    gone = {token for number in without for token in range(sources[number].start, sources[number].stop)}
    return Prompt.from_tokens(model, [one for token, one in enumerate(prompt.ids) if token not in gone])
