"""Untrusted text made safe to print: control and invisible characters become readable escapes."""

import unicodedata

# Control, format, surrogate, private use, unassigned, line separator, paragraph separator.
UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
JOINERS = "\u200c\u200d"  # part of letters in Indic and Arabic scripts, and of emoji made of several
LETTER_CATEGORIES = ("Lo", "Mn", "Mc", "So", "Sk")


def make_visible(text: str) -> str:
    """The text with everything unprintable spelled out, such as `\\x1b` for an escape character."""
    if text.isprintable():
        return text
    return "".join(
        spell_out(c) if unicodedata.category(c) in UNPRINTABLE_CATEGORIES and not is_joiner(text, i) else c
        for i, c in enumerate(text)
    )


def make_lines_visible(text: str) -> str:
    """The same for a text whose lines stay lines."""
    return "\n".join(map(make_visible, text.split("\n")))


def is_joiner(text: str, i: int) -> bool:
    """Whether character i joins the letters on both sides; anywhere else a joiner would only be invisible."""
    if text[i] not in JOINERS or not 0 < i < len(text) - 1:
        return False
    return all(unicodedata.category(neighbour) in LETTER_CATEGORIES for neighbour in (text[i - 1], text[i + 1]))


def spell_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
