"""A rule grid: the maps of every head under several rules, of one image.

    compare_redistribution(model, "cat.jpg").save("rules.png")

One row per rule of redistribution, one column per head, then the mean over heads: the figure of Sawaki & Murata, JSAI
2025 (4I1-GS-11-03).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from whyformer.results.explanation import Explanation
from whyformer.results.result import Result, choose_formats
from whyformer.show import figures
from whyformer.show.blocks import DataTable, MapGrid, Report
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import collect_facts
from whyformer.show.panel import Panel

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
