r"""A comparison: several methods on the same inputs, and how much they agree.

Agreement is Spearman's rank correlation of the scores of each example, $\rho = \operatorname{corr}(\text{rank}(a),
\text{rank}(b))$, with mean ranks for ties, averaged over examples. Padding and special tokens are left out.

The consensus, in a sentence: the words or patches that most of them rank highest.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whyformer._plain.archive import Fields, WrittenFields
from whyformer._plain.schema import SchemaError, check_schema
from whyformer._plain.tokens import Grid, Pieces, ScoredTokens
from whyformer._plain.words import list_some
from whyformer.errors import MethodError
from whyformer.results._fields import restore_explanation_fields
from whyformer.results.explanation import Explanation
from whyformer.results.result import LoadableResult, choose_formats
from whyformer.show import charts, figures
from whyformer.show.blocks import Block, Charts, DataTable, Methods, Notes, PageSection, Paragraph, Report
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import collect_facts
from whyformer.show.panel import Panel
from whyformer.show.score_rows import ScoreRow, list_score_rows
from whyformer.show.token_heat_map import draw_token_heat_map
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_limits, format_headline, name_explainer, shorten_text

ABOUT_AGREEMENT = (
    "agreement: mean rank correlation with the other methods, of tokens or patches. class: any = the same for every "
    "class. High agreement does not mean that methods are right: related ones agree with each other. Agreement no "
    "higher than that of chance carries no information."
)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(LoadableResult):
    """The explanations of the same inputs and target by several methods.

    Files: .json can be loaded again; .html, .png, .svg, .pdf, .txt and .md show it; .csv and .parquet have the
    scores as a table.
    """

    formats = choose_formats(".json .html .png .svg .pdf .csv .parquet .txt .md")

    explanations: Mapping[str, Explanation]  # by label: the method, with its settings where they were given
    failures: Mapping[str, str] = field(default_factory=dict)  # methods that do not work here, and why

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.explanations)

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, label: str) -> Explanation:
        if not isinstance(label, str) or label not in self.explanations:
            raise MethodError(f"This comparison has no {label!r}. It has: {make_visible(', '.join(self.labels))}.")
        return self.explanations[label]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations.values())

    def agreement(self) -> Tensor:
        """[method method], in the order of `labels`: 1 where two methods rank the tokens alike, -1 in reverse order.

        NaN where a method gives all tokens of every example the same score, so that there is no ranking.
        """
        return torch.stack([rank_correlation(rows) for rows in self._score_rows()]).nanmean(dim=0)

    def _score_rows(self) -> Iterator[Tensor]:
        """[method token] for each example: the scores by all methods."""
        explanations = list(self)
        for i, tokens in enumerate(explanations[0].tokens):
            scores = torch.stack([e.scores[i].double() for e in explanations])
            if isinstance(tokens, Pieces):
                left_out = torch.tensor(tokens.padding) | torch.tensor(tokens.special)
                scores = scores[:, ~left_out]
            yield scores

    def __repr__(self) -> str:
        return f"<Comparison of {make_visible(', '.join(self.labels))}: {len(next(iter(self)))} examples>"

    def _report(self) -> Report:
        """The maps of all methods, then how far the methods agree."""
        examples = self.panels()
        firsts = [next(iter(panels.values())) for panels in examples]
        blocks: list[Block] = [
            PageSection(
                shorten_text(one.title, 120), [Methods(panels)], name=shorten_text(one.title, 60), is_example=True
            )
            for one, panels in zip(firsts, examples, strict=True)
        ]
        chart = [Charts(lambda: [self.draw_agreement(title="")])] if len(self) > 1 else []
        agreement = self.list_agreement_blocks()
        *said, table, about = agreement
        limits = Paragraph(describe_limits(*examples[0].values()), "dim")
        whole = [*blocks, limits, PageSection("Agreement", [*said, *chart, table, about])]
        end: list[Block] = [Notes(self.notes)]
        if self.failures:
            end.insert(0, PageSection("Not used", [DataTable(["method", "why"], list(self.failures.items()))]))
        count = len(next(iter(self)))
        examples_named = f"{count} examples" if count > 1 else format_headline(firsts[0])
        panels = list(examples[0].values())
        return Report(
            f"{examples_named}: {len(self)} methods", [*whole, *end], name_explainer(*panels), collect_facts(*panels),
            is_titled=False, brief=[*blocks, *agreement, *end],
        )  # fmt: skip

    def list_agreement_blocks(self) -> list[Block]:
        rows = [
            (label, None if mean is None else f"{mean:+z.2f}", classes, top)
            for label, mean, classes, top in self._list_agreement()
        ]
        head = ("method", "agreement", "class", "top 3" if len(next(iter(self))) == 1 else "top 3 of the first example")
        consensus = describe_consensus(list(self), self.agreement())
        said: list[Block] = [Paragraph(consensus, "strong")] if consensus else []
        return [*said, DataTable(head, rows), Paragraph(ABOUT_AGREEMENT, "dim")]

    def _list_agreement(self) -> Iterator[tuple[str, float | None, str, str]]:
        """For each method its label, mean agreement with the others, whether it is class-specific, and the top 3."""
        agreement = self.agreement().fill_diagonal_(float("nan"))
        for (label, e), rhos in zip(self.explanations.items(), agreement, strict=True):
            mean = rhos.nanmean().item()
            classes = "yes" if e.class_specific else "any"
            yield label, None if math.isnan(mean) else mean, classes, format_top_tokens(e)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that all methods share, then those on some of them with their labels."""
        labels: dict[str, list[str]] = {}
        for label, e in self.explanations.items():
            for note in e.notes:
                labels.setdefault(note, []).append(label)
        shared = [note for note, by in labels.items() if len(by) == len(self.explanations)]
        some = [f"{', '.join(by)}: {note}" for note, by in labels.items() if len(by) < len(self.explanations)]
        return (*shared, *some)

    def panels(self) -> list[dict[str, Panel]]:
        """For each example, or each of its images and its words, the panel of every method, by label."""
        panels = {label: e.panels(label) for label, e in self.explanations.items()}
        parts = {label: [part for panel in own for part in panel.drawn] for label, own in panels.items()}
        columns = {label: [replace(part, label=label) for part in own] for label, own in parts.items()}
        count = len(next(iter(columns.values())))
        return [{label: column[i] for label, column in columns.items()} for i in range(count)]

    def draw(self) -> Drawing:
        """A figure with one row per example and one column per method."""
        rows = [(format_example_title(panels), list(panels.values())) for panels in self.panels()]
        maps = [row for row in rows if row[1][0].is_image]  # of images with words, the words are on the page
        rows = maps or rows
        alt = f"{', '.join(self.labels)}: {'; '.join(title for title, _ in rows)}"
        return figures.draw_panel_table(rows, self.labels, title="", alt=alt)

    def draw_tokens(self, example: int = 0, *, title: str = "") -> Drawing:
        """A heat map of one text: a row for each method, a column for each token."""
        return draw_token_heat_map(self.panels()[example], title=title)

    def draw_agreement(self, *, title: str = "Agreement") -> Drawing:
        """The agreement of the methods as a matrix of numbers."""
        note = "Spearman's rank correlation, mean over examples; 1 is the same ranking."
        return charts.draw_matrix(self.labels, self.agreement(), title=title, note=note)

    # --- files ---

    def to_fields(self) -> WrittenFields:
        """All methods share the images, so they are written once."""
        explanations = {
            label: {name: value for name, value in e.to_fields().items() if name != "images"}
            for label, e in self.explanations.items()
        }
        images = next((vars(e)["images"] for e in self), ())
        return {"explanations": explanations, "failures": self.failures, "images": images}

    @classmethod
    def _from_fields(cls, saved: Fields) -> "Comparison":
        check_schema(saved, {"explanations": {str: {}}, "failures": {str: str}}, "the comparison")
        shared = {"images": saved["images"]} if "images" in saved else {}
        explanations = {
            label: Explanation(**restore_explanation_fields({**fields, **shared}))
            for label, fields in saved["explanations"].items()
        }
        if not explanations:
            raise SchemaError("there are no explanations to compare")
        first = next(iter(explanations.values()))
        if not len(first) or any(e.tokens != first.tokens for e in explanations.values()):
            raise SchemaError("the explanations are not of the same inputs")
        return Comparison(explanations, dict(saved["failures"]))

    def _list_rows(self) -> Iterator[ScoreRow]:
        for label, e in self.explanations.items():
            yield from list_score_rows(e.panels(label))


