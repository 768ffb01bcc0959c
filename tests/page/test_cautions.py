"""Signs of conservation: the page shows a caution exactly where the check gives one."""

from types import SimpleNamespace

import pytest

from whyformer._page.answers.explaining import describe_cautions

FINE = "Relevance totals balance (error 2e-08): 101% of the relevance sent reached the input."
GROWN = (
    "Relevance totals balance (error 2e-08), but relevance is not conserved: 40 times the relevance reached the input."
)
LOST = "Relevance totals do not balance: 1.0e-01 of the relevance is missing in layer 2."


@pytest.mark.parametrize(
    ("verdict", "is_conserved", "caution"), [(FINE, True, ""), (GROWN, True, GROWN), (LOST, False, LOST)]
)
def test_a_caution_is_given_where_relevance_is_lost_or_created(verdict, is_conserved, caution):
    health = SimpleNamespace(verdict=verdict, is_conserved=is_conserved)
    cautions = describe_cautions(SimpleNamespace(details={}, health=health))
    assert cautions["conservation"] == verdict
    assert cautions["conservation_caution"] == caution
