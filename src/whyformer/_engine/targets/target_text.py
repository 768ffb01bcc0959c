"""Targets as text, as the command line and saved files have them: `group:cat,dog`; see whyformer.targets."""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from whyformer._engine.targets.answer_target import Answer, parse_answer
from whyformer._engine.targets.choice import Choice
from whyformer._engine.targets.query import SIDES, Query
from whyformer._engine.targets.target_kinds import (
    AnswerSpan,
    Character,
    Class,
    Entity,
    Frame,
    Group,
    Labels,
    LogProbability,
    Position,
    Representation,
    Token,
    TokenClasses,
    Tokens,
    Value,
)
from whyformer._engine.targets.target_like import TargetKind, TargetLike
from whyformer._engine.targets.terms import Scale
from whyformer.errors import TargetError, suggest_nearest


def parse(text: str) -> TargetKind:
    """The target that a text describes; `str(target)` gives the text back."""
    if not isinstance(text, str):
        raise TargetError(f"A target must be a text such as {FORMS['group'][0]!r}, got {type(text).__name__}.")
    kind, _, rest = text.partition(":")
    if "@" in kind:  # token@3
        kind, _, rest = text.partition("@")
        rest = f"@{rest}"
    if kind not in FORMS:
        forms = ", ".join(example for example, _ in FORMS.values())
        raise TargetError(
            f"{text[:80]!r} is not a target.{suggest_nearest(kind, FORMS)} Write a class, or one of: {forms}."
        )
    example, parse_rest = FORMS[kind]
    try:
        return parse_rest(rest)
    except (ValueError, RecursionError):
        raise TargetError(f"{text[:80]!r} is not a target. Write it like {example}.") from None


def restore_target_like(index: int | None, spec: str | None) -> TargetLike:
    """What to pass as target= (or versus=) to explain the same score again."""
    if spec is not None:
        return parse(spec)
    if index is not None and index < 0:
        raise TargetError(
            "This target is a function of the output or a representation, so it cannot be explained again on other "
            "inputs here. Use one of whyformer.targets."
        )
    return index


def is_target_text(text: Any, labels: Collection[str] | None = None) -> bool:
    """Whether a text is written like one of these targets and is no label of the model."""
    if not isinstance(text, str) or text in (labels or ()):
        return False
    kind = re.split("[:@]", text, maxsplit=1)[0]
    return kind in FORMS and (text != kind or kind in WITHOUT_ARGUMENTS)


def read_target_texts(wanted: TargetLike, labels: Collection[str]) -> TargetLike:
    """The same with texts such as "entity:Berlin" as targets.

    labels: of a classifier. A language model has none; a word without arguments, such as "answer", is a token of it.
    """
    if isinstance(wanted, list | tuple):
        return [read_target_texts(one, labels) for one in wanted]
    if not isinstance(wanted, str) or not is_target_text(wanted, labels):
        return wanted
    return parse(wanted) if labels or wanted not in WITHOUT_ARGUMENTS else wanted


# --- one parser per kind ----------------------------------------------------------------------------------------------


def parse_name(text: str) -> str | int:
    """A class or token by name, or by number as #3."""
    if not text:
        raise ValueError
    return int(text[1:]) if re.fullmatch(r"#\d+", text) else text