def format_example_title(panels: Mapping[str, Panel]) -> str:
    first = next(iter(panels.values()))
    return f"{first.name}: {format_headline(first)}" if first.is_image else format_headline(first)


def format_top_tokens(e: Explanation) -> str:
    """The three tokens of the first example with the highest scores."""
    ranked = e[0].top(len(e.tokens[0]))
    if len(ranked) > 1 and len({score for _, score in ranked}) == 1:
        return "all the same"
    return "  ".join(make_visible(str(token)) for token, _ in ranked[:3])


# --- agreement --------------------------------------------------------------------------------------------------------


def rank_correlation(scores: Tensor) -> Tensor:
    """Spearman's rho between every two rows; NaN for a constant row."""
    centred = torch.stack([mean_ranks(row) for row in scores])
    centred -= centred.mean(-1, keepdim=True)
    unit = centred / centred.norm(dim=-1, keepdim=True)
    return (unit @ unit.T).clamp(-1, 1)


def mean_ranks(scores: Tensor) -> Tensor:
    """The rank of each score, 1 for the smallest; ties get the mean of their ranks."""
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    last = size.cumsum(0)
    return (last - (size - 1) / 2)[group].double()


MOST = 2 / 3  # of the methods
FIRST_WORDS = 3
FIRST_PATCHES = 0.1  # of all
ALIKE, PARTLY = 0.6, 0.3  # mean rank correlations
MOST_NAMED = 3
THIRDS = (
    ("upper left", "upper middle", "upper right"),
    ("left", "centre", "right"),
    ("lower left", "lower middle", "lower right"),
)


