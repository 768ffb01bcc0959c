"""Batches of similar length: every example once, and no example alone where it can be avoided."""

import pytest

from whyformer._audit.examples import BATCH_TOKENS, MAX_EXAMPLES, group_by_length


def test_two_long_texts_share_a_batch():
    """Two batches of which the last has one example: they become one."""
    assert group_by_length([1500, 1600], "cpu") == [[0, 1]]
    assert group_by_length([1600, 20, 1500], "cpu") == [[1], [2, 0]]


@pytest.mark.parametrize("lengths", [[5], [], [3, 900, 2, 2047, 1, 5000], [7] * 200, list(range(1, 400, 3))])
def test_every_example_is_in_one_batch(lengths):
    batches = group_by_length(lengths, "cpu")
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches[:-1]:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= BATCH_TOKENS["cpu"]
        assert len(batch) <= MAX_EXAMPLES
    assert len(batches) <= 1 or len(batches[-1]) > 1
