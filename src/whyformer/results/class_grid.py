"""Grids of maps: several classes, each explained by several methods; every head under several rules.

    explain_classes(model, "cat-and-dog.jpg", ["transformer_attribution", "rollout"], classes=2).save("classes.html")

A class-specific method must highlight something else for another class; the grid shows at once whether it does.

A rule grid has one row per rule of redistribution and one column per head, then the mean over heads: the figure of
Sawaki & Murata, JSAI 2025 (4I1-GS-11-03).

    compare_redistribution(model, "cat.jpg").save("rules.png")
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from whyformer._model import UNNAMED_IMAGE
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.results.result import Result, choose_formats
from whyformer.show import figures
from whyformer.show.blocks import Block, DataTable, Fold, MapGrid, PageSection, Paragraph, Report
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import collect_facts
from whyformer.show.panel import Panel
from whyformer.show.score_rows import ScoreRow
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_limits, format_headline, name_explainer, name_with_probability

READING_HINT = "A class-specific method highlights something else for another class."


@dataclass(frozen=True, eq=False, repr=False)
class ClassGrid(Result):
    """One comparison of the methods for each class, the likeliest class first.

    Files: .html, .png, .svg and .pdf show the grid; .csv and .parquet have the scores as a table.
    """

    formats = choose_formats(".html .png .svg .pdf .csv .parquet")

    comparisons: tuple[Comparison, ...]

    def __len__(self) -> int:
        return len(self.comparisons)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    def __getitem__(self, index: int) -> Comparison:
        return self.comparisons[index]

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods, as in `Comparison.labels`."""
        return self.comparisons[0].labels

    def __repr__(self) -> str:
        return f"<ClassGrid of {len(self)} classes by {make_visible(', '.join(self.labels))}>"

    def _report(self) -> Report:
        """One section per example, with a row for each class."""
        examples = self.examples()
        firsts = [classes[0][1][0] for classes in examples]
        blocks: list[Block] = [
            PageSection(first.name, [MapGrid(classes, self.labels)], is_example=True)
            for classes, first in zip(examples, firsts, strict=True)
        ]
        blocks.append(Paragraph(describe_limits(*examples[0][0][1]), "dim"))
        for comparison, (title, _) in zip(self, examples[0], strict=True):
            blocks.append(Fold(f"Agreement: {title}", comparison.list_agreement_blocks(), is_printed=True))
        panels = examples[0][0][1]
        lead = f"The likeliest classes, each explained by every method. {READING_HINT} {name_explainer(*panels)}"
        title = "Class by class" if len(examples) > 1 else f"{format_headline(panels[0])}: class by class"
        return Report(title, blocks, lead, collect_facts(*panels))

    def examples(self) -> list[list[tuple[str, list[Panel]]]]:
        """For each example its classes: the title of the class, and one panel per method."""
        by_class = [comparison.panels() for comparison in self]
        return [
            [(format_class_title(panels[example]), list(panels[example].values())) for panels in by_class]
            for example in range(len(by_class[0]))
        ]

    def draw(self) -> Drawing:
        """A figure with one row per class and one column per method."""
        examples = self.examples()
        several = len(examples) > 1
        rows = [
            (f"{panels[0].name}: {title}" if several else title, panels)
            for classes in examples
            for title, panels in classes
        ]
        name = next(iter(self[0])).names[0]
        title = "" if several or name == UNNAMED_IMAGE else name
        alt = f"{', '.join(self.labels)} for {'; '.join(name for name, _ in rows)}"
        return figures.draw_panel_table(rows, self.labels, title=title, alt=alt)

    def _list_rows(self) -> Iterator[ScoreRow]:
        for comparison in self:
            yield from comparison._list_rows()


def format_class_title(panels: Mapping[str, Panel]) -> str:
    target = next(iter(panels.values())).target
    return name_with_probability(target)


MEAN_COLUMN = "mean of heads"


@dataclass(frozen=True, eq=False, repr=False)
class RuleGrid(Result):
    """For each rule, the explanation by each head alone and by the mean of all heads.

    Files: .html, .png, .svg and .pdf show the grid.
    """

    formats = choose_formats(".html .png .svg .pdf")

    heads: Mapping[str, Sequence[Explanation]]  # by rule: one explanation per head
    means: Mapping[str, Explanation]  # by rule

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.means)

    @property
    def columns(self) -> list[str]:
        count = len(next(iter(self.heads.values())))
        return [*(f"head {number}" for number in range(1, count + 1)), MEAN_COLUMN]

    def __repr__(self) -> str:
        return f"<RuleGrid of {len(self.columns) - 1} heads by rules {', '.join(self.rules)}>"

    def records(self) -> list[dict[str, object]]:
        """One mapping per rule, head and patch or token."""
        return [
            {"rule": rule, "head": column, **record}
            for rule in self.rules
            for column, own in zip(self.columns, (*self.heads[rule], self.means[rule]), strict=True)
            for record in own.records()
        ]

    def rows(self) -> list[tuple[str, list[Panel]]]:
        """The name of each rule and its panels, in the order of `columns`."""
        rows = []
        for rule in self.rules:
            named = zip(self.columns, (*self.heads[rule], self.means[rule]), strict=True)
            panels = [replace(own.panels(column)[0], notes=(), caution="") for column, own in named]
            rows.append((f"rule ({rule})", panels))
        return rows

    def draw(self) -> Drawing:
        """A figure with one row per rule and one column per head."""
        name = next(iter(self.means.values())).names[0]
        alt = f"{', '.join(self.columns)} under the rules {', '.join(self.rules)}, {name}"
        return figures.draw_panel_table(self.rows(), self.columns, title=name, alt=alt)

    def _report(self) -> Report:
        """The grid, and where each map is highest and how much relevance reaches patches."""
        rows = self.rows()
        first = rows[0][1][0]
        cells = [[f"rule ({rule})", *map(describe_map, (*self.heads[rule], self.means[rule]))] for rule in self.rules]
        about = "The highest patch (row, column), and the share of relevance that reaches patches."
        lead = f"{first.model}: relevance redistributed from the readout to the patches, head by head, under each rule."
        facts = collect_facts(*(replace(panels[0], label=f"redistribution, {name}") for name, panels in rows))
        return Report(
            f"Heads and rules: {first.name}",
            [MapGrid(rows, self.columns), DataTable(["", *self.columns], cells, about)],
            lead,
            facts,
        )


def describe_map(explanation: Explanation) -> str:
    (index, _), *_ = explanation.top(1)
    return f"{index} {float(explanation.scores[0].sum()):.0%}"
