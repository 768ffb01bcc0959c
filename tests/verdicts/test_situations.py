"""What the sentences above the numbers say in the situations of situations.py."""

import pytest
from verdicts.situations import SITUATIONS, find_faults


@pytest.mark.parametrize("one", SITUATIONS, ids=[one.name for one in SITUATIONS])
def test_the_sentences_say_no_more_than_was_measured(one, tmp_path):
    assert not find_faults(one, one.make(tmp_path))


def test_there_are_at_least_forty_situations():
    names = [one.name for one in SITUATIONS]
    assert len(names) == len(set(names)) >= 40
