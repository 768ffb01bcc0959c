"""Numbers in words: one that is undefined is never shown as +nan."""

import pytest

from whyformer.show.wording import format_score
from whyformer_papers.reproduction import write_signed


@pytest.mark.parametrize("signed", [True, False])
def test_an_undefined_score_is_a_dash(signed):
    assert format_score(float("nan"), signed=signed) == "–"


def test_an_undefined_correlation_is_said_to_be_one():
    assert (write_signed(float("nan")), write_signed(0.25)) == ("undefined", "+0.25")
