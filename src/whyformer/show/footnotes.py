"""An answer with a mark for each source that a sentence of it rests on: [1] in a terminal, a footnote in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence of an answer, and the sources that it rests on, by their numbers."""

    text: str
    remark: str = ""  # what is said beside it, such as "hardly any"
    marks: tuple[int, ...] = ()


def number_sources(sentences: Sequence[tuple[str, str, Sequence[str]]]) -> tuple[list[MarkedSentence], list[str]]:
    """Sentences (text, remark, names of sources) with marks from 1 on, and the name of each mark."""
    names = list(dict.fromkeys(name for _, _, sources in sentences for name in sources))
    numbers = {name: number for number, name in enumerate(names, 1)}
    marked = [
        MarkedSentence(" ".join(text.split()), remark, tuple(sorted(numbers[name] for name in sources)))
        for text, remark, sources in sentences
    ]
    return marked, names


def write_marked_text(sentences: Sequence[MarkedSentence]) -> str:
    """The answer in one line: 'The Aurora carries tea. [1]'."""
    return " ".join(
        one.text + "".join(f" [{mark}]" for mark in one.marks) + (f" ({one.remark})" if one.remark else "")
        for one in sentences
    )