def parse_range(text: str) -> tuple[int, int | None]:
    """'3-7' or '3'."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if not found:
        raise ValueError
    return int(found[1]), None if found[2] is None else int(found[2])


def parse_group(text: str) -> Group:
    members, weights = [], []
    parts = json.loads(text) if text.startswith("[") else text.split(",")
    if not all(isinstance(part, str) for part in parts):
        raise ValueError
    for part in parts:
        found = re.fullmatch(r"([-+]?\d*\.?\d+(?:e[-+]?\d+)?)\*(.+)", part)
        weights.append(float(found[1]) if found else 1.0)
        members.append(parse_member(found[2] if found else part))
    return Group(*members, weights=weights)


def parse_member(text: str) -> TargetKind | str | int:
    """A class, or another target."""
    return parse(text) if is_target_text(text) else parse_name(text)


def parse_log_probability(text: str) -> LogProbability | Answer:
    of = parse_member(text) if text else None
    return replace(of, score="logp") if isinstance(of, Answer) else LogProbability(of)


def parse_scaled_answer(text: str, score: Scale) -> Answer:
    of = parse_member(text)
    if not isinstance(of, Answer):
        raise ValueError
    return replace(of, score=score)


def parse_token(text: str) -> Token:
    word, at, where = text.rpartition("@") if "@" in text else (text, "", "")
    position: Position | None = None
    if at:
        position = "mask" if where == "mask" else "last" if where == "last" else int(where)
    return Token(parse_name(word) if word else None, position)


def parse_entity(text: str) -> Entity:
    where, _, label = text.rpartition("=") if "=" in text else (text, "", "")
    wanted = parse_name(label) if label else None
    if where.startswith("characters "):
        return Entity(*parse_range(where.removeprefix("characters ")), wanted, unit="character")
    if re.fullmatch(r"\d+(-\d+)?", where):
        return Entity(*parse_range(where), wanted)
    return Entity(where or None, None, wanted)


def parse_token_classes(text: str) -> TokenClasses:
    pairs = [part.split("=#") for part in text.split(",")]
    return TokenClasses(tuple(int(token) for token, _ in pairs), tuple(int(index) for _, index in pairs))


def parse_frame(text: str) -> Frame:
    number, _, character = text.partition("=")
    return Frame(int(number) if number else None, parse_name(character) if character else None)


def parse_query(text: str) -> Query:
    found = re.fullmatch(rf"(\d*)(?:=(.+?))?(?:@({'|'.join(SIDES)}))?", text)
    if not found:
        raise ValueError
    number, label, side = found.groups()
    return Query(int(number) if number else None, parse_name(label) if label else None, side)  # type: ignore[arg-type]


def parse_plain(text: str, kind: type[TargetKind]) -> TargetKind:
    """A kind that has no arguments."""
    if text:
        raise ValueError
    return kind()


FORMS: dict[str, tuple[str, Callable[[str], TargetKind]]] = {  # an example of each kind, and its parser
    "class": ("class:cat", lambda text: Class(parse_name(text))),
    "group": ("group:cat,dog", parse_group),
    "labels": ("labels", partial(parse_plain, kind=Labels)),
    "logp": ("logp:cat", parse_log_probability),
    "logodds": ("logodds:answer-tokens", partial(parse_scaled_answer, score="log_odds")),
    "tempered": ("tempered:answer-tokens", partial(parse_scaled_answer, score="tempered")),
    "value": ("value", lambda text: Value(int(text or 0))),
    "token": ("token:Paris@mask", parse_token),
    "tokens": ("tokens:4-7", lambda text: Tokens(*parse_range(text))),
    "entity": ("entity:Berlin=LOC", parse_entity),
    "classes": ("classes:3=#1,4=#2", parse_token_classes),
    "answer": ("answer:12-15", lambda text: AnswerSpan(*parse_range(text)) if text else AnswerSpan()),
    "answer-tokens": ("answer-tokens:0-3", partial(parse_answer, unit="tokens")),
    "answer-text": ("answer-text:Paris", partial(parse_answer, unit="text")),
    "answer-characters": ("answer-characters:0-12", partial(parse_answer, unit="characters")),
    "answer-sentences": ("answer-sentences:0", partial(parse_answer, unit="sentences")),
    "choice": ("choice:1", lambda text: Choice(int(text))),
    "frame": ("frame:12=a", parse_frame),
    "character": ("character:0", lambda text: Character(int(text or 0))),
    "query": ("query:3=cat", parse_query),
    "representation": ("representation", partial(parse_plain, kind=Representation)),
}
WITHOUT_ARGUMENTS = {
    *("labels", "logp", "value", "token", "entity", "answer", "answer-tokens", "frame", "character", "query"),
    "representation",
}
