"""The grid pointing game: images of one colour each, so that a tile is identified by its colour."""

from dataclasses import replace

import pytest
import torch
from fake_probe import TARGET, picture, text
from fake_rerun import FakeRerun

from whyformer.errors import InputError, MetricError
from whyformer.metrics import grid_pointing_game
from whyformer.metrics.grid import find_grid_partners, tile_coverage, tile_share


def played(make, classes=(0, 1, 2, 3), side=4, tiles=2):
    pictures = torch.arange(1.0, 1 + len(classes), dtype=torch.float64)[:, None, None, None].expand(-1, 1, side, side)
    targets = tuple(replace(TARGET, index=c) for c in classes)
    e = picture(torch.zeros(len(classes), side * side), side, side, targets=targets)
    again = FakeRerun(e, pictures.clone(), make)
    return grid_pointing_game(e, again, tiles=tiles), again


def own_tile(inputs, of, **_):
    """1 where the grid shows the image itself."""
    return (inputs[:, 0].round() == (of + 1.0)[:, None, None]).double().flatten(1)


def test_perfect_even_and_inverted_maps():
    assert played(own_tile)[0].tolist() == [1.0] * 4
    assert played(lambda inputs, **_: torch.ones(len(inputs), 16))[0].tolist() == [0.25] * 4
    assert played(lambda **given: 1 - own_tile(**given))[0].tolist() == [0.0] * 4


def test_the_grid_holds_the_picture_and_others_of_other_classes_each_once():
    seen = []
    played(lambda inputs, of, **_: (seen.append(inputs), own_tile(inputs, of))[1])
    for grid in seen[0][:, 0]:
        assert sorted(grid[::2, ::2].round().flatten().tolist()) == [1.0, 2.0, 3.0, 4.0]


def test_the_target_stays_that_of_the_picture():
    _, again = played(own_tile)
    assert again.asked == [{"target": None, "model": None, "of": [0, 1, 2, 3]}]


def test_undefined_where_other_classes_are_missing_or_there_is_no_mass():
    assert played(own_tile, classes=(0, 0, 1, 2))[0].isnan().tolist() == [True, True, False, False]
    assert played(own_tile, classes=(0,))[0].isnan().all()
    assert played(lambda inputs, **_: -torch.ones(len(inputs), 16))[0].isnan().all()


def test_partners_follow_in_the_order_of_the_batch():
    e = picture(torch.zeros(5, 4), 2, 2, targets=tuple(replace(TARGET, index=c) for c in (0, 1, 0, 2, 3)))
    assert find_grid_partners(e, 3, 3) == [4, 0, 1]
    assert find_grid_partners(e, 0, 3) == [1, 3, 4]
    assert find_grid_partners(e, 0, 4) is None


def test_a_patch_on_the_edge_counts_for_both_sides():
    assert tile_coverage(3, 0, 2).tolist() == [1.0, 0.5, 0.0]
    assert tile_coverage(3, 1, 2).tolist() == [0.0, 0.5, 1.0]
    e = picture([[1.0] * 9], 3, 3)
    assert tile_share(e, 0, 3, 2) == pytest.approx(2.25 / 9, abs=1e-12)


def test_tiles_and_pictures_are_checked():
    with pytest.raises(MetricError, match="tiles must be a whole number >= 2"):
        played(own_tile, tiles=1)
    e = text([[1.0, 2.0]])
    with pytest.raises(InputError, match="needs images"):
        grid_pointing_game(e, FakeRerun(e, torch.zeros(1, 4, dtype=torch.long), own_tile))
