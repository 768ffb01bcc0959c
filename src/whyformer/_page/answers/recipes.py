"""Any view as lines of Python: what to type to get the same numbers without the page."""

import json
from typing import Any

from whyformer._page.answers.inputs import Fields, PageQuestion

OPEN = "import whyformer as why\nmodel = why.open({name})\n"


def quote(value: Any) -> str:
    """A value as Python; control characters and quotes are escaped."""
    if isinstance(value, str):
        return json.dumps(value)  # valid Python, with double quotes
    if isinstance(value, list):
        return f"[{', '.join(map(quote, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote(name)}: {quote(one)}" for name, one in value.items()) + "}"
    return repr(value)


def write_opening(question: PageQuestion) -> str:
    return OPEN.format(name=quote(question.model.name))


def write_input(given: Fields) -> str:
    """The input as an expression; an image is the file that was uploaded, whose name the server does not know."""
    if given["image"] is not None:
        return '"image.png"'
    if given["second"] is not None:
        return f"why.TextPair({quote(given['text'])}, {quote(given['second'])})"
    if given["text"] is not None:
        return quote(given["text"])
    if given["log"] is not None:
        return f"why.Prompt.from_log(model, {quote(given['log'])})"
    answer = "" if not given["answer"] else f", answer={quote(given['answer'])}"
    if given["messages"] is not None:
        return f"why.Prompt.from_messages(model, {quote(given['messages'])}{answer})"
    return f"why.Prompt.from_text(model, {quote(given['prompt'])}{answer})"


def write_target(word: int | str | None, name: str = "target") -> str:
    if word is None:
        return ""
    from whyformer.targets import is_target_text

    is_notation = isinstance(word, str) and is_target_text(word, ())
    return f", {name}=why.targets.parse({quote(word)})" if is_notation else f", {name}={quote(word)}"


def write_answer_part(span: Fields | None) -> str:
    if span is None:
        return ""
    return f', target=why.targets.Answer(({span["start"]}, {span["stop"]}), unit="character")'


def write_explain(question: PageQuestion, target: int | str | None) -> str:
    body = question.body
    aim = write_answer_part(body["span"]) or write_target(target)
    aim += write_target(body["versus"], "versus")
    methods, given = body["methods"], write_input(body["input"])
    if isinstance(methods, str) or (methods and len(methods) > 1):
        chosen = "" if methods == "usual" else f", {quote(methods)}"
        return f"{write_opening(question)}print(why.compare(model, {given}{chosen}{aim}))"
    method = "" if not methods else f", {quote(methods[0])}"
    health = ", health=True" * body["health"]
    return f"{write_opening(question)}print(why.explain(model, {given}{method}{aim}{health}))"


def write_predict(question: PageQuestion) -> str:
    given = write_input(question.body["input"])
    return f"{write_opening(question)}print(why.explain(model, {given}).targets)"


def write_curve(question: PageQuestion, method: str, fill: str) -> str:
    given = write_input(question.body["input"])
    aim = write_answer_part(question.body["span"]) or write_target(question.body["target"])
    return (
        f'{write_opening(question)}capture = why.record(model, model.encode({given}){aim}, keep={{"probe"}})\n'
        f"e = why.explain(model, {given}, {quote(method)}{aim})\n"
        f"# keep: [variant, patch or token], True where it stays; of: [variant], zeros\n"
        f'print(capture["probe"].keep_only(keep, of, {quote(fill)}).probability)'
    )


def write_generate(question: PageQuestion) -> str:
    body, given = question.body, write_input(question.body["input"] | {"answer": None})
    options = f", max_new_tokens={body['max_new_tokens']}"
    options += f", temperature={body['temperature']}, top_p={body['top_p']}, seed={body['seed']}" * bool(
        body["temperature"]
    )
    return f"{write_opening(question)}print(why.generate(model, {given}{options}).answer_text)"


def write_cite(question: PageQuestion) -> str:
    body = question.body
    by = "" if body["by"] is None else f", by={quote(body['by'])}"
    part = write_answer_part(body["span"]).replace(", target=", ", select=")
    given = write_input(body["input"])
    return f"{write_opening(question)}print(why.cite(model, {given}{by}{part}, effort={quote(body['effort'])}))"
