"""A page says what is needed to check it: the settings of every method on it; a date only where it is asked for."""

import re
from datetime import date

from sample_explanations import explain_image, explain_text

from whyformer.results.class_grid import ClassGrid
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.show import report
from whyformer.show.page_facts import list_facts


def footer_of(result):
    page = result.formats[".html"](result).decode()
    return re.sub(r"<[^>]*>", " ", page[page.index("<footer>") :])


def test_a_comparison_lists_the_settings_of_every_method():
    cuts = [(0, 3), (4, 8)]
    first = explain_text("not film", cuts, [1.0, 0.5], method="attcat", settings={"at": "input"})
    second = explain_text("not film", cuts, [1.0, 0.5], method="rollout", settings={"start": 7})
    compared = Comparison({"attcat": first, "rollout": second})
    for result in (compared, ClassGrid((compared, compared))):
        assert "at=input" in footer_of(result) and "start=7" in footer_of(result)


def test_a_page_names_the_weights():
    e = explain_image(versions={"weights": "sha256 0123abcd", "torch": "2.13"})
    assert "sha256 0123abcd" in footer_of(e) and "torch 2.13" in footer_of(e)


def test_a_page_has_the_date_of_the_day_or_the_one_asked_for():
    made = lambda: Explanation.formats[".html"](explain_image()).decode()  # noqa: E731
    with report.date_pages("2031-02-03"):
        assert "<dt>date</dt><dd>2031-02-03</dd>" in made()
    with report.date_pages(""):
        assert "<dt>date</dt>" not in made()
    assert f"<dt>date</dt><dd>{date.today().isoformat()}</dd>" in made()


def test_empty_facts_are_left_out():
    assert list_facts("tiny", {}, {}) == {"model": "tiny"}
