"""What targets share: what a model answers by its task, the refusal of a target for another task, names as text."""

import operator

from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.target_like import Named
from whyformer._engine.targets.task import TaskKind
from whyformer.errors import TargetError

ANSWERS = {  # by task: what the model answers, and the targets for it
    "class": ("one class (or value) for each example", "a class by name or number, Group, LogProbability, Value"),
    "next token": ("the next token", "a token, Token, Tokens, Group, LogProbability"),
    "masked token": ("the token at a mask", "a token, Token, Tokens, Group, LogProbability"),
    "token class": ("a class for every token", "a class, Entity"),
    "answer span": ("an answer span", "AnswerSpan"),
    "frame": ("a character for every frame of a sound", "a character, Frame, Character"),
    "query": ("a class and a box for each of its queries", "a class, Query"),
    "representation": ("a representation: it has no head", "Representation"),
}


def refuse_task(view: AnswerView, wanted: str, needs: str) -> TargetError:
    answers, targets = ANSWERS[view.task.kind]
    return TargetError(
        f"{wanted} needs {needs}, but {view.model_name} answers {answers}. Targets for it: {targets}, or a function of "
        "the output."
    )


def check_task(view: AnswerView, task: TaskKind, wanted: str, needs: str) -> None:
    if view.task.kind != task:
        raise refuse_task(view, wanted, needs)


def write_name(wanted: Named) -> str:
    """A class or token as text: its name, or # and its number."""
    return wanted if isinstance(wanted, str) else f"#{operator.index(wanted)}"


def write_range(start: int | None, end: int | None = None) -> str:
    return "" if start is None else f"{start}" + ("" if end is None else f"-{end}")
