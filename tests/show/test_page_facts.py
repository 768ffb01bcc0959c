"""A page says what is needed to check it: the settings of every method on it; a date only where it is asked for."""

import re

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


def test_a_page_has_a_date_only_where_it_is_asked_for():
    made = lambda: Explanation.formats[".html"](explain_image()).decode()  # noqa: E731
    plain = made()
    with report.date_pages("2031-02-03"):
        dated = made()
    assert "2031-02-03" in dated and "date" in dated
    assert "2031-02-03" not in plain and made() == plain


def test_empty_facts_are_left_out():
    assert list_facts("tiny", {}, {}) == {"model": "tiny"}
