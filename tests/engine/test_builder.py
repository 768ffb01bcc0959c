"""Which uses of rotary positions belong together."""

import torch

from whyformer._engine.capture.builder import group_uses

COSINES, SINES = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.8])


def test_queries_and_keys_of_a_layer_use_the_same_table():
    """Steps 1 to 4 are one layer, 5 to 8 the next; the same numbers in another tensor are the same table."""
    order = (COSINES, SINES, COSINES.clone(), SINES.clone())
    tables = {1 + step: ("layer.0", table) for step, table in enumerate(order)}
    tables |= {5 + step: ("layer.1", table) for step, table in enumerate(order)}
    assert group_uses([1, 2, 3, 4, 5, 6, 7, 8], tables) == [[1, 3], [2, 4], [5, 7], [6, 8]]


def test_added_positions_stand_alone():
    """They are in no table."""
    assert group_uses([2, 5], {}) == [[2], [5]]
    assert group_uses([2, 5, 6], {5: ("", COSINES), 6: ("", COSINES[:1])}) == [[2], [5], [6]]
