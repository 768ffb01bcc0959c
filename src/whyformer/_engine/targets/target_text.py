"""Targets as text, as the command line and saved files have them: `group:cat,dog`; see whyformer.targets."""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from whyformer._engine.targets.answer_target import Answer, parse_answer
from whyformer._engine.targets.choice import Choice
from whyformer._engine.targets.target_kinds import (
    AnswerSpan,
    Character,
    Class,
    Entity,
    Frame,
    Group,
    LogProbability,
    Position,
    Representation,
    Token,
    TokenClasses,
    Tokens,
    Value,
)
from whyformer._engine.targets.target_like import TargetKind
from whyformer.errors import TargetError, suggest_nearest


def parse(text: str) -> TargetKind:
    """The target that a text describes; `str(target)` gives the text back."""
    if not isinstance(text, str):
        raise TargetError(f"A target must be a text such as {FORMS['group']!r}, got {type(text).__name__}.")
    kind, _, rest = text.partition(":")
    if "@" in kind:  # token@3
        kind, _, rest = text.partition("@")
        rest = f"@{rest}"
    if kind not in PARSERS:
        raise TargetError(
            f"{text[:80]!r} is not a target.{suggest_nearest(kind, PARSERS)} Write a class, or one of: {list_forms()}."
        )
    try:
        return PARSERS[kind](rest)
    except (ValueError, RecursionError):
        raise TargetError(f"{text[:80]!r} is not a target. Write it like {FORMS[kind]}.") from None


def is_target_text(text: Any, labels: Collection[str] | None = None) -> bool:
    """Whether a text is written like one of these targets and is no label of the model."""
    if not isinstance(text, str) or text in (labels or ()):
        return False
    kind = re.split("[:@]", text, maxsplit=1)[0]
    return kind in PARSERS and (text != kind or kind in WITHOUT_ARGUMENTS)


def list_forms() -> str:
    return ", ".join(FORMS.values())


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


def parse_log_odds(text: str) -> Answer:
    of = parse_member(text)
    if not isinstance(of, Answer):
        raise ValueError
    return replace(of, score="log_odds")


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


def parse_nothing(text: str) -> Representation:
    if text:
        raise ValueError
    return Representation()


PARSERS: dict[str, Callable[[str], TargetKind]] = {
    "class": lambda text: Class(parse_name(text)),
    "group": parse_group,
    "logp": parse_log_probability,
    "logodds": parse_log_odds,
    "value": lambda text: Value(int(text) if text else 0),
    "token": parse_token,
    "tokens": lambda text: Tokens(*parse_range(text)),
    "entity": parse_entity,
    "classes": parse_token_classes,
    "answer": lambda text: AnswerSpan(*parse_range(text)) if text else AnswerSpan(),
    **{f"answer-{unit}": partial(parse_answer, unit=unit) for unit in ("tokens", "text", "characters", "sentences")},
    "choice": lambda text: Choice(int(text)),
    "frame": parse_frame,
    "character": lambda text: Character(int(text) if text else 0),
    "representation": parse_nothing,
}
FORMS = {
    "class": "class:cat",
    "group": "group:cat,dog",
    "logp": "logp:cat",
    "logodds": "logodds:answer-tokens",
    "value": "value",
    "token": "token:Paris@mask",
    "tokens": "tokens:4-7",
    "entity": "entity:Berlin=LOC",
    "classes": "classes:3=#1,4=#2",
    "answer": "answer:12-15",
    "answer-tokens": "answer-tokens:0-3",
    "answer-text": "answer-text:Paris",
    "answer-characters": "answer-characters:0-12",
    "answer-sentences": "answer-sentences:0",
    "choice": "choice:1",
    "frame": "frame:12=a",
    "character": "character:0",
    "representation": "representation",
}
WITHOUT_ARGUMENTS = {
    *("logp", "value", "token", "entity", "answer", "answer-tokens", "frame", "character", "representation")
}
