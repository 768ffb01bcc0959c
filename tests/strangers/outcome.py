"""What came of a question: right, right with a note, wrong but named, refused with or without need, silent."""

from dataclasses import dataclass
from typing import Any, Protocol

from strangers.draft import Rules, matches

import whyformer as why
from whyformer.errors import WhyformerError

RIGHT, NOTED, NAMED = "right", "right with note", "wrong, a note names it"
REFUSED, NEEDLESS, RAW = "refused, true reason", "refused without need", "raw error"
ALARM, SILENT = "right, untrue note", "silent"
OUTCOMES = (RIGHT, NOTED, NAMED, REFUSED, NEEDLESS, RAW, ALARM, SILENT)
MET = (RIGHT, NOTED, REFUSED)

# Notes that are false for every model here, unless its kind says otherwise.
FALSE = ("Only some blocks have attention", "in another way", "reads the (token )?ids twice", "leads to the input")


class Question(Protocol):
    """A model with inputs, of which the right scores are known."""

    kinds: tuple[str, ...]
    rules: Rules

    def explain(self, method: str | None, **settings: Any) -> why.Explanation: ...

    def may_be_refused(self, method: str | None) -> bool: ...

    def find_mistake(self, e: why.Explanation, settings: dict[str, Any]) -> str | None: ...


@dataclass(frozen=True)
class Outcome:
    kind: str
    method: str  # that was asked for
    reason: str = ""


def ask(question: Question, method: str | None, settings: dict[str, Any]) -> Outcome | None:
    """None where no right answer is known."""
    name = method or "default"
    try:
        e = question.explain(method, **settings)
    except WhyformerError as error:
        true = any(matches([m], name) and matches([said], str(error)) for m, said in question.rules.true_refusals)
        return Outcome(REFUSED if true or question.may_be_refused(method) else NEEDLESS, name, str(error))
    except Exception as error:
        return Outcome(RAW, name, f"{type(error).__name__}: {error}")
    wrong = question.find_mistake(e, settings)
    return None if wrong is None else judge_answer(question.rules, e, name, wrong)


def judge_answer(rules: Rules, e: why.Explanation, name: str, wrong: str) -> Outcome:
    if wrong:
        is_named = any(matches(rules.names, note) for note in e.notes)
        return Outcome(NAMED if is_named else SILENT, name, f"{wrong} {e.notes or 'No note.'}")
    for methods, wanted in rules.must:
        if matches([methods], e.method) and not any(matches([wanted], note) for note in e.notes):
            return Outcome(SILENT, name, f"No note on {wanted}, but {e.notes or 'none'}.")
    for note in e.notes:
        if matches([*FALSE, *rules.false_notes], note) and not matches(rules.true_notes, note):
            return Outcome(ALARM, name, note)
    return Outcome(NOTED if e.notes else RIGHT, name)
