"""Counts what a JSON text holds before it is parsed: a few megabytes of empty lists would become half a gigabyte."""

import re

from whyformer._page.problems import PageProblem

MOST_PARTS = 250_000  # an answer and the tokens that are hidden may have 100,000 numbers each
DEEPEST = 64
PART = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{},]', re.DOTALL)  # a text, what opens or closes, what stands between
STEPS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def check_json_size(text: bytes) -> None:
    """Refuse more values, or deeper ones, than any request of the page has. Whether it is JSON is found out later."""
    parts = depth = 0
    for found in PART.finditer(text):
        step = STEPS.get(found[0][:1], 0)
        depth, parts = depth + step, parts + (step >= 0)
        if depth > DEEPEST:
            raise PageProblem("E_USAGE", f"The body is nested more than {DEEPEST} levels deep.")
        if parts > MOST_PARTS:
            raise PageProblem("E_PAGE_BODY", f"The body has more than {MOST_PARTS:,} texts, lists, objects and commas.")
