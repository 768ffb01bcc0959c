"""Citations: what an answer and each of its sentences rest on, measured by leaving sources out.

c = cite(model, prompt, by="passage")
c.claim.rests_on, c.claim.how, c.claim.values, c.claim.instead; print(c); c.save("why.html")
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from whyformer._engine import Target
from whyformer._model.prompt import Prompt, Region
from whyformer._plain import archive
from whyformer._plain.json_value import JsonValue
from whyformer._plain.schema import NOT_SAVED, SchemaError, check_schema, describe_schema, restore
from whyformer._plain.small_table import fit_in_line, make_card
from whyformer.results._fields import PIECES, TARGET, restore_saved_target, restore_saved_tokens
from whyformer.results.result import LoadableResult, choose_formats
from whyformer.show.blocks import Block, DataTable, Fold, MarkedAnswer, Notes, PromptRegions, Report
from whyformer.show.footnotes import MarkedSentence, number_sources, write_marked_text
from whyformer.show.page_facts import list_facts
from whyformer.show.prompt_view import CitationRow, PromptView, view_prompt
from whyformer.show.score_rows import CellValue
from whyformer.show.visible import make_visible
from whyformer.show.wording import join_with_and, shorten_text

How = Literal["hardly any", "one", "any of", "together", "several", "against", ""]  # "": nothing was left out
SentenceKind = Literal["claim", "abstention", "greeting", "unfinished"]
Role = Literal["rests on", "also", "against", ""]
Finding = Literal["right", "another source", "unused", "no such number", ""]  # of a mark; "": it was not measured
Found = Literal["verbatim", "in part", "nowhere"]  # a quotation
LONGEST_ID = 24  # characters of an id in a terminal
HEADINGS = ("source", "share", "role", "p with all", "without it", "it alone", "with none", "text")
LISTED = 4  # words that are listed as contained or lacking


# --- what is said of one claim ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """What the model makes of a claim with and without one source: its probability, per token (geometric mean)."""

    with_all: float
    without: float | None  # None: not measured
    alone: float | None
    with_none: float
    log_odds: tuple[float | None, ...]  # the same four as summed log-odds, by which the reading is decided

    def list_probabilities(self) -> tuple[str, str, str, str]:
        """With all sources, without this one, with it alone, without any; per token."""
        p = (self.with_all, self.without, self.alone, self.with_none)
        return tuple("–" if one is None else f"{one:.2g}" if one < 0.995 else f"{one:.3g}" for one in p)  # type: ignore[return-value]


@dataclass(frozen=True)
class ClaimReading:
    """How a claim depends on its sources, and which are named: by another margin, or by log p."""

    how: How
    rests_on: tuple[str, ...]

    def __str__(self) -> str:
        return describe_dependence(self.how, self.rests_on)


@dataclass(frozen=True)
class State:
    """Whether a source states the claim: a comparison of words, and the judgement of a checker if there is one."""

    contains: tuple[str, ...]  # words and numbers of the claim that are in the source
    lacks: tuple[str, ...]  # those that are not
    judged: bool | None = None  # by the checker
    probability: float | None = None

    @property
    def is_stated(self) -> bool:
        """By the checker; without one, whether no word is lacking."""
        return self.judged if self.judged is not None else bool(self.contains) and not self.lacks


@dataclass(frozen=True)
class Mark:
    """A mark such as [2] in the answer: whether the claim rests on the source that it names."""

    text: str
    number: int
    source: str | None
    finding: Finding


@dataclass(frozen=True)
class Quotation:
    """A quotation in the answer, and where it is."""

    text: str
    source: str | None
    finding: Found


@dataclass(frozen=True)
class Claim:
    """The answer, or a sentence of it, and what it rests on."""

    text: str
    kind: SentenceKind  # of what is no claim nothing is said
    how: How
    rests_on: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # sources that pass one of the two direct checks
    against: tuple[str, ...] = ()  # sources without which the claim is likelier
    effect: float | None = None  # E: the summed log-odds with all sources minus those without any
    around: tuple[ClaimReading, ...] = ()  # at .45 E and .55 E, where one of them differs
    by_log_p: ClaimReading | None = None
    values: Mapping[str, Values] = field(default_factory=dict)  # of each source that is named
    states: Mapping[str, State] = field(default_factory=dict)  # of every source
    marks: tuple[Mark, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    is_cut: bool = False  # the limit of forwards was reached before all checks were made
    written: str | None = field(default=None, compare=False)  # what `instead` has found
    writer: Callable[[], str] | None = field(default=None, repr=False, compare=False, metadata=NOT_SAVED)

    @property
    def instead(self) -> str | None:
        """What the model says without what the claim rests on, or else without any source.

        It is generated when it is read for the first time. None if nothing was left out, or in a loaded file to which
        it was not saved.
        """
        if self.written is None and self.writer is not None:
            object.__setattr__(self, "written", self.writer())
        return self.written

    @property
    def leans_on(self) -> tuple[str, ...]:
        """The sources that it rests on, by both checks or by one."""
        return () if self.how == "against" else (*self.rests_on, *self.also)

    def find_case(self, source: str) -> str:
        """Rests on it and it states it; states it but was not needed; rests on it though not stated; neither."""
        state = self.states.get(source)
        is_stated = state is not None and state.is_stated
        if source in self.leans_on:
            return "rests on it and it states it" if is_stated else "rests on it though it does not state it"
        return "states it but the model did not need it" if is_stated else "neither"

    def __str__(self) -> str:
        if self.kind != "claim":
            return f"is no claim ({self.kind})"
        said = describe_dependence(self.how, self.against if self.how == "against" else self.rests_on)
        said += f", also {join_with_and(self.also)}" if self.also else ""
        if self.against and self.how != "against":
            said += f"; {join_with_and(self.against)} speak{'s' * (len(self.against) == 1)} against it"
        others = " or ".join(dict.fromkeys(str(one) for one in self.around if str(one) != said))
        return f"{said} (borderline: {others})" if others else said


def describe_dependence(how: How, names: Sequence[str]) -> str:
    named = join_with_and(names)
    said = {
        "hardly any": "hardly rests on any source",
        "one": f"rests on {named}",
        "any of": f"rests on any of {named}",
        "together": f"rests on {named} together",
        "several": "rests on several sources",
        "against": f"is made less likely by {named or 'the sources'}",
    }
    return said.get(how, "was not measured: nothing was left out")


# --- the result -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Citation(Region):
    """One part of the prompt, its score for the answer and, if it is a source, the part that it plays."""

    score: float = 0.0  # its weight in the log-odds of the answer (least squares over ablations); "fast": its relevance
    share: float = 0.0  # of the magnitudes of all scores; with the sign of the score
    role: Role = ""  # for the answer or one of its sentences
    copies: tuple[str, ...] = ()  # the same text at other places, left out together with it

    def __repr__(self) -> str:
        role, text = f", {self.role}" if self.role else "", fit_in_line(make_visible(self.text))
        return f"<Citation {make_visible(self.name)}: {self.share:.0%}{role}, {text!r}>"

    def _repr_html_(self) -> str:
        """A small card for notebooks."""
        return make_card(self.name, {"share": f"{self.share:.0%}", "role": self.role, "text": self.text}.items())


@dataclass(frozen=True, eq=False, repr=False)
class Citations(LoadableResult):
    """The sources of an answer, highest score first, and what it rests on. Question and roles are in `apart`.

    Files: .json has everything and can be loaded again; .html and .txt show it, .md the answer with footnotes; .csv has
    a row for each source.
    """

    formats = choose_formats(".json .html .md .csv .txt")
    csv_columns = ("rank", "name", "kind", "start", "stop", "score", "share", "role", "without", "alone", "text")

    prompt: Prompt
    citations: tuple[Citation, ...]  # sources only
    target: Target  # the answer, or the selected part of it
    scores: Tensor  # [token]; without a relevance pass, the score of a source divided among its tokens
    rest: float  # the sum of the scores of all tokens that belong to no source
    log_probability: float  # of the answer, with all sources
    log_odds: float  # the same, summed over its tokens
    method: str
    settings: Mapping[str, JsonValue]
    model: str
    versions: Mapping[str, str]
    claim: Claim  # the answer, or the selected part of it
    sentences: tuple[Claim, ...] = ()  # each of its sentences; of one, the same as claim
    spent: Mapping[str, float] = field(default_factory=dict)  # passes through the model, by kind
    notes: tuple[str, ...] = ()
    apart: tuple[Citation, ...] = ()  # question, instructions and roles, in order; never left out

    def __len__(self) -> int:
        return len(self.citations)

    def __getitem__(self, index: int) -> Citation:
        return self.citations[index]

    def __iter__(self) -> Iterator[Citation]:
        return iter(self.citations)

    def __repr__(self) -> str:
        return f"<Citations of {len(self)} sources: the answer {make_visible(str(self.claim))}>"

    @property
    def rests_on(self) -> tuple[Citation, ...]:
        """The sources that the answer, or a sentence of it, rests on."""
        return tuple(one for one in self.citations if one.role == "rests on")

    @property
    def has_fitted_scores(self) -> bool:
        """Whether the scores of sources are weights in ablations, while those of tokens are of a relevance pass."""
        return self.method != "ablations" and self.claim.effect is not None

    def mark_answer(self) -> tuple[list[MarkedSentence], list[str]]:
        """The answer with the numbers of the sources that it rests on, and the names of these sources."""
        return number_sources([(one.text, describe_remark(one), one.rests_on) for one in self.sentences])

    def find_values(self) -> dict[str, Values]:
        """Of each named source, for the first sentence that names it, or for the whole answer."""
        return {name: value for one in (*reversed(self.sentences), self.claim) for name, value in one.values.items()}

    def list_sources(self) -> list[CitationRow]:
        """Each source with its number in the answer and the probabilities that were measured, highest score first."""
        values, (_, names) = self.find_values(), self.mark_answer()
        return [
            CitationRow(
                one.name, one.start, one.stop, one.share, one.role,
                values[one.name].list_probabilities() if one.name in values else ("",) * 4,
                one.text, one.id, one.metadata, names.index(one.name) + 1 if one.name in names else None,
            )
            for one in self.citations
        ]  # fmt: skip

    # --- displaying ---

    def view(self) -> PromptView:
        """The prompt with its scores and citations, for display; sources and what is apart are its parts."""
        return view_prompt(
            self.prompt,
            (*self.citations, *self.apart),
            magnitude=sum(abs(float(self.scores[one.start : one.stop].sum())) for one in self.citations)
            + abs(self.rest),
            headline=f"What does {make_visible(self.target.label)} rest on?",
            signed=True,
            citations=self.list_sources(),
            marked=self.mark_answer()[0],
            has_fitted_scores=self.has_fitted_scores,
            reading_notes=self.describe(),
            **{name: getattr(self, name) for name in ("scores", "method", "model", "settings", "versions", "notes")},
        )

    def _report(self) -> Report:
        """The answer, what it rests on, and its sources; the page has the prompt with its scores too."""
        view = self.view()
        rows = [
            (name_source(one), f"{100 * one.share:+.0f} %", one.role, *one.probabilities, shorten_text(one.text, 300))
            for one in view.citations
        ]
        brief: list[Block] = [
            MarkedAnswer(view.marked, view.citations), *self.describe()[1:],
            Fold("Sources", [DataTable(HEADINGS, rows)]), Notes(self.notes),
        ]  # fmt: skip
        facts = list_facts(self.model, {self.method: self.settings}, self.versions)
        return Report(view.headline, [PromptRegions(view)], facts=facts, is_titled=False, brief=brief)

    def describe(self) -> list[str]:
        """The answer in six lines, and one for each sentence if there are several."""
        lines = [write_marked_text(self.mark_answer()[0]), f"The answer {self.claim}."]
        if len(self.sentences) > 1:
            lines += [f'"{shorten_text(" ".join(one.text.split()), 60)}" {one}.' for one in self.sentences]
        lines += describe_numbers(self.claim) if self.claim.kind == "claim" else []
        return [make_visible(line) for line in lines]

    # --- files ---

    def to_fields(self) -> archive.WrittenFields:
        claims = {"claim": write_claim(self.claim), "sentences": [write_claim(one) for one in self.sentences]}
        return {**vars(self), **claims}

    @classmethod
    def _from_fields(cls, saved: archive.Fields) -> "Citations":
        """From the fields that it has: what else a file may name, such as a function to call, is not taken over."""
        prompt = describe_schema(Prompt, pieces=PIECES)
        check_schema(saved, describe_schema(Citations, prompt=prompt, target=TARGET), "the citations")
        prompt, length = saved["prompt"], len(saved["prompt"]["ids"])
        if tuple(saved["scores"].shape) != (length,) or not 0 < prompt["prompt_length"] <= length:
            raise SchemaError("scores and tokens of the citations do not fit each other")
        if not saved["citations"]:
            raise SchemaError("the citations have no sources")
        pieces, target = restore_saved_tokens(prompt["pieces"], length), restore_saved_target(saved["target"])
        found: Citations = restore(Citations, {**saved, "prompt": {**prompt, "pieces": pieces}, "target": target})
        return found

    def _list_rows(self) -> Iterator[tuple[CellValue, ...]]:
        """One row for each source, highest score first."""
        values = self.find_values()
        for rank, one in enumerate(self.citations, 1):
            own = values.get(one.name)
            fields = {**vars(one), "rank": rank, "without": own and own.without, "alone": own and own.alone}
            yield tuple(fields[column] for column in self.csv_columns)


# --- in words ---------------------------------------------------------------------------------------------------------


def name_source(one: CitationRow) -> str:
    return one.name if one.id is None else f"{one.name} ({shorten_text(one.id, LONGEST_ID)})"


def describe_remark(one: Claim) -> str:
    """What is said beside a sentence: what it is if it is no claim, and if it rests on nothing that has a number."""
    if one.kind != "claim":
        return one.kind
    return one.how if one.how in ("hardly any", "several", "against") else ""


def describe_numbers(claim: Claim) -> Iterator[str]:
    """The numbers that decide, what the model says instead, words, marks and what was not measured."""
    first = next(iter([*claim.rests_on, *claim.also, *claim.against]), "")
    if values := claim.values.get(first):
        with_all, without, alone, with_none = values.list_probabilities()
        yield (
            f"Its probability per token: {with_all} with all sources, {without} without {first}, {alone} with it "
            f"alone, {with_none} without any."
        )
        odds = ", ".join("–" if one is None else f"{one:.1f}" for one in values.log_odds)
        yield f"In summed log-odds: {odds}. Half of the effect of {claim.effect:.1f} decides."
    elif claim.effect is not None:
        yield f"All sources together change its summed log-odds by {claim.effect:+.1f}."
    if claim.instead is not None:
        without = join_with_and(claim.rests_on) or "any source"
        yield f'Without {without}: "{shorten_text(" ".join(claim.instead.split()), 160)}"'
    yield describe_states(claim, first)
    yield from (f"{one.text} is {one.finding}." for one in claim.marks if one.finding)
    for one in claim.quotations:
        yield f'"{one.text}" is found {one.finding}{f" in {one.source}" * bool(one.source)}.'


def describe_states(claim: Claim, first: str) -> str:
    """The words that the first named source contains, or else the source that contains most; and a judgement."""
    most = first or max(claim.states, key=lambda name: len(claim.states[name].contains), default="")
    if most not in claim.states:
        return "Whether a source states it was not compared."
    state = claim.states[most]
    lacks = f"; it lacks {list_words(state.lacks)}" if state.lacks else ""
    told = "Whether a source states it was not judged: no checker."
    if state.judged is not None:
        judged = [name for name, one in claim.states.items() if one.judged]
        told = f"Stated, by the checker, in {join_with_and(judged) or 'no source'}."
    return f"Of its words, {most} contains {list_words(state.contains) or 'none'}{lacks}. {told}"


def list_words(words: Sequence[str]) -> str:
    return ", ".join([*words[:LISTED], *(["..."] if len(words) > LISTED else [])])


# --- files ------------------------------------------------------------------------------------------------------------


def write_claim(claim: Claim) -> dict[str, Any]:
    return {name: value for name, value in asdict(replace(claim, writer=None)).items() if name != "writer"}
