"""Why documents are in this order for a query: what each word adds to the difference of two scores.

r = explain_ranking(encoder, "how far is the moon", documents)
r.order; r.contrast(); r.checks[0].turned; print(r)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from whyformer._plain.tokens import Pieces
from whyformer._plain.words import list_some
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation
from whyformer.results.result import Result, choose_formats
from whyformer.results.similarity import KIND_NAMES, Similarity
from whyformer.show.blocks import Block, DataTable, ExampleView, PageSection, Report
from whyformer.show.page_facts import collect_facts
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_score, name_explainer, shorten_text

Part: TypeAlias = Literal["query", "above", "below"]
ContrastWord: TypeAlias = tuple[Part, str | tuple[int, int], float]  # whose word or patch, the word, what it adds
SHOWN = 8  # words of a contrast


@dataclass(frozen=True)
class HidingCheck:
    """Whether one document still ranks above another without the words that put it there.

    `gap` is the difference of the two scores; `random_gaps` are those without as many other words, drawn at random.
    """

    above: int
    below: int
    words: tuple[str, ...]  # of the document above, those with the highest contrast
    gap: float
    hidden_gap: float
    random_gaps: tuple[float, ...]

    @property
    def turned(self) -> bool:
        """Whether the order of the two documents is another one without the words."""
        return self.hidden_gap < 0

    @property
    def turned_at_random(self) -> float:
        """The share of the random draws that turned the order."""
        return sum(gap < 0 for gap in self.random_gaps) / len(self.random_gaps)

    @property
    def verdict(self) -> str:
        mean = sum(self.random_gaps) / len(self.random_gaps)
        result = "turns the order" if self.turned else "leaves the order as it is"
        gaps = f"{format_score(self.gap, signed=True)} to {format_score(self.hidden_gap, signed=True)}"
        hidden = list_some([repr(word) for word in self.words], 5)
        return (
            f"Hiding {hidden} {result}: the difference goes from {gaps}; without as many random "
            f"words it is {format_score(mean, signed=True)}, and turns in {self.turned_at_random:.0%} of "
            f"{len(self.random_gaps)} draws."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(Result):
    """The score of each document for a query, explained, and what puts one document above another.

    `scores` has one for each document, in the order in which they were given; `order` numbers them from the best to the
    worst. `similarities` explains the documents of `pairs`: `a` is the query, `b` the document. `checks` has a check
    for each of the pairs; none for images.
    """

    formats = choose_formats(".html .csv .txt .md")
    csv_columns = ("above", "below", "part", "word", "adds")

    query: str
    documents: tuple[str, ...]
    scores: tuple[float, ...]
    pairs: tuple[tuple[int, int], ...]  # (above, below)
    similarities: Mapping[int, Similarity]  # by the number of the document
    checks: tuple[HidingCheck, ...] = ()

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"<Ranking of {len(self)} documents by {make_visible(self._first.a.method)}: {self.order}>"

    @property
    def _first(self) -> Similarity:
        return self.similarities[self.pairs[0][0]]

    @property
    def order(self) -> tuple[int, ...]:
        return order_scores(self.scores)

    def contrast(self, above: int | None = None, below: int | None = None) -> list[ContrastWord]:
        """What each word adds to the score of one document minus that of another, from the highest on.

        A word of the document below that speaks for this document counts against the order, so its sign is turned. A
        word of the query adds the difference of what it adds to both scores. By default the two documents of the first
        pair are compared. Each of the three parts accounts for the whole difference: do not add them.
        """
        if above is None and below is None:
            above, below = self.pairs[0]
        if above is None or below is None:
            raise InputError("Pass the numbers of two documents: contrast(above, below).", code="E_OPTION")
        check_documents((above, below), len(self))
        if not {above, below} <= self.similarities.keys():
            there = ", ".join(map(str, self.similarities))
            raise InputError(f"Explained are the documents {there}. Pass versus=({above}, {below}).", code="E_OPTION")
        upper, lower = self.similarities[above], self.similarities[below]
        words: list[ContrastWord] = [("above", word, added) for word, added in list_word_scores(upper.b)]
        words += [("below", word, -added) for word, added in list_word_scores(lower.b)]
        words += [
            ("query", word, added - other)
            for (word, added), (_, other) in zip(list_word_scores(upper.a), list_word_scores(lower.a), strict=True)
        ]
        return sorted(words, key=lambda entry: -entry[2])

    def _list_rows(self) -> Iterator[tuple[int, int, Part, str, float]]:
        for above, below in self.pairs:
            for part, word, added in self.contrast(above, below):
                yield above, below, part, str(word), added

    def describe_pair(self, above: int, below: int) -> str:
        gap = format_score(self.scores[above] - self.scores[below], signed=True)
        return f"Document {above} is above document {below} by {gap}"

    def _report(self) -> Report:
        """The order, then for each pair the words that put one document above the other, and the check."""
        first = self._first.b.panels()[0]
        ranks = [
            (rank, number, self.scores[number], shorten_text(self.documents[number], 60))
            for rank, number in enumerate(self.order, 1)
        ]
        blocks: list[Block] = [DataTable(("rank", "document", KIND_NAMES[self._first.score_kind], ""), ranks)]
        blocks += [
            PageSection(self.describe_pair(*one), self._list_blocks(*one), name=f"{one[0]} above {one[1]}")
            for one in self.pairs
        ]
        lead = f"Each text is explained while the other is held constant. {name_explainer(first)}"
        title = f"Why this order of {len(self)} documents for “{shorten_text(self.query, 80)}”"
        return Report(title, blocks, lead, collect_facts(first))

    def _list_blocks(self, above: int, below: int) -> list[Block]:
        """One contrast: the words, the check, both documents in colour."""
        words = [
            (part, str(word), format_score(added, signed=True)) for part, word, added in self.contrast(above, below)
        ]
        checks = [check.verdict for check in self.checks if (check.above, check.below) == (above, below)]
        documents = [ExampleView(panel) for number in (above, below) for panel in self.similarities[number].b.panels()]
        return [DataTable(("part", "word", "adds"), words[:SHOWN]), *checks, *documents]


def order_scores(scores: tuple[float, ...]) -> tuple[int, ...]:
    """From the highest on; of equal ones the first."""
    return tuple(sorted(range(len(scores)), key=lambda number: -scores[number]))


def check_documents(pair: object, count: int) -> None:
    numbers = {one for one in pair if type(one) is int and 0 <= one < count} if isinstance(pair, tuple) else set()
    if not isinstance(pair, tuple) or len(pair) != 2 or len(numbers) != 2:
        raise InputError(
            f"Two documents are compared by their numbers, 0 to {count - 1}, as a tuple such as (0, 1), got {pair!r}.",
            code="E_OPTION",
        )


def list_word_scores(e: Explanation) -> list[tuple[str | tuple[int, int], float]]:
    """Each word of a text with its score, or each patch of an image; without special tokens."""
    joined = e.words() if isinstance(e.tokens[0], Pieces) and e.tokens[0].text is not None else e
    return joined._pair_scores(0, special=False)
