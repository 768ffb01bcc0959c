"""The page of a training run: for each watched example its answer, and what the model looked at, step by step."""

from collections.abc import Sequence

from whyformer.integrations.watch import Look
from whyformer.show import page
from whyformer.show.blocks import DataTable, Methods, Notes, PageSection, Report
from whyformer.show.page_facts import collect_facts
from whyformer.show.wording import describe_target, format_certainty, shorten_text

MOST_STEPS = 8  # with a map each; the table has all


def make_run_page(looks: Sequence[Look]) -> str:
    """The whole file. Maps are those of the first and the last look and of some between, evenly spaced."""
    panels = [look.explanation.panels() for look in looks]
    shown = sorted({round(i * (len(looks) - 1) / (MOST_STEPS - 1)) for i in range(MOST_STEPS)})
    sections = []
    for example, last in enumerate(panels[-1]):
        rows = [describe_step(look, example) for look in looks]
        maps = {name_step(looks[i], example): panels[i][example] for i in reversed(shown)}
        head = ("step", "explained", "probability", "evidence moved since")
        table = DataTable(head, rows, shorten_text(last.title, 60))
        sections.append(PageSection(shorten_text(last.title, 120), [table, Methods(maps)], is_example=True))
    first = panels[-1][0]
    lead = f"{len(looks)} looks at {len(panels[-1])} examples while {first.model} was trained, by {first.label}."
    jumps = [look.message for look in looks if look.message]
    return page.make_report_page(Report("A training run", [Notes(jumps), *sections], lead, collect_facts(first)))


def name_step(look: Look, example: int) -> str:
    return f"step {look.step}: {describe_target(look.explanation.targets[example])}"


def describe_step(look: Look, example: int) -> tuple[int, str, str, str]:
    target = look.explanation.targets[example]
    moved = "" if look.moved is None else f"{look.moved[example]:.0%}"
    return look.step, describe_target(target), format_certainty(target), moved
