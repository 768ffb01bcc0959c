"""Citations: which parts of a prompt an answer comes from, and whether leaving them out changes it.

c = cite(model, prompt, by="passage")
c[0].name; c[0].verdict; print(c); c.save("why.html")
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isclose

from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from whyformer._engine import Target
from whyformer._model.prompt import Prompt, Region
from whyformer._plain import archive
from whyformer._plain.json_value import JsonObject, JsonValue
from whyformer._plain.schema import SchemaError, check_schema
from whyformer._plain.small_table import fit_in_line, make_card
from whyformer._plain.tokens import Pieces
from whyformer.results._fields import PIECES, TARGET, restore_saved_target, restore_saved_tokens
from whyformer.results.result import LoadableResult, choose_formats
from whyformer.show import report, terminal
from whyformer.show.footnotes import MarkedSentence, NotedSource, number_sources, write_markdown, write_marked_text
from whyformer.show.prompt_page import make_prompt_page
from whyformer.show.prompt_view import CitationRow, FaithfulnessRow, PromptView, view_prompt
from whyformer.show.score_rows import CellValue
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_score, shorten_text

SUPPORTED, NOT_NEEDED, CONTRADICTED, CAUTION = "supported", "not needed", "contradicted", "caution"
VERDICTS = (SUPPORTED, NOT_NEEDED, CONTRADICTED, CAUTION)
NOT_SUPPORTED, UNDECIDED = "not supported", "undecided"
ANSWER_VERDICTS = (SUPPORTED, NOT_SUPPORTED, CONTRADICTED, UNDECIDED)
ONE, EITHER, TOGETHER = "one", "either", "together"
SHOWN = 10  # sources in a terminal
LONGEST_ID = 24  # characters of an id in a terminal
DROP_HEADING = "log-odds fall by"
HEADINGS = ("source", "score", "share", "verdict", DROP_HEADING, "text")
NARROW_HEADINGS = ("source", "score", "share", "verdict", "drop", "text")  # of a terminal

REGION = {"name": str, "kind": str, "start": int, "stop": int, "text": str, "characters": (None, [int])}
CITATION = {
    "name": str, "kind": str, "start": int, "stop": int, "text": str, "score": float, "share": float,
    "drop": (None, float), "verdict": (None, str), "is_control": bool,
}  # fmt: skip
IDENTITY = {"id": (None, str), "metadata": {str: object}}  # which files of earlier versions do not have
DROP = {"size": int, "drop": float, "chance": float, "interval": [float], "draws": int}
FAITHFULNESS = {"lds": (None, float), "chance": (None, [float]), "samples": int, "seed": int, "drops": [DROP]}
PROMPT = {"ids": [int], "pieces": PIECES, "prompt_length": int, "regions": [REGION], "notes": [str]}
SUPPORT = {
    "text": str, "verdict": str, "sources": [str], "how": str, "against": [str], "probability": float,
    "drop": (None, float),
}  # fmt: skip
SCHEMA = {
    "prompt": PROMPT, "citations": [CITATION], "target": TARGET, "scores": Tensor, "rest": float,
    "log_probability": float, "margin": (None, float), "together": (None, float), "faithfulness": (None, FAITHFULNESS),
    "method": str, "settings": {str: object}, "model": str, "versions": {str: str}, "spent": {str: float},
    "notes": [str], "apart": [CITATION], "log_odds": (None, float), "support": (None, SUPPORT), "sentences": [SUPPORT],
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Citation:
    """One part of the prompt, its score for the answer and, if it is a source, what leaving it out does."""

    name: str
    kind: str
    start: int  # its first token
    stop: int  # one past its last token
    text: str
    score: float  # effort "fast": the sum of the relevance of its tokens; else its weight in the log-odds (estimate.py)
    share: float  # of the scores of all sources, "fast" also of the rest, by magnitude; with the sign of the score
    drop: float | None = None  # of the log-odds of the answer, or of a sentence, without it; None if not left out
    verdict: str | None = None  # supported, not needed, contradicted or caution; None if it was not verified
    is_control: bool = False  # left out to see what leaving out an unimportant source changes
    id: str | None = None  # of the document that it is, or is part of
    metadata: JsonObject = field(default_factory=dict, hash=False)  # of that document

    def __repr__(self) -> str:
        verdict, text = f", {self.verdict}" if self.verdict else "", fit_in_line(make_visible(self.text))
        return f"<Citation {make_visible(self.name)}: {self.share:.0%}{verdict}, {text!r}>"

    def _repr_html_(self) -> str:
        """A small card for notebooks."""
        drop = None if self.drop is None else f"{self.drop:+.2f} log-odds"
        facts = {"share": f"{self.share:.0%}", "verdict": self.verdict, "without it": drop, "text": self.text}
        return make_card(self.name, facts.items())


@dataclass(frozen=True)
class Support:
    """Whether the sources support the answer, or a sentence of it, and which of them."""

    text: str
    verdict: str  # supported, not supported, contradicted or undecided
    sources: tuple[str, ...]  # names of those that the answer rests on
    how: str  # "one"; "either": each is enough; "together": all are needed; "": none, or each sentence has its own
    against: tuple[str, ...]  # names of those without which it is likelier, or another answer less likely
    probability: float  # that a source states it, by the calibration
    drop: float | None  # of the log-odds without these sources; None if nothing was left out

    def __str__(self) -> str:
        denied = f"contradicted by {join_names(self.against)}" if self.against else ""
        if self.verdict == SUPPORTED and self.sources:
            one_of = ("either of " if len(self.sources) == 2 else "any of ") * (self.how == EITHER)
            together = " together" * (self.how == TOGETHER)
            return f"supported by {one_of}{join_names(self.sources)}{together}{', ' * bool(denied)}{denied}"
        if self.verdict == CONTRADICTED and denied:
            return denied
        return "not supported by any source" if self.verdict == NOT_SUPPORTED else self.verdict


def join_names(names: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])


@dataclass(frozen=True)
class TopDrop:
    """How much the log-odds fall without the sources with the highest scores, and without random ones."""

    size: int  # sources left out
    drop: float
    chance: float  # the mean over random sets of this size
    interval: tuple[float, float]  # 95 % of that mean, by bootstrap
    draws: int

    @property
    def is_chance(self) -> bool:
        """Whether random sources take as much with them."""
        return self.drop <= self.interval[1]


@dataclass(frozen=True)
class Faithfulness:
    """Whether the scores predict what the model does without some of the sources, beside chance."""

    lds: float  # linear datamodelling score; NaN if nothing changes the answer
    chance: tuple[float, float]  # the middle 95 % for random scores, on the same ablations
    samples: int
    seed: int
    drops: tuple[TopDrop, ...] = ()

    @property
    def is_chance(self) -> bool:
        """Whether random scores do as well."""
        return self.chance[0] <= self.lds <= self.chance[1]


@dataclass(frozen=True, eq=False, repr=False)
class Citations(LoadableResult):
    """The sources of an answer, highest score first. Question, instructions and roles are no sources: see `apart`.

    Files: .json has everything and can be loaded again; .html and .txt show the table, .md the answer with footnotes;
    .csv has a row for each source.
    """

    formats = choose_formats(".json .html .md .csv .txt")
    csv_columns = ("rank", "name", "kind", "start", "stop", "score", "share", "drop", "verdict", "control", "text")

    prompt: Prompt
    citations: tuple[Citation, ...]  # sources only
    target: Target  # the answer, or the selected part of it
    scores: Tensor  # [token]
    rest: float  # the sum of the scores of all tokens that belong to no source
    log_probability: float  # of the answer, in full context
    margin: float | None  # a larger change of the log-odds is a verdict; None if nothing was verified
    together: float | None  # how much they fall without all top sources at once
    faithfulness: Faithfulness | None
    method: str
    settings: Mapping[str, JsonValue]
    model: str
    versions: Mapping[str, str]
    spent: Mapping[str, float] = field(default_factory=dict)  # passes through the model, by kind
    notes: tuple[str, ...] = ()
    apart: tuple[Citation, ...] = ()  # question, instructions and roles, in order; never left out
    log_odds: float | None = None  # of the answer in full context, summed over its tokens; None in older files
    support: Support | None = None  # of the answer, or its selected part; None in older files
    sentences: tuple[Support, ...] = ()  # of each of its sentences; of one, the same as support

    def __len__(self) -> int:
        return len(self.citations)

    def __getitem__(self, index: int) -> Citation:
        return self.citations[index]

    def __iter__(self) -> Iterator[Citation]:
        return iter(self.citations)

    def __repr__(self) -> str:
        first = self.citations[0]
        return f"<Citations of {len(self)} sources by {make_visible(self.method)}: {make_visible(first.name)} first>"

    @property
    def supported(self) -> tuple[Citation, ...]:
        """The sources without which the answer would be unlikely."""
        return tuple(one for one in self.citations if one.verdict == SUPPORTED)

    @property
    def has_fitted_scores(self) -> bool:
        """Whether the scores are weights that were fitted to ablations, and not sums over the tokens of a source."""
        sums = [float(self.scores[one.start : one.stop].sum()) for one in self.citations]
        return any(
            not isclose(one.score, total, rel_tol=1e-6, abs_tol=1e-9)
            for one, total in zip(self.citations, sums, strict=True)
        )

    def mark_answer(self) -> tuple[list[MarkedSentence], list[str]]:
        """The answer with the numbers of the sources that support it, and the names of these sources."""
        if not self.sentences:  # of an earlier version
            return number_sources([(self.prompt.answer_text, None, [one.name for one in self.supported])])
        return number_sources(
            [(one.text, one.verdict, one.sources if one.verdict == SUPPORTED else ()) for one in self.sentences]
        )

    # --- displaying ---

    def view(self) -> PromptView:
        """The prompt with its scores and citations, for display; sources and what is apart are its parts."""
        sentences, names = self.mark_answer()
        return view_prompt(
            self.prompt,
            (*self.citations, *self.apart),
            magnitude=sum(abs(float(self.scores[one.start : one.stop].sum())) for one in self.citations)
            + abs(self.rest),
            headline=f"Why {make_visible(self.target.label)}?",
            signed=True,
            citations=[
                CitationRow(
                    one.name,
                    one.start,
                    one.stop,
                    one.share,
                    name_verdict(one),
                    one.drop,
                    one.text,
                    one.id,
                    one.metadata,
                    names.index(one.name) + 1 if one.name in names else None,
                )
                for one in self.list_shown()
            ],
            has_fitted_scores=self.has_fitted_scores,
            marked=sentences,
            verdict_notes=describe_verdicts(self),
            faithfulness=list(list_figures(self.faithfulness)) if self.faithfulness is not None else [],
            **{name: getattr(self, name) for name in ("scores", "method", "model", "settings", "versions", "notes")},
        )

    def _list_parts(self, screen: Screen) -> Iterator[RenderableType]:
        """The sources with the highest scores as a table, then what their verdicts rest on."""
        yield Text(f"{make_visible(self.target.label)}, by {make_visible(self.method)}", "bold")
        sentences, marks = self.mark_answer()
        yield Text(make_visible(write_marked_text(sentences)))
        shown = [self.name_source(one, marks) for one in self.list_shown()]
        rows = [[name, *list_cells(one, 10_000)[1:]] for name, one in zip(shown, self.list_shown(), strict=True)]
        columns = list(zip(NARROW_HEADINGS, *rows, strict=True))[:-1]
        width = max(screen.width - sum(max(map(len, column)) + 2 for column in columns), 20)
        rows = [[*row[:-1], shorten_text(row[-1], width)] for row in rows]
        right = ("score", "share", "drop")
        yield from ("", terminal.render_table(NARROW_HEADINGS, rows, right=right, wrapped=("text",)), "")
        for one in self.apart:
            head = f"Not a source, never left out: {one.name} {100 * one.share:+z.0f} %  "
            text = shorten_text(" ".join(one.text.split()), max(screen.width - len(head), 20))
            yield Text(make_visible(head + text))
        yield from (Text(make_visible(line), "dim") for line in self.describe())
        yield from terminal.render_notes(self.notes)

    def name_source(self, one: Citation, marks: Sequence[str]) -> str:
        """A source in a terminal: with its mark in the answer, and by its id if it has one."""
        mark = f"[{marks.index(one.name) + 1}] " if one.name in marks else ""
        return mark + (one.name if one.id is None else shorten_text(one.id, LONGEST_ID))

    def list_shown(self) -> list[Citation]:
        """The sources with the highest scores, and those that were left out."""
        return [one for index, one in enumerate(self.citations) if index < SHOWN or one.drop is not None]

    def describe(self) -> list[str]:
        """What verdicts and scores rest on, in sentences."""
        return [*describe_verdicts(self), *describe_faithfulness(self)]

    def to_html(self) -> str:
        sources, apart = ([list_cells(one, 10_000) for one in some] for some in (self.citations, self.apart))
        headings = ["not a source", *HEADINGS[1:]]
        return report.make_fragment(
            report.make_table(HEADINGS, sources, caption="Sources, highest score first"),
            report.make_table(headings, apart, caption="Not sources, never left out") if apart else None,
            *(report.make_element("p", line) for line in self.describe()),
            report.make_notes(self.notes) if self.notes else None,
        )

    # --- files ---

    def to_fields(self) -> archive.WrittenFields:
        found = self.faithfulness
        if found is None or found.lds == found.lds:
            return vars(self)
        return {**vars(self), "faithfulness": {**asdict(found), "lds": None, "chance": None}}  # undefined

    @classmethod
    def _from_fields(cls, saved: archive.Fields) -> "Citations":
        saved = {
            "apart": [],
            "log_odds": None,
            "support": None,
            "sentences": [],
            **saved,
        }  # which files of earlier versions do not have
        check_schema(saved.get("prompt"), {"regions": [{}]}, "the prompt")
        for part in (*saved["prompt"]["regions"], *saved.get("citations", ()), *saved["apart"]):
            check_schema({"id": None, "metadata": {}, **part}, IDENTITY, "a source")
        check_schema(saved, SCHEMA, "the citations")
        prompt, length = saved["prompt"], len(saved["prompt"]["ids"])
        if tuple(saved["scores"].shape) != (length,) or not 0 < prompt["prompt_length"] <= length:
            raise SchemaError("scores and tokens of the citations do not fit each other")
        if not saved["citations"] or not all(one["verdict"] in (None, *VERDICTS) for one in saved["citations"]):
            raise SchemaError("the citations are damaged")
        pieces = restore_saved_tokens(prompt["pieces"], length)
        assert isinstance(pieces, Pieces)
        regions = tuple(restore_region(one) for one in prompt["regions"])
        found = saved["faithfulness"]
        return Citations(
            **saved
            | {name: tuple(Citation(**one) for one in saved[name]) for name in ("citations", "apart")}
            | {
                "prompt": Prompt(
                    tuple(prompt["ids"]), pieces, prompt["prompt_length"], regions, tuple(prompt["notes"])
                ),
                "target": restore_saved_target(saved["target"]),
                "faithfulness": None if found is None else restore_faithfulness(found),
                "notes": tuple(saved["notes"]),
                "support": None if saved["support"] is None else restore_support(saved["support"]),
                "sentences": tuple(restore_support(one) for one in saved["sentences"]),
            }
        )

    def _list_rows(self) -> Iterator[tuple[CellValue, ...]]:
        """One row for each source, highest score first."""
        for rank, one in enumerate(self.citations, 1):
            values = {**vars(one), "rank": rank, "control": one.is_control}
            yield tuple(values[column] for column in self.csv_columns)

    def _make_markdown(self) -> str:
        """The answer with a footnote for each source that supports it."""
        sentences, names = self.mark_answer()
        sources = [
            NotedSource(one.name, one.text, name_verdict(one), one.share, one.drop, one.id, one.metadata)
            for one in self.citations
        ]
        headline = f"Why {self.target.label}?"
        return write_markdown(headline, sentences, sources, names, [*self.describe(), *self.notes])

    def _make_page(self) -> str:
        """A page with the answer, its sources, and the prompt with its scores."""
        return make_prompt_page(self.view())


def name_verdict(one: Citation, control: str = "control") -> str:
    return one.verdict or (control if one.is_control else "")


def list_figures(found: Faithfulness) -> Iterator[FaithfulnessRow]:
    name = f"linear datamodelling score, {found.samples} ablations{INSIDE_CHANCE * found.is_chance}"
    yield FaithfulnessRow(name, found.lds, None, found.chance)
    for one in found.drops:
        sources = "source" if one.size == 1 else f"{one.size} sources"
        name = f"drop without the top {sources}{INSIDE_CHANCE * one.is_chance}"
        yield FaithfulnessRow(name, one.drop, one.chance, one.interval)


INSIDE_CHANCE = " (no better than chance)"


def list_cells(one: Citation, width: int) -> list[str]:
    drop = "" if one.drop is None else f"{one.drop:+z.2f}"
    numbers = [format_score(one.score, signed=True), f"{100 * one.share:+z.0f} %"]
    return [one.name, *numbers, name_verdict(one, "(control)"), drop, shorten_text(" ".join(one.text.split()), width)]


def describe_support(result: Citations) -> list[str]:
    if result.support is None:
        return []
    chance = result.support.probability
    figure = f"{chance:.2f}" if 0.01 <= chance < 0.995 else "below 0.01" if chance < 0.01 else "above 0.99"
    lines = [
        f"The answer is {result.support}. Estimated probability that the sources state it: {figure}, by a rule fitted "
        "to small models that were trained to read."
    ]
    if len(result.sentences) > 1:
        lines += [f"{shorten_text(' '.join(one.text.split()), 60)}: {one}." for one in result.sentences]
    return lines


def describe_verdicts(result: Citations) -> list[str]:
    odds = "" if result.log_odds is None else f", its log-odds {result.log_odds:z.2f}"
    certainty = format_score(result.log_probability, signed=False)
    lines = describe_support(result)
    lines.append(f"The log-probability of the answer is {certainty}{odds} with the whole prompt.")
    if result.margin is None:
        return [*lines, "No source was left out: the verdict rests on the relevance and on how certain the answer is."]
    lines.append(
        f"A source is needed if the log-odds drop by more than {result.margin:z.2f} without it. It speaks against the "
        "answer if they rise by more than that, or if another answer, which the model would rather give, rests on it."
    )
    if result.together is not None:
        lines.append(f"Without all that the answer rests on they fall by {result.together:z.2f}.")
    return lines


def describe_faithfulness(result: Citations) -> list[str]:
    found = result.faithfulness
    if found is None:
        return []
    lines = []
    if found.lds == found.lds:
        chance = ". It is inside this range: the scores predict ablations no better than chance" * found.is_chance
        lines.append(
            f"Linear datamodelling score {found.lds:z.2f} over {found.samples} random ablations; random scores: "
            f"{found.chance[0]:z.2f} to {found.chance[1]:z.2f} (95 %){chance}."
        )
    else:
        lines.append("No linear datamodelling score: no ablation changes the answer, or all scores are equal.")
    for one in found.drops:
        sources = "source" if one.size == 1 else f"{one.size} sources"
        lines.append(
            f"Without the top {sources} the log-odds fall by {one.drop:z.2f}; without random ones by "
            f"{one.chance:z.2f} ({one.interval[0]:z.2f} to {one.interval[1]:z.2f})"
            f"{', so no more than by chance' * one.is_chance}."
        )
    return lines


# --- files ------------------------------------------------------------------------------------------------------------


def restore_region(saved: archive.Fields) -> Region:
    index = saved["characters"]
    return Region(**{**saved, "characters": None if index is None else (index[0], index[1])})


def restore_support(saved: archive.Fields) -> Support:
    if saved["verdict"] not in ANSWER_VERDICTS:
        raise SchemaError("the verdict of the citations is damaged")
    return Support(**{**saved, "sources": tuple(saved["sources"]), "against": tuple(saved["against"])})


def restore_faithfulness(saved: archive.Fields) -> Faithfulness:
    drops = tuple(TopDrop(**{**one, "interval": tuple(one["interval"])}) for one in saved["drops"])
    nan = float("nan")
    lds, chance = (nan, (nan, nan)) if saved["lds"] is None else (saved["lds"], tuple(saved["chance"]))
    return Faithfulness(**{**saved, "lds": lds, "chance": chance, "drops": drops})
