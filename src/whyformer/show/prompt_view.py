r"""PromptView: a prompt, its answer and their scores as plain data, for a page (prompt_page) or a terminal.

The prompt is shown in sections, one for each named region, and the answer is the last. A section that is long, or that
has parts of its own (passages, sentences), is divided into cells, which fold one by one.

    share of a cell = its score / sum over all cells of |score|

Shares keep their sign; the shares of the cells of a section add up to the share of the section. Of citations, shares
are of the sum of |score| over all sources and of the rest as one, so that a source has one share wherever it is shown.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whyformer._model.prompt import Prompt
from whyformer._plain.tokens import NamedTokens, Pieces
from whyformer._plain.words import find_paragraph_starts, find_sentence_starts
from whyformer.show.chips import Chip, join_spans, make_chips
from whyformer.show.footnotes import MarkedSentence
from whyformer.show.panel import Panel
from whyformer.show.wording import describe_sum, format_headline

LONGEST_CELL = 400  # tokens; a longer region is divided, so that it can be read and opened quickly
SHORTEST_CELL = 100  # a cell ends at a paragraph or sentence no earlier than this
OPEN_CELLS = 3  # the cells with the largest shares are shown open
OPEN_TOKENS = 600  # a prompt of at most this many tokens is shown open as a whole
SPAN_LENGTH = 8  # chips of a top span, at most
SPAN_SHARE = 0.25  # a neighbour belongs to a span if it has this share of the score of its strongest chip
TOP_SPANS = 3  # of a cell
WEAKEST_SPAN = 0.1  # spans below this share of the strongest of their cell are not named
BLANK_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
MOST_SIGNS = 8

Borders: TypeAlias = tuple[list[int], list[int], list[int]]  # where paragraphs, sentences and chips begin


@dataclass(frozen=True)
class PromptCell:
    """A stretch of tokens that folds and is scored as one."""

    name: str
    section: int
    start: int
    stop: int


@dataclass(frozen=True)
class TopSpan:
    """A few neighbouring chips with a high score, whole words where possible."""

    first: int  # chip
    last: int  # chip, included
    score: float


@dataclass(frozen=True)
class CitationRow:
    """One source, the part that it plays for the answer, and what leaving it out does."""

    name: str
    start: int  # tokens of the region
    stop: int
    share: float
    role: str  # rests on, also, against, or "" for none
    probabilities: tuple[str, str, str, str] = ("", "", "", "")  # with all, without it, it alone, with none
    text: str = ""
    id: str | None = None  # of the document that it is, or is part of
    metadata: Mapping[str, Any] = field(default_factory=dict)
    mark: int | None = None  # its number in the marked answer


@dataclass(frozen=True, eq=False)
class HopRow:
    """Relevance that was sent on once: where it went."""

    name: str
    scores: Tensor  # [token]
    received: float  # what was sent
    absorbed: float  # what reached no token


@dataclass(frozen=True, eq=False)
class PromptView:
    """A prompt and its answer with one score per token; with `steps`, also the scores of each answer token."""

    headline: str  # "Why '47'?"
    pieces: Pieces  # prompt and answer, without padding
    prompt_length: int  # tokens before the answer
    regions: Sequence[NamedTokens]  # in order, not overlapping
    scores: Tensor  # [token], for the answer as a whole
    signed: bool
    method: str
    model: str
    parts: Sequence[NamedTokens] = ()  # finer units, such as passages or sentences
    steps: Tensor | None = None  # [answer token, token]
    citations: Sequence[CitationRow] = ()
    has_fitted_scores: bool = False  # those of citations are not the sums over their tokens
    marked: Sequence[MarkedSentence] = ()  # the answer with the numbers of the sources that it rests on
    reading_notes: Sequence[str] = ()  # what was measured, in sentences
    hops: Sequence[HopRow] = ()
    magnitude: float | None = None  # what shares are of; None: the sum of the magnitudes of all cells
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    check: Sequence[str] = ()  # what the model says with parts of the prompt hidden
    summed: str = ""  # what the scores sum to

    def __post_init__(self) -> None:
        length, answers = len(self.pieces), len(self.pieces) - self.prompt_length
        if tuple(self.scores.shape) != (length,):
            raise ValueError(f"scores {list(self.scores.shape)} do not fit {length} tokens")
        if self.steps is not None and tuple(self.steps.shape) != (answers, length):
            raise ValueError(f"steps {list(self.steps.shape)} do not fit {answers} answer tokens and {length} tokens")

    @property
    def is_short(self) -> bool:
        """Whether the whole prompt can be shown at once."""
        return self.prompt_length <= OPEN_TOKENS

    # --- how it is divided ---

    @cached_property
    def sections(self) -> tuple[NamedTokens, ...]:
        """The regions, with the tokens between them as regions of their own, and the answer."""
        return cover_tokens(self.regions, self.prompt_length, len(self.pieces))

    @cached_property
    def cells(self) -> tuple[PromptCell, ...]:
        """Every section, divided where it has parts or is long."""
        is_long = any(section.stop - section.start > LONGEST_CELL for section in self.sections)
        borders: Borders = find_cell_borders(self.pieces, self.chip_starts) if is_long else ([], [], [])
        starts = [part.start for part in self.parts]
        cells = []
        for i, section in enumerate(self.sections):
            own = self.parts[bisect_left(starts, section.start) : bisect_left(starts, section.stop)]
            whole = PromptCell(section.name, i, section.start, section.stop)
            cells += [whole] if section.kind == "answer" else divide_section(i, section, own, borders)
        return tuple(cells)

    @cached_property
    def counts(self) -> Counter[int]:
        """The number of cells of each section."""
        return Counter(cell.section for cell in self.cells)

    def find_cell(self, token: int) -> int:
        """The cell that holds this token."""
        return bisect_right([cell.start for cell in self.cells], token) - 1

    def name_cell(self, i: int) -> str:
        """The name of a cell, as the source of scores."""
        is_answer = self.sections[self.cells[i].section].kind == "answer"
        return "earlier answer tokens" if is_answer else self.cells[i].name

    @cached_property
    def _scored_text(self) -> tuple[list[Chip], str]:
        chips, tail = make_chips(self.pieces, self.scores)
        return show_blanks(self.pieces, chips), tail

    @property
    def chips(self) -> list[Chip]:
        """The tokens as they are drawn (see chips)."""
        return self._scored_text[0]

    @property
    def tail(self) -> str:
        return self._scored_text[1]

    def chips_of(self, cell: PromptCell) -> range:
        """The chips that begin in a cell."""
        return range(bisect_left(self.chip_starts, cell.start), bisect_left(self.chip_starts, cell.stop))

    @cached_property
    def chip_starts(self) -> list[int]:
        return [chip.positions[0] for chip in self.chips]

    # --- what it scores ---

    @cached_property
    def limit(self) -> float:
        """The magnitude that gets the strongest colour: the largest of the scaled chips, without one in a thousand."""
        ranked = sorted((abs(self.chips[i].score) for i in self.scaled_chips), reverse=True)
        return ranked[len(ranked) // 1000] if ranked else 0.0

    @cached_property
    def scaled_chips(self) -> frozenset[int]:
        """The chips that the colours are scaled by: the words of the prompt that a person wrote.

        Special tokens, the text of a template and earlier tokens of the answer often score higher than all of them, and
        would leave them white.
        """
        apart = {"answer", "other"} if any(region.kind != "other" for region in self.regions) else {"answer"}
        ordinary = [i for i, chip in enumerate(self.chips) if not chip.special]
        kinds = [self.sections[cell.section].kind for cell in self.cells]
        asked = [i for i in ordinary if kinds[self.find_cell(self.chip_starts[i])] not in apart]
        return frozenset(asked or ordinary or range(len(self.chips)))

    @property
    def between(self) -> tuple[float, float]:
        """The scores that get the first and the last colour."""
        return (-self.limit, self.limit) if self.signed else (0.0, self.limit)

    def sum_cells(self, scores: Tensor) -> Tensor:
        """[... cell]: scores [... token] summed over each cell, in float64."""
        total = torch.nn.functional.pad(scores.double().cumsum(-1), (1, 0))
        edges = torch.tensor([cell.start for cell in self.cells] + [len(self.pieces)])
        return total[..., edges[1:]] - total[..., edges[:-1]]

    @cached_property
    def cell_shares(self) -> list[float]:
        """The sums over the sum of their magnitudes, or over the given one; zero where it is zero."""
        sums = self.sum_cells(self.scores)
        total = sums.abs().sum(-1, keepdim=True) if self.magnitude is None else sums.new_tensor([self.magnitude])
        shares = sums / total.clamp(min=torch.finfo(sums.dtype).tiny)
        return torch.where(total > 0, shares, torch.zeros_like(sums)).tolist()

    @cached_property
    def ranked_cells(self) -> list[int]:
        """The cells by their shares, the largest magnitude first."""
        return sorted(range(len(self.cells)), key=lambda i: -abs(self.cell_shares[i]))

    @cached_property
    def section_shares(self) -> list[float]:
        return self.add_by_section(self.cell_shares)

    @cached_property
    def largest_share(self) -> float:
        """The largest magnitude of a share, of a section or of a cell."""
        return max((abs(share) for share in (*self.section_shares, *self.cell_shares)), default=0.0)

    def add_by_section(self, values: Sequence[float]) -> list[float]:
        """Values of cells summed over each section."""
        sums = [0.0] * len(self.sections)
        for cell, value in zip(self.cells, values, strict=True):
            sums[cell.section] += value
        return sums

    @cached_property
    def open_cells(self) -> frozenset[int]:
        """The cells that are shown open: all of a short prompt, else those with the largest shares."""
        if self.is_short:
            return frozenset(range(len(self.cells)))
        prompt = [i for i in self.ranked_cells if self.cells[i].start < self.prompt_length]
        return frozenset(prompt[:OPEN_CELLS])


def view_prompt(prompt: Prompt, parts: Iterable[Any] = (), **fields: Any) -> PromptView:
    """The view of a prompt; parts: finer units, each with name, kind, start and stop; fields: those of PromptView.

    Of a prompt without roles or documents, the parts are its regions.
    """
    regions = [one for one in prompt.named_tokens if one.kind != "answer"]
    named = sorted((NamedTokens(p.name, p.kind, p.start, p.stop) for p in parts), key=lambda part: part.start)
    is_flat = len(regions) == 1 and len(named) > 0
    return PromptView(
        pieces=prompt.pieces,
        prompt_length=prompt.prompt_length,
        regions=named if is_flat else regions,
        parts=() if is_flat else named,
        **fields,
    )


def view_panel(panel: Panel) -> PromptView | None:
    """The view of one example whose tokens come from a prompt; None if they do not."""
    if panel.is_image or not panel.pieces.regions:
        return None
    pieces = panel.pieces
    real = [i for i, is_padding in enumerate(pieces.padding) if not is_padding]
    named = [replace(one, start=one.start - real[0], stop=one.stop - real[0]) for one in pieces.regions]
    answers = [one for one in named if one.kind == "answer"]
    return PromptView(
        headline=format_headline(panel),
        pieces=Pieces(
            tuple(pieces.pieces[i] for i in real), tuple(pieces.special[i] for i in real), (False,) * len(real),
            tuple(pieces.spans[i] for i in real), pieces.text,
        ),
        prompt_length=answers[0].start if answers else len(real),
        regions=[one for one in named if one.kind != "answer"],
        scores=panel.scores[real],
        summed=describe_sum(panel),
        **list_panel_fields(panel),
    )  # fmt: skip


def list_panel_fields(panel: Panel) -> dict[str, Any]:
    """What a view has in common with a panel."""
    names = ("signed", "model", "settings", "versions", "notes", "check")
    return {"method": panel.label, **{name: getattr(panel, name) for name in names}}


def show_blanks(pieces: Pieces, chips: Sequence[Chip]) -> list[Chip]:
    """The chips, with tokens of white space as signs, and a line break after them where they have one.

    Like special tokens they are no words: they often score high, and say little.
    """
    shown: list[Chip] = []
    gap = ""  # what the token before this one covers
    for chip in chips:
        span = join_spans(pieces, chip.positions)
        covered = "" if span is None or pieces.text is None else pieces.text[slice(*span)]
        before = gap + chip.before
        gap = ""
        if covered and not covered.strip() and not chip.special:
            sign = "".join(BLANK_SIGNS.get(letter, "") for letter in covered)[:MOST_SIGNS] or BLANK_SIGNS[" "]
            gap = "\n" * covered.count("\n") or " "
            chip = replace(chip, text=sign, special=True)
        shown.append(replace(chip, before=before))
    return shown


# --- sections and cells -----------------------------------------------------------------------------------------------


def cover_tokens(regions: Sequence[NamedTokens], prompt_length: int, length: int) -> tuple[NamedTokens, ...]:
    """The regions of the prompt, with unnamed tokens between them as regions of kind "other", and the answer."""
    covered: list[NamedTokens] = []
    at = 0
    for region in sorted((r for r in regions if r.start < r.stop), key=lambda r: r.start):
        if region.start < at:
            raise ValueError(f"region {region.name!r} overlaps the one before it")
        if region.start > at:
            covered.append(NamedTokens("between regions", "other", at, region.start))
        covered.append(region)
        at = region.stop
    if at < prompt_length:
        covered.append(NamedTokens("after the regions" if covered else "prompt", "other", at, prompt_length))
    if prompt_length < length:
        covered.append(NamedTokens("answer", "answer", prompt_length, length))
    return tuple(covered)


def divide_section(i: int, section: NamedTokens, parts: Sequence[NamedTokens], borders: Borders) -> list[PromptCell]:
    """The cells of one section: its parts and what is between them, each cut where it is too long."""
    stretches: list[tuple[str, int, int]] = []
    at = section.start
    for part in parts:
        if part.start > at:
            stretches.append(("", at, part.start))
        start, stop = max(part.start, at), min(part.stop, section.stop)
        if start < stop:
            stretches.append((part.name, start, stop))
            at = stop
    if at < section.stop:
        stretches.append(("", at, section.stop))
    pieces = [
        (name, start, stop) for name, first, last in stretches for start, stop in cut_stretch(first, last, borders)
    ]
    if len(pieces) == 1:
        return [PromptCell(pieces[0][0] or section.name, i, section.start, section.stop)]
    return [
        PromptCell(name or f"{section.name}, part {k}", i, start, stop)
        for k, (name, start, stop) in enumerate(pieces, 1)
    ]


def cut_stretch(start: int, stop: int, borders: Borders) -> list[tuple[int, int]]:
    """A stretch in cells of at most LONGEST_CELL tokens: they end with a paragraph, else a sentence, else a letter."""
    cells = []
    while stop - start > LONGEST_CELL:
        furthest = start + LONGEST_CELL
        earliest = (start + SHORTEST_CELL, start + SHORTEST_CELL, start + 1)
        ends = (find_last(own, low, furthest) for own, low in zip(borders, earliest, strict=True))
        end = next((end for end in ends if end is not None), furthest)
        cells.append((start, end))
        start = end
    return [*cells, (start, stop)]


def find_last(borders: Sequence[int], low: int, high: int) -> int | None:
    """The last border between low and high, both included."""
    i = bisect_right(borders, high) - 1
    return borders[i] if i >= 0 and borders[i] >= low else None


def find_cell_borders(pieces: Pieces, starts: list[int]) -> Borders:
    """The tokens at which paragraphs, sentences and chips begin; a letter is never cut."""
    if pieces.text is None:
        return [], [], starts
    placed = [(span[1], start) for start in starts if (span := pieces.spans[start]) is not None and span[0] < span[1]]
    ends = [end for end, _ in placed]

    def locate(offsets: list[int]) -> list[int]:
        positions = (bisect_right(ends, offset) for offset in offsets)
        return sorted({placed[index][1] for index in positions if index < len(placed)})

    return locate(find_paragraph_starts(pieces.text)), locate(find_sentence_starts(pieces.text)), starts


# --- the strongest words of a cell ------------------------------------------------------------------------------------


def find_top_spans(view: PromptView, cell: PromptCell) -> list[TopSpan]:
    """The strongest spans of a cell, strongest first: a chip with its word, and neighbours nearly as strong.

    A span never crosses the border of its cell, a special token, or a change of sign. prompt_page.js does the same.
    """
    chips, own = view.chips, view.chips_of(cell)
    ranked = sorted((i for i in own if not chips[i].special), key=lambda i: -abs(chips[i].score))
    spans: list[TopSpan] = []
    taken: set[int] = set()
    for seed in ranked:
        if len(spans) == TOP_SPANS or abs(chips[seed].score) <= WEAKEST_SPAN * abs(chips[ranked[0]].score):
            break
        if seed not in taken:
            first, last = grow_span(chips, seed, own, taken)
            taken.update(range(first, last + 1))
            spans.append(TopSpan(first, last, sum(chips[i].score for i in range(first, last + 1))))
    return spans


def grow_span(chips: Sequence[Chip], seed: int, own: range, taken: set[int]) -> tuple[int, int]:
    """The first and last chip of the span around a chip."""

    def belongs(i: int, same_word: bool) -> bool:
        if i not in own or i in taken or chips[i].special:
            return False
        score, strongest = chips[i].score, chips[seed].score
        return same_word or (score * strongest > 0 and abs(score) >= SPAN_SHARE * abs(strongest))

    first = last = seed
    while last - first + 1 < SPAN_LENGTH and belongs(first - 1, chips[first].before == ""):
        first -= 1
    while last - first + 1 < SPAN_LENGTH and belongs(last + 1, last + 1 in own and chips[last + 1].before == ""):
        last += 1
    return first, last
