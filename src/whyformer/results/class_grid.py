"""Classes side by side: what each of several methods says about each of the classes a model thinks of first.

    sheet(model, "cat-and-dog.jpg", ["transformer_attribution", "rollout"], classes=2).save("sheet.html")

A method that explains a class must look elsewhere when it is asked about another one; on a sheet that is seen at once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whyformer._engine.record import record
from whyformer._engine.target import read_logits
from whyformer._model.model import EncodedBatch, Model
from whyformer._plain import archive
from whyformer.errors import TargetError
from whyformer.results.comparison import Comparison, compare
from whyformer.results.explanation import MethodLike, ModelLike, as_model
from whyformer.show import figures, page, report, score_rows
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_target, format_certainty

DEFAULT_METHODS = ("transformer_attribution", "grad_cam", "attcat", "lrp", "rollout")


@dataclass(frozen=True, eq=False, repr=False)
class ClassGrid:
    """One comparison of the methods for each class, the likeliest class first."""

    comparisons: tuple[Comparison, ...]

    def __len__(self) -> int:
        return len(self.comparisons)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    def __getitem__(self, place: int) -> Comparison:
        return self.comparisons[place]

    @property
    def labels(self) -> tuple[str, ...]:
        return self.comparisons[0].labels

    def __repr__(self) -> str:
        return f"<Sheet of {len(self)} classes by {make_visible(', '.join(self.labels))}>"

    def __str__(self) -> str:
        return "\n\n".join(str(comparison) for comparison in self)

    def examples(self) -> list[list[tuple[str, list[Panel]]]]:
        """For each example its classes, and for each class what every method says."""
        found = [comparison.panels() for comparison in self]
        return [
            [(format_class_title(cases[example]), list(cases[example].values())) for cases in found]
            for example in range(len(found[0]))
        ]

    def draw(self) -> Drawing:
        """Classes in rows, methods in columns."""
        examples = self.examples()
        several = len(examples) > 1
        lines = [
            (f"{cases[0].name}: {name}" if several else name, cases) for classes in examples for name, cases in classes
        ]
        title = "" if several else next(iter(self[0])).names[0]
        alt = f"{', '.join(self.labels)} for {'; '.join(name for name, _ in lines)}"
        return figures.draw_panel_table(lines, self.labels, title=title, alt=alt)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file: .html, .png, .svg, .pdf to be looked at, .csv or .parquet for the numbers."""
        archive.write_file(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    def _repr_html_(self) -> str:
        return "".join(comparison._repr_html_() for comparison in self)


def format_class_title(cases: dict[str, Panel]) -> str:
    target = next(iter(cases.values())).target
    return f"{describe_target(target)}, {format_certainty(target).removesuffix(', not what the model answers')}"


def explain_classes(
    model: ModelLike,
    inputs: Any,
    methods: Literal["quick", "all"] | MethodLike | Sequence[MethodLike] = DEFAULT_METHODS,
    *,
    classes: int | Sequence[int | str] = 3,
    contrast: bool = False,
) -> ClassGrid:
    """Several classes, each under several methods.

    classes: how many of the likeliest, or which. contrast: explain each class rather than the strongest of the others.
    """
    model = as_model(model)
    encoded = model.encode(inputs)
    order = rank_classes(model, encoded)
    wanted = choose_classes(order, classes)
    found = []
    for targets in wanted:
        against = find_strongest_others(order, targets, model) if contrast else None
        found.append(compare(model, encoded, methods, target=targets, versus=against))
    return ClassGrid(tuple(found))


def rank_classes(model: Model, encoded: EncodedBatch) -> list[list[int]]:
    """The classes of each example, likeliest first."""
    logits = record(model, encoded, keep={"mask"}).logits
    answers, _, _ = read_logits(encoded, logits)
    return answers.argsort(dim=-1, descending=True, stable=True).tolist()


def choose_classes(order: list[list[int]], classes: int | Sequence[int | str]) -> list[list[Any]]:
    """For each row of the sheet, the class of every example."""
    if not isinstance(classes, int):
        if not classes:
            raise TargetError("No classes to explain. Name some, or say how many of the likeliest.")
        return [[one] * len(order) for one in classes]
    if not 1 <= classes <= len(order[0]):
        raise TargetError(f"The likeliest {classes} classes cannot be had; this model has {len(order[0])}.")
    return [[likeliest[place] for likeliest in order] for place in range(classes)]


def find_strongest_others(order: list[list[int]], targets: list[Any], model: Model) -> list[int]:
    """For each example the likeliest class that is not the target."""
    labels = model.labels or ()
    indices = [labels.index(t) if isinstance(t, str) and t in labels else t for t in targets]
    return [next(i for i in likeliest if i != own) for likeliest, own in zip(order, indices, strict=True)]


# --- files ------------------------------------------------------------------------------------------------------------


def class_grid_to_html(made: ClassGrid) -> bytes:
    examples = made.examples()
    firsts = [classes[0][1][0] for classes in examples]
    titles = report.make_anchors(case.name for case in firsts)
    parts = []
    for anchor, classes, first in zip(titles, examples, firsts, strict=True):
        figure = report.arrange_figures([page.make_original_figure(first)]) if first.image is not None else None
        parts.append(
            report.make_section(first.name, figure, page.make_panel_table(classes, made.labels), anchor=anchor)
        )
    lead = f"{firsts[0].model}: the classes it thinks of first, each under every method. {READING_HINT}"
    about = page.collect_facts(firsts[0]) | {"method": ", ".join(made.labels)}
    return report.make_page("Class by class", parts, lead=lead, about=about, contents=titles).encode("utf-8")


READING_HINT = "A method that explains a class looks elsewhere when it is asked about another one."


def list_class_rows(made: ClassGrid) -> Iterator[dict[str, Any]]:
    for comparison in made:
        for label, e in comparison.explanations.items():
            yield from score_rows.list_score_rows(e.panels(label))


FORMATS: dict[str, Callable[[ClassGrid], bytes]] = {
    ".html": class_grid_to_html,
    ".png": lambda s: s.draw().png(),
    ".svg": lambda s: s.draw().svg().encode("utf-8"),
    ".pdf": lambda s: s.draw().pdf(),
    ".csv": lambda s: score_rows.as_csv(list_class_rows(s)),
    ".parquet": lambda s: score_rows.as_parquet(list_class_rows(s)),
}
