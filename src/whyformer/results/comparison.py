r"""Several methods on the same inputs, from one run of the model, and how far they agree.

Agreement is Spearman's rank correlation of the scores of each example, $\rho = \operatorname{corr}(\text{rank}(a),
\text{rank}(b))$, ties getting their mean rank, averaged over examples. Padding and special tokens take no part.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from rich.columns import Columns
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from whyformer._engine.capture import Capture
from whyformer._plain import archive
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import MethodError, ModelError, NonFinite, NotCaptured, WhyformerError
from whyformer.methods._registry import METHODS, find_method
from whyformer.results._fields import restore_explanation_fields
from whyformer.results.explanation import (
    Explanation,
    MethodCall,
    MethodLike,
    ModelLike,
    as_model,
    choose_method,
    make_explanation,
    record_for_methods,
)
from whyformer.results.explanation import join_explanations as joined_explanations
from whyformer.show import charts, figures, notebook, page, report, score_rows, terminal
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What each of several methods says about the same inputs and target."""

    explanations: Mapping[str, Explanation]  # by label: the method, and its settings where they were given
    failures: Mapping[str, str] = field(default_factory=dict)  # methods that could not be used here, and why

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.explanations)

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, label: str) -> Explanation:
        if label not in self.explanations:
            raise MethodError(f"No {label!r} in this comparison. There are: {', '.join(self.labels)}.")
        return self.explanations[label]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations.values())

    def agreement(self) -> Tensor:
        """How alike two methods rank tokens: 1 the same order, -1 the reverse. [method method], ordered as `labels`.

        NaN where a method gives all tokens of every example the same score, so that there is no order to compare.
        """
        found = torch.stack([rank_correlation(rows) for rows in self._ranked_rows()])
        return found.nanmean(dim=0)

    def _ranked_rows(self) -> Iterator[Tensor]:
        """For each example the scores of all methods, [method token]."""
        explanations = list(self)
        for i, tokens in enumerate(explanations[0].tokens):
            scores = torch.stack([e.scores[i].double() for e in explanations])
            if isinstance(tokens, Pieces):
                left_out = torch.tensor(tokens.padding) | torch.tensor(tokens.special)
                scores = scores[:, ~left_out]
            yield scores

    def __repr__(self) -> str:
        return f"<Comparison of {make_visible(', '.join(self.labels))}: {len(next(iter(self)))} examples>"

    def __str__(self) -> str:
        return self.render()

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal: the scores side by side, then how far the methods agree."""
        screen = screen or Screen.from_stdout()
        parts: list[Any] = []
        for i in range(len(next(iter(self)))):
            parts += [*self._side_by_side(i, screen), ""]
        return terminal.render_parts([*parts, self._table(), *self._remarks()], screen)

    def _side_by_side(self, example: int, screen: Screen) -> Iterator[Any]:
        first = next(iter(self))
        tokens, name = first.tokens[example], first.names[example]
        has_text = isinstance(tokens, Pieces) and tokens.text is not None
        yield terminal.render_title(first.targets[example], None, name=None if has_text else name, class_specific=True)
        if screen.colours is None:
            return
        if isinstance(tokens, Grid):
            maps = (render_small_map(label, e.map(example), e.signed, screen) for label, e in self.explanations.items())
            yield Columns(maps, padding=(1, 2))
            return
        lines = Table.grid(padding=(0, 2))
        for label, e in self.explanations.items():
            lines.add_row(Text(make_visible(label)), terminal.render_words(tokens, e.scores[example], signed=e.signed))
        yield lines

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("method", "agreement", "class", "top 3"):
            table.add_column(heading, justify="right" if heading == "agreement" else "left", overflow="fold")
        agreement = self.agreement().fill_diagonal_(float("nan"))
        for (label, e), rhos in zip(self.explanations.items(), agreement, strict=True):
            mean = rhos.nanmean().item()
            table.add_row(
                Text(make_visible(label)),
                "-" if mean != mean else f"{mean:+.2f}",
                "yes" if e.class_specific else "any",
                Text(format_top_tokens(e)),
            )
        return table

    def _remarks(self) -> Iterator[Text]:
        yield Text()
        yield Text(
            "agreement: mean rank correlation with the other methods. class: any = the same for every class.", "dim"
        )
        for label, reason in self.failures.items():
            yield Text(f"not used: {make_visible(label)}: {make_visible(reason)}")
        if notes := next(iter(self)).notes:
            yield terminal.render_notes(notes)

    def panels(self) -> list[dict[str, Panel]]:
        """For each example, what every method says, as it is drawn."""
        drawn = {label: e.panels(label) for label, e in self.explanations.items()}
        return [{label: cases[i] for label, cases in drawn.items()} for i in range(len(next(iter(self))))]

    def draw(self) -> Drawing:
        """A sheet: every example a row, every method a map or a line of words."""
        examples = self.panels()
        lines = [(format_example_title(cases), list(cases.values())) for cases in examples]
        alt = f"{', '.join(self.labels)}: {'; '.join(title for title, _ in lines)}"
        return figures.draw_panel_table(lines, self.labels, title="", alt=alt)

    def draw_agreement(self, *, title: str = "Agreement") -> Drawing:
        """How alike the methods rank tokens, as a matrix of numbers."""
        note = "Spearman's rank correlation, mean over examples; 1 is the same order."
        return charts.draw_matrix(self.labels, self.agreement(), title=title, note=note)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; its ending says what.

        .json: to be loaded again. .html, .png, .svg, .pdf, .txt: to be looked at. .csv, .parquet: the numbers.
        """
        archive.write_file(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    def _repr_html_(self) -> str:
        return notebook.make_comparison_fragment(self.panels())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Comparison":
        """What was saved as .json, bit for bit."""
        return archive.read_archive(path, "comparison", comparison_from_fields)


def format_example_title(cases: Mapping[str, Panel]) -> str:
    first = next(iter(cases.values()))
    return f"{first.name}: {format_headline(first)}" if first.is_image else format_headline(first)


def render_small_map(label: str, scores: Tensor, signed: bool, screen: Screen) -> Group:
    return Group(
        Text(make_visible(label)), terminal.render_heat_map(scores, signed=signed, width=screen.width, size=16)
    )


def format_top_tokens(e: Explanation) -> str:
    """The three highest tokens of the first example."""
    first = e[0].top(len(e.tokens[0]))
    if len(first) > 1 and len({score for _, score in first}) == 1:
        return "all the same"
    return "  ".join(make_visible(str(token)) for token, _ in first[:3])


def compare(
    model: ModelLike,
    inputs: Any,
    methods: Literal["quick", "all"] | MethodLike | Sequence[MethodLike] = "quick",
    *,
    target: Any = None,
    versus: Any = None,
) -> Comparison:
    """Several methods on the same inputs, from one run of the model.

    methods: names, functions or partials of them; "quick" takes every registered method that needs no more than one
    pass of each kind, "all" also those that ask the model again and again. Of both, those that cannot be used on this
    model are listed in `failures`, with the reason.
    """
    tolerant = isinstance(methods, str) and methods in ("quick", "all")
    named = [name for name, one in METHODS.items() if one.is_quick or methods == "all"]
    chosen = label_methods(named if tolerant else as_method_list(methods))
    model = as_model(model)
    encoded = model.encode(inputs)
    run = partial(record_for_methods, model=model, encoded=encoded, target=target, versus=versus)
    captures = share_captures(list(chosen.values()), run) if tolerant else [run(list(chosen.values()))] * len(chosen)
    explanations: dict[str, Explanation] = {}
    failures: dict[str, str] = {}
    for (label, one), capture in zip(chosen.items(), captures, strict=True):
        try:
            if isinstance(capture, WhyformerError):
                raise capture
            explanations[label] = make_explanation(one, model, encoded, capture)
        except WhyformerError as error:
            if not tolerant:
                raise
            failures[label] = str(error)
    if not explanations:
        raise MethodError(f"No method can be used on {model.name}. {next(iter(failures.values()))}")
    return Comparison(explanations, failures)


def join_comparisons(parts: Sequence[Comparison]) -> Comparison:
    """Comparisons of the same methods, one after the other, as one; a method must have worked on all of them."""
    failures = {label: reason for part in parts for label, reason in part.failures.items()}
    labels = [label for label in parts[0].labels if all(label in part.explanations for part in parts)]
    if not labels:
        raise MethodError(f"No method can be used on all of these inputs. {next(iter(failures.values()), '')}")
    return Comparison(
        {label: joined_explanations([part[label] for part in parts]) for label in labels},
        {label: reason for label, reason in failures.items() if label not in labels},
    )


def as_method_list(methods: MethodLike | Sequence[MethodLike]) -> Sequence[MethodLike]:
    several = methods if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    if not several:
        raise MethodError("No methods to compare. Name some, or give methods='all'.")
    return several


def label_methods(methods: Sequence[MethodLike]) -> dict[str, MethodCall]:
    """The methods by a label that tells them apart: the name, with settings where they were given."""
    chosen: dict[str, MethodCall] = {}
    for method in methods:
        found, given = find_method(method)
        settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
        label = f"{found.name}({settings})" if settings else found.name
        if label in chosen:
            raise MethodError(f"{label} is named twice. Compare it once, or with different settings.")
        chosen[label] = choose_method(method, {})
    return chosen


def share_captures(
    chosen: Sequence[MethodCall], run: Callable[[Sequence[MethodCall]], Capture]
) -> Sequence[Capture | WhyformerError]:
    """For each method the run it can be read from: one for all; where some need what cannot be had, one for each set of
    needs, or why there is none."""
    try:
        return [run(chosen)] * len(chosen)
    except (ModelError, NotCaptured, NonFinite):
        made: dict[Any, Capture | WhyformerError] = {}
        for one in chosen:
            if (key := (one.needs, one.recipe)) not in made:
                try:
                    made[key] = run([one])
                except WhyformerError as error:
                    made[key] = error
        return [made[one.needs, one.recipe] for one in chosen]


# --- agreement --------------------------------------------------------------------------------------------------------


def rank_correlation(scores: Tensor) -> Tensor:
    """Spearman's rho between every two rows; NaN with a row that is all the same."""
    centred = torch.stack([mean_ranks(row) for row in scores])
    centred -= centred.mean(-1, keepdim=True)
    unit = centred / centred.norm(dim=-1, keepdim=True)
    return (unit @ unit.T).clamp(-1, 1)


def mean_ranks(scores: Tensor) -> Tensor:
    """1 for the smallest; equal scores share the mean of their ranks."""
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    last = size.cumsum(0)
    return (last - (size - 1) / 2)[group].double()


# --- files ------------------------------------------------------------------------------------------------------------


def comparison_from_fields(held: archive.Fields) -> Comparison:
    shared = {name: held[name] for name in ("images", "pictures") if name in held}
    explanations = {
        label: Explanation(**restore_explanation_fields({**fields, **shared}))
        for label, fields in held["explanations"].items()
    }
    if not explanations:
        raise ValueError("nothing is compared")
    return Comparison(explanations, dict(held["failures"]))


def comparison_to_json(comparison: Comparison) -> bytes:
    """The pictures, which all methods share, stand there once."""
    explanations = {
        label: {name: value for name, value in vars(e).items() if name != "images"}
        for label, e in comparison.explanations.items()
    }
    images = next((e.images for e in comparison), ())
    fields = {"explanations": explanations, "failures": comparison.failures, "images": images}
    return archive.to_json_text("comparison", fields).encode("ascii")


def comparison_to_html(comparison: Comparison) -> bytes:
    """A sheet of all methods, and how far they agree."""
    first = next(iter(comparison))
    lines = []
    agreement = comparison.agreement().fill_diagonal_(float("nan"))
    for (label, e), rhos in zip(comparison.explanations.items(), agreement, strict=True):
        mean = rhos.nanmean().item()
        kind = "yes" if e.class_specific else "any"
        lines.append([label, None if mean != mean else mean, kind, format_top_tokens(e)])
    extra = [
        report.make_section(
            "Agreement",
            report.embed_drawing(comparison.draw_agreement(title="")) if len(comparison) > 1 else None,
            report.make_table(["method", "mean agreement", "class", "three highest of the first example"], lines),
            remark="How alike the methods rank tokens. High agreement is no proof of truth, since relatives agree; "
            "what looks no better than chance says nothing here.",
        )
    ]
    if comparison.failures:
        failed = [[label, reason] for label, reason in comparison.failures.items()]
        extra.append(report.make_section("Not used", report.make_table(["method", "why"], failed)))
    if first.notes:
        extra.append(report.make_notes(first.notes))
    lead = f"{first.model}, the same run for all. Orange speaks for the answer, blue against it; purple has no sign."
    several = f"{len(first)} examples" if len(first) > 1 else format_headline(first.panels()[0])
    title = f"{several}: {len(comparison)} methods"
    return page.make_comparison_page(comparison.panels(), extra, title=title, lead=lead).encode("utf-8")


def list_comparison_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for label, e in comparison.explanations.items():
        yield from score_rows.list_score_rows(e.panels(label))


FORMATS: dict[str, Callable[[Comparison], bytes]] = {
    ".json": comparison_to_json,
    ".html": comparison_to_html,
    ".png": lambda c: c.draw().png(),
    ".svg": lambda c: c.draw().svg().encode("utf-8"),
    ".pdf": lambda c: c.draw().pdf(),
    ".csv": lambda c: score_rows.as_csv(list_comparison_rows(c)),
    ".parquet": lambda c: score_rows.as_parquet(list_comparison_rows(c)),
    ".txt": lambda c: (c.render(Screen(width=100, colours=None)) + "\n").encode("utf-8", "backslashreplace"),
}