def describe_consensus(explanations: Sequence[Explanation], agreement: Tensor) -> str:
    """What most of these methods rank highest in the first example, and how alike they rank the rest.

    agreement: [method method], rank correlations. Empty for fewer than three methods.
    """
    if len(explanations) < 3:
        return ""
    needed = math.ceil(MOST * len(explanations))
    tokens = explanations[0].tokens[0]
    ranks = [rank_content(e.scores[0], tokens) for e in explanations]
    count = math.ceil(FIRST_PATCHES * len(ranks[0])) if isinstance(tokens, Grid) else FIRST_WORDS
    votes = torch.zeros(len(explanations[0].scores[0]))
    for ranked in ranks:
        votes[ranked[:count]] += 1
    shared = [int(i) for i in votes.argsort(descending=True, stable=True) if votes[i] >= needed]
    who = f"{needed} or more of the {len(explanations)} methods"
    verb = "are" if len(shared) > 1 else "is"
    if isinstance(tokens, Grid):
        named = f"{count_patches(shared)}, {locate(shared, tokens)}," if shared else "no patch"
        found = f"{named} {verb} in the highest tenth of {who}"
    else:
        named = list_some([repr(make_visible(tokens.pieces[i].strip())) for i in shared[:MOST_NAMED]]) or "no token"
        found = f"{named} {verb} among the first {FIRST_WORDS} of {who}"
    where = " of the first example" if len(explanations[0]) > 1 else ""
    return f"What they agree on{where}: {found}. {describe_rest(agreement)}"


def rank_content(scores: Tensor, tokens: ScoredTokens) -> list[int]:
    """The patches, or the tokens that are neither special nor padding, highest score first."""
    order: list[int] = scores.double().argsort(descending=True, stable=True).tolist()
    if isinstance(tokens, Grid):
        return order
    return [i for i in order if not (tokens.special[i] or tokens.padding[i])]


def count_patches(shared: Sequence[int]) -> str:
    return "1 patch" if len(shared) == 1 else f"{len(shared)} patches"


def locate(shared: Sequence[int], grid: Grid) -> str:
    """Where these patches are, by thirds of the image: 'most in the upper left'."""
    places = [(3 * (i // grid.columns) // grid.rows, 3 * (i % grid.columns) // grid.columns) for i in shared]
    most = max(dict.fromkeys(places), key=places.count)
    share = places.count(most) / len(shared)
    how_many = "all" if share == 1 else "most" if share > 0.5 else "more than elsewhere"
    return f"{how_many} in the {THIRDS[most[0]][most[1]]}"


def describe_rest(agreement: Tensor) -> str:
    """How alike the methods rank everything."""
    others = ~torch.eye(len(agreement), dtype=torch.bool)
    mean = float(agreement[others].nanmean())
    if math.isnan(mean):
        return "Their rankings cannot be compared."
    how = "alike" if mean >= ALIKE else "partly alike" if mean >= PARTLY else "differently"
    return f"On the whole they rank {how} (mean rank correlation {mean:+.2f}); agreement is no proof."
