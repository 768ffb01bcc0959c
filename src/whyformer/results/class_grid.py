"""A class grid: several classes, each explained by several methods.

    explain_classes(model, "cat-and-dog.jpg", ["transformer_attribution", "rollout"], classes=2).save("classes.html")

A class-specific method must highlight something else for another class; the grid shows at once whether it does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whyformer._model import UNNAMED_IMAGE
from whyformer.results.comparison import Comparison
from whyformer.results.result import Result, choose_formats
from whyformer.show import figures, page, report
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.score_rows import ScoreRow
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import explain_colours, name_with_probability

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

    def render(self, screen: Screen | None = None) -> str:
        """The comparisons as text for a terminal, one after the other."""
        return "\n\n".join(comparison.render(screen) for comparison in self)

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

    def to_html(self) -> str:
        return "".join(comparison.to_html() for comparison in self)

    def _list_rows(self) -> Iterator[ScoreRow]:
        for comparison in self:
            yield from comparison._list_rows()

    def _make_page(self) -> str:
        """A page with one section per example."""
        examples = self.examples()
        firsts = [classes[0][1][0] for classes in examples]
        sections = []
        for classes, first in zip(examples, firsts, strict=True):
            figure = report.arrange_figures([page.make_original_figure(first)]) if first.image is not None else None
            sections.append((first.name, first.name, [figure, page.make_panel_table(classes, self.labels)]))
        colours = explain_colours(panel.signed for panel in examples[0][0][1])
        lead = f"{firsts[0].model}: its likeliest classes, each explained by every method. {READING_HINT} {colours}"
        about = page.collect_facts(*examples[0][0][1])
        return report.make_example_page("Class by class", sections, lead=lead, about=about)


def format_class_title(panels: Mapping[str, Panel]) -> str:
    target = next(iter(panels.values())).target
    return name_with_probability(target)
