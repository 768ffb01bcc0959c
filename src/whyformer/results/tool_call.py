"""Why a model calls this function with these arguments: what each word of the messages adds to each of them.

t = explain_tool_call(model, messages)
t.parts; t.top("argument city"); print(t)
"""

from collections.abc import Iterator
from dataclasses import dataclass

from whyformer._model.prompt import CallPart
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError, suggest_nearest
from whyformer.results.explanation import Explanation
from whyformer.results.result import Result, choose_formats
from whyformer.show.blocks import Block, DataTable, ExampleView, Notes, PageSection, Paragraph, Report
from whyformer.show.page_facts import collect_facts
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_score, name_explainer

SHOWN = 5  # words of each part

SourceWord = tuple[str, str, float]  # the message, the word, what it adds


@dataclass(frozen=True, eq=False, repr=False)
class ToolCall(Result):
    """A tool call of an answer: for its function and each argument the words of the messages that it comes from.

    `explanations` has one for each of `parts`: the log-odds of its tokens, after what the model wrote before them. The
    scores of a word are what these log-odds lose without it, unless another method was chosen; words that were not
    left out have 0.
    """

    formats = choose_formats(".html .csv .txt .md")
    csv_columns = ("call", "part", "value", "message", "word", "adds")

    answer: str
    parts: tuple[CallPart, ...]
    explanations: tuple[Explanation, ...]

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        parts = ", ".join(f"{one.name} {one.text!r}" for one in self.parts[:4])
        return f"<ToolCall by {make_visible(self.explanations[0].method)}: {make_visible(parts)}>"

    def top(self, part: str | int = "function", k: int = 5) -> list[SourceWord]:
        """The k words that add most to one part: its name, such as "argument city", or its number in `parts`."""
        if isinstance(part, str):
            names = [one.name for one in self.parts]
            if part not in names:
                raise InputError(
                    f"The call has no {part!r}.{suggest_nearest(part, names)} It has: {', '.join(names)}.",
                    code="E_OPTION",
                )
            part = names.index(part)
        words = list_source_words(self.explanations[part])
        return sorted(words, key=lambda word: -word[2])[:k]

    def _list_rows(self) -> Iterator[tuple[int, str, str, str, str, float]]:
        for number, one in enumerate(self.parts):
            for message, word, added in self.top(number, len(self.explanations[number].scores[0])):
                yield one.call, one.name, one.text, message, word, added

    def _report(self) -> Report:
        first = self.explanations[0].panels()[0]
        blocks: list[Block] = [Paragraph(self.answer.strip(), "strong")]
        for number, one in enumerate(self.parts):
            rows = [(m, word, format_score(added, signed=True)) for m, word, added in self.top(number, SHOWN)]
            words = [ExampleView(panel, is_titled=False) for panel in self.explanations[number].panels()]
            blocks.append(PageSection(f"{one.name} {one.text}", [DataTable(("message", "word", "adds"), rows), *words]))
        notes = Notes(self.explanations[0].notes)
        return Report("Why this tool call?", [*blocks, notes], name_explainer(first), collect_facts(first))


def list_source_words(e: Explanation) -> list[SourceWord]:
    """The words of a prompt that have a score, each with the message that it is in."""
    tokens, joined = e.tokens[0], e.words()
    words = joined.tokens[0]
    assert isinstance(tokens, Pieces) and isinstance(words, Pieces)
    places = {span: n for n, span in enumerate(tokens.spans) if span is not None}
    starts = sorted((span[0], n) for span, n in places.items())
    found = []
    for number, span in enumerate(words.spans):
        added = float(joined.scores[0, number])
        if span is None or added == 0:
            continue
        token = max((n for start, n in starts if start <= span[0]), default=0)
        message = next((one.name for one in tokens.regions if one.start <= token < one.stop), "")
        found.append((message, words.pieces[number], added))
    return found
