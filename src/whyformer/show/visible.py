"""Text from anybody, made safe to print: what could steer a terminal becomes readable instead."""

import unicodedata

STRANGE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, invisible, no character at all, line separators


def visible(text: str) -> str:
    """The text with everything that has no shape of its own spelled out: `\\x1b` for an escape."""
    return "".join(spelled(c) if unicodedata.category(c) in STRANGE else c for c in text)


def spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
