"""Why two inputs are alike: an explanation of each, and how much every pair of their tokens adds to the score.

s = explain_similarity(encoder, "a red car", "the crimson automobile")
s.top(3); print(s); s.save("alike.html")
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from whyformer._plain import archive
from whyformer._plain.schema import SchemaError, check_schema
from whyformer._plain.tokens import Grid, ScoredTokens
from whyformer.errors import InputError
from whyformer.results._fields import restore_explanation_fields
from whyformer.results.explanation import Explanation
from whyformer.results.result import LoadableResult, choose_formats, require_captured
from whyformer.show import head_figures, score_rows
from whyformer.show.blocks import Block, Charts, DataTable, ExampleView, Notes, PageSection, Paragraph, Report
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import collect_facts
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_limits, format_score, name_explainer, shorten_text

ScoreKind = Literal["cosine", "dot", "late_interaction", "logit", "pair"]
KIND_NAMES = {
    "cosine": "cosine",
    "dot": "dot product",
    "late_interaction": "late interaction",
    "logit": "logit",
    "pair": "score of the pair",
}
ELSEWHERE = "elsewhere"
NAMED_PAIRS = 5  # in a terminal and on a page

SCHEMA = {
    "a": {}, "b": {}, "scores": Tensor, "score_kind": str, "matrix": (None, Tensor), "matrix_method": str,
    "notes": [str],
}  # fmt: skip

TokenPair = tuple[str, str, float]


@dataclass(frozen=True, eq=False, repr=False)
class Similarity(LoadableResult):
    """The explanation of both inputs of each pair, and the score as a sum over pairs of tokens.

    Each of `a` and `b` accounts for the whole score, while the other is held constant; so they must not be added.
    `matrix` [batch token token] has a row for every token or patch of a and a column for every one of b. Its last row
    and column are "elsewhere": what biases, positions and the class token of an image add. It sums to the score.

    Files: .json can be loaded again; .html, .png, .svg, .pdf, .txt and .md show the result; .csv and .parquet have the
    scores of both sides as a table.
    """

    formats = choose_formats(".json .html .png .svg .pdf .csv .parquet .txt .md")

    a: Explanation
    b: Explanation
    scores: Tensor  # [batch]
    score_kind: str  # one of ScoreKind
    matrix: Tensor | None  # [batch token token]; None for a model that reads both inputs at once, or if not asked for
    matrix_method: str  # the method behind the matrix
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = (len(self.a), self.a.scores.shape[1] + 1, self.b.scores.shape[1] + 1)
        if not len(self.a) == len(self.b) == len(self.scores):
            raise InputError(f"{len(self.a)}, {len(self.b)} and {len(self.scores)} examples do not fit each other.")
        if self.matrix is not None and tuple(self.matrix.shape) != shape:
            raise InputError(f"The matrix has the shape {list(self.matrix.shape)}, expected {list(shape)}.")

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: int) -> "Similarity":
        """One pair, as a result of its own."""
        at = range(len(self))[index]
        matrix = None if self.matrix is None else self.matrix[at : at + 1]
        return replace(self, a=self.a[at], b=self.b[at], scores=self.scores[at : at + 1], matrix=matrix)

    def __iter__(self) -> Iterator["Similarity"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        scores = ", ".join(f"{score:.3g}" for score in self.scores[:3].tolist()) + ", ..." * (len(self) > 3)
        return f"<Similarity by {make_visible(self.a.method)}: {KIND_NAMES[self.score_kind]} {scores}>"

    @property
    def score(self) -> float:
        """The similarity of a single pair; `scores` has those of several."""
        if len(self) != 1:
            raise InputError(f"There are {len(self)} pairs. Use .scores, or take one of them first: result[0].score.")
        return float(self.scores[0])

    @property
    def elsewhere(self) -> Tensor:
        """[batch]: the part of each score that belongs to no pair of tokens."""
        table = self.require_matrix()
        return table.sum((1, 2)) - table[:, :-1, :-1].sum((1, 2))

    def require_matrix(self) -> Tensor:
        reason = "it was not computed. Pass matrix= to explain_similarity()"
        if self.score_kind == "pair":
            reason = "the model reads both inputs at once, so its score is not a sum over pairs"
        return require_captured(self.matrix, f"There is no matrix: {reason}.")

    def top(self, k: int = NAMED_PAIRS, *, example: int = 0, special: bool = False) -> list[TokenPair]:
        """The k pairs of tokens that add most to the score: (token of a, token of b, amount)."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise InputError(f"k must be a whole number >= 0, got {k!r}.", code="E_OPTION")
        example = range(len(self))[example]
        table = self.require_matrix()[example, :-1, :-1]
        rows, columns = (name_units(side.tokens[example], special=special) for side in (self.a, self.b))
        order = table.flatten().argsort(descending=True, stable=True).tolist()
        pairs = (divmod(index, table.shape[1]) for index in order)
        found = ((rows[i], columns[j], float(table[i, j])) for i, j in pairs if rows[i] and columns[j])
        return [pair for pair, _ in zip(found, range(k), strict=False)]

    # --- displaying ---

    def title(self, example: int = 0) -> str:
        return f"{KIND_NAMES[self.score_kind]} {format_score(float(self.scores[example]), signed=False)}"

    def _report(self) -> Report:
        """Both inputs of every pair, its matrix, and the pairs of tokens that add most."""
        sides = list(zip(self.a.panels(), self.b.panels(), strict=True))
        first, several = sides[0][0], len(sides) > 1
        blocks: list[Block] = []
        for i, panels in enumerate(sides):
            inside: list[Block] = [Paragraph(f"The {self.title(i)}.", "strong")] * several
            inside += [ExampleView(panel, is_titled=False) for panel in panels]
            if self.matrix is not None:
                pairs = [(a, b, format_score(added, signed=True)) for a, b, added in self.top(example=i)]
                inside += [Charts(partial(self._list_drawings, i)), DataTable(("a", "b", "adds"), pairs)]
                inside += [Paragraph(f"{self.describe_elsewhere(i)} The matrix is by {self.matrix_method}.", "dim")]
            name = " · ".join(shorten_text(panel.title, 40) for panel in panels)
            blocks.append(PageSection(name, inside, is_example=True))
        title = f"{len(sides)} pairs" if several else f"Why alike? The {self.title()}"
        held = "Each input is explained while the other is held constant, so it accounts for the whole score."
        lead = f"{held} {name_explainer(first)}"
        notes = dict.fromkeys((*self.notes, *self.a.notes, *self.b.notes))
        limits = Paragraph(describe_limits(first), "dim")
        return Report(title, [*blocks, limits, Notes(tuple(notes))], lead, collect_facts(first))

    def _list_drawings(self, example: int) -> list[Drawing]:
        return [self.draw(example)]

    def describe_elsewhere(self, example: int = 0) -> str:
        """How much of the score belongs to no pair of tokens, in words."""
        amount, score = float(self.elsewhere[example]), float(self.scores[example])
        share = f" ({100 * amount / score:.0f} %)" if score else ""
        parts = f"{format_score(amount, signed=True)} of {format_score(score, signed=False)}{share}"
        return f"{parts} is {ELSEWHERE}: biases, positions and the like."

    def draw(self, example: int = 0) -> Drawing:
        """The matrix as a heat map: a in rows, b in columns. Without a matrix, the two inputs."""
        example = range(len(self))[example]
        if self.matrix is None:
            return self.a[example].draw()
        rows, columns = ((*name_units(side.tokens[example]), ELSEWHERE) for side in (self.a, self.b))
        keep = [i for i, name in enumerate(rows) if name], [j for j, name in enumerate(columns) if name]
        table = self.matrix[example][keep[0]][:, keep[1]]
        return head_figures.draw_pair_matrix(
            table, [rows[i] for i in keep[0]], [columns[j] for j in keep[1]],
            title=self.title(example), note=self.describe_elsewhere(example),
        )  # fmt: skip

    # --- files ---

    def to_fields(self) -> archive.WrittenFields:
        return {**vars(self), "a": self.a.to_fields(), "b": self.b.to_fields()}

    @classmethod
    def _from_fields(cls, saved: archive.Fields) -> "Similarity":
        check_schema(saved, SCHEMA, "the similarity")
        if saved["score_kind"] not in KIND_NAMES or saved["scores"].dim() != 1:
            raise SchemaError("the kind or the scores of a similarity are damaged")
        for name in ("scores", "matrix"):
            if saved[name] is not None and not bool(torch.as_tensor(saved[name]).isfinite().all()):
                raise SchemaError(f"{name} contains NaN or infinity")
        sides = {side: Explanation(**restore_explanation_fields(saved[side])) for side in ("a", "b")}
        return Similarity(**{name: saved[name] for name in SCHEMA} | sides | {"notes": tuple(saved["notes"])})

    def _list_rows(self) -> Iterator[score_rows.ScoreRow]:
        for side in (self.a, self.b):
            yield from side._list_rows()


def name_units(tokens: ScoredTokens, *, special: bool = True) -> tuple[str, ...]:
    """A name for every token or patch; the empty string for padding and, unless asked for, for special tokens."""
    if isinstance(tokens, Grid):
        return tuple(f"{i // tokens.columns},{i % tokens.columns}" for i in range(len(tokens)))
    names = head_figures.name_positions(tokens, None, len(tokens))
    hidden = [padding or (mark and not special) for padding, mark in zip(tokens.padding, tokens.special, strict=True)]
    return tuple("" if hide else name or "·" for name, hide in zip(names, hidden, strict=True))
