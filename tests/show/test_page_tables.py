"""Tables on a page: wide ones become cards in a narrow box, and every cell keeps the heading of its column."""

import html5lib
import pytest

from whyformer.show.html import Html
from whyformer.show.page_tables import FOLD_WIDTHS, choose_fold, make_fold_css, make_table


def parse(markup):
    return html5lib.parse(markup, namespaceHTMLElements=False)


def fold_of(markup):
    return int(next(parse(markup).iter("table")).get("class").removeprefix("fold-"))


def test_a_cell_names_its_column():
    tree = parse(make_table(["method", "mean <b>", Html("<i>n</i>")], [["a", 1.5, 3]]))
    assert [cell.get("data-label") for cell in tree.iter("td")] == ["mean <b>", "n"]


def test_a_wider_table_folds_in_a_wider_box():
    narrow = make_table(["token", "score"], [["film", 0.25]])
    wide = make_table(["method", *(f"column {i}" for i in range(8))], [["attnlrp", *range(8)]])
    assert fold_of(narrow) == FOLD_WIDTHS[0] < fold_of(wide) < FOLD_WIDTHS[-1]
    assert fold_of(make_table([str(i) for i in range(200)], [range(200)])) == FOLD_WIDTHS[-1]


def test_long_texts_wrap_and_do_not_make_a_table_fold_earlier():
    assert fold_of(make_table(["a", "why"], [["x", "word " * 30]])) == fold_of(
        make_table(["a", "why"], [["x", "w " * 15]])
    )


def test_markup_does_not_count_as_width():
    badge = Html('<span class="verdict good">supported</span>')
    assert fold_of(make_table(["a", "b"], [["x", badge]])) == FOLD_WIDTHS[0]
    assert next(parse(make_table(["a", "b"], [["x", badge]])).iter("td")).get("class") == "short"


@pytest.mark.parametrize("width", [1.0, 20.0, 33.3, 400.0])
def test_every_fold_has_its_rules(width):
    assert f".{choose_fold(width)}{{" in make_fold_css()
