"""What is needed to check or repeat what a page shows: the model, its weights, every method's settings, the versions.

    list_facts("pets", {"rollout": {"start": 0}}, {"weights": "sha256 ...", "torch": "2.13"})

A model is named as the user named it, never by an absolute path. A page has the date of the day on which it is written:

    with date_pages("2026-11-16"):  # another date, or with "" none
        e.save("why.html")
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from typing import Any

from whyformer.show.html import Content, Html, join_html, make_element
from whyformer.show.panel import Panel

PAGE_DATE: ContextVar[str | None] = ContextVar("PAGE_DATE", default=None)


def add_page_date(facts: Mapping[str, Content]) -> dict[str, Content]:
    """The facts of a page with the date that pages get here."""
    asked = PAGE_DATE.get()
    day = date.today().isoformat() if asked is None else asked
    return {**facts, **({"date": day} if day else {})}


@contextmanager
def date_pages(day: str) -> Iterator[None]:
    """Put this date on every page that is written inside the block."""
    token = PAGE_DATE.set(day)
    try:
        yield
    finally:
        PAGE_DATE.reset(token)


def collect_facts(*panels: Panel) -> dict[str, Content]:
    """Facts for the footer of a page: one panel for each method on it."""
    return list_facts(panels[0].model, {panel.label: panel.settings for panel in panels}, panels[0].versions)


def list_facts(
    model: str, methods: Mapping[str, Mapping[str, Any]], versions: Mapping[str, str], **more: Content
) -> dict[str, Content]:
    """The facts for the footer of a page, by name; empty ones are left out."""
    weights = versions.get("weights", "")
    made_with = ", ".join(f"{name} {value}" for name, value in versions.items() if name != "weights")
    title = "method" if len(methods) == 1 else "methods"
    facts: dict[str, Content] = {title: ", ".join(methods), "settings": format_settings(methods)}
    facts |= {"model": model, "weights": weights, "made with": made_with, **more}
    return {name: value for name, value in facts.items() if value}


def format_settings(methods: Mapping[str, Mapping[str, Any]]) -> str | Html:
    """The settings of the only method in one line, or a line for each method that has any."""
    written = {
        label: ", ".join(f"{name}={value}" for name, value in settings.items()) for label, settings in methods.items()
    }
    if len(written) == 1:
        return next(iter(written.values()))
    lines = [make_element("div", make_element("code", label), f": {line}") for label, line in written.items() if line]
    return join_html(lines)
