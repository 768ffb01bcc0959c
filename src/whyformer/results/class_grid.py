"""A class grid: several classes, each explained by several methods.

    explain_classes(model, "cat-and-dog.jpg", ["transformer_attribution", "rollout"], classes=2).save("classes.html")

A class-specific method must highlight something else for another class; the grid shows at once whether it does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from whyformer._model import UNNAMED_IMAGE
from whyformer.results.comparison import Comparison, list_comparison_rows
from whyformer.results.result import DRAWING_FORMATS, Result
from whyformer.show import figures, page, report, score_rows
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_target, explain_colours, format_probability

READING_HINT = "A class-specific method highlights something else for another class."


@dataclass(frozen=True, eq=False, repr=False)
class ClassGrid(Result):
    """One comparison of the methods for each class, the likeliest class first.

    Files: .html, .png, .svg and .pdf show the grid; .csv and .parquet have the scores as a table.
    """

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".html": lambda grid: class_grid_to_html(grid),
        **DRAWING_FORMATS,
        ".csv": lambda grid: score_rows.as_csv(list_class_rows(grid)),
        ".parquet": lambda grid: score_rows.as_parquet(list_class_rows(grid)),
    }

    comparisons: tuple[Comparison, ...]

    def __len__(self) -> int:
        return len(self.comparisons)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    def __getitem__(self, place: int) -> Comparison:
        return self.comparisons[place]

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


def format_class_title(panels: Mapping[str, Panel]) -> str:
    target = next(iter(panels.values())).target
    return f"{describe_target(target)}, {format_probability(target)}"


# --- files ------------------------------------------------------------------------------------------------------------


def class_grid_to_html(grid: ClassGrid) -> bytes:
    """A page with one section per example."""
    examples = grid.examples()
    firsts = [classes[0][1][0] for classes in examples]
    anchors = report.make_anchors(panel.name for panel in firsts)
    parts = []
    for anchor, classes, first in zip(anchors, examples, firsts, strict=True):
        figure = report.arrange_figures([page.make_original_figure(first)]) if first.image is not None else None
        parts.append(
            report.make_section(first.name, figure, page.make_panel_table(classes, grid.labels), anchor=anchor)
        )
    colours = explain_colours(panel.signed for panel in examples[0][0][1])
    lead = f"{firsts[0].model}: its likeliest classes, each explained by every method. {READING_HINT} {colours}"
    about = page.collect_facts(*examples[0][0][1])
    return report.make_page("Class by class", parts, lead=lead, about=about, contents=anchors).encode("utf-8")


def list_class_rows(grid: ClassGrid) -> Iterator[dict[str, Any]]:
    for comparison in grid:
        yield from list_comparison_rows(comparison)
