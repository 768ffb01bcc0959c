"""Class discrimination by hand, against scipy, and as the released code has it."""

import pytest
import torch
from fake_probe import FakeProbe, picture, text
from fake_rerun import FakeRerun
from scipy.stats import kendalltau

from whyformer.errors import MetricError
from whyformer.metrics import class_discrimination
from whyformer.metrics._registry import choose_metric, measure

FIRST, SECOND = [[4.0, 3.0, 2.0, 1.0]], [[3.0, 4.0, 2.0, 1.0]]


def measured(first, second, **settings):
    e = text(first)
    other = torch.nn.functional.pad(torch.tensor(second, dtype=torch.float64), (1, 1))
    again = FakeRerun(e, torch.zeros(1, 6, dtype=torch.long), lambda **_: other)
    given = {"explanation": e, "probe": FakeProbe(first), "rerun": again}
    return measure(choose_metric("class_discrimination", settings), given).value.item(), again


def test_tau_by_hand():
    """Six pairs, one turned round: (5 - 1) / 6."""
    value, again = measured(FIRST, SECOND)
    assert value == pytest.approx(4 / 6, abs=1e-12)
    assert again.asked[0]["target"] == [1]  # the other class


def test_tau_b_with_ties_by_hand():
    """4, 3, 2, 1 against 1, 1, 0, 0: four pairs agree, two are tied in one of them: 4 / sqrt(6 * 4)."""
    assert measured(FIRST, [[1.0, 1.0, 0.0, 0.0]])[0] == pytest.approx(4 / 24**0.5, abs=1e-12)


def test_controls():
    """The same map for both classes: 1. The opposite: -1. A map that is the same everywhere: undefined."""
    assert measured(FIRST, FIRST)[0] == pytest.approx(1)
    assert measured(FIRST, [[-x for x in FIRST[0]]])[0] == pytest.approx(-1)
    assert measured(FIRST, [[1.0] * 4])[0] != measured(FIRST, [[1.0] * 4])[0]


def test_random_maps_of_two_classes_lie_around_zero():
    torch.manual_seed(0)
    values = [measured(torch.rand(1, 4), torch.rand(1, 4).tolist())[0] for _ in range(200)]
    assert abs(sum(values) / 200) < 0.1


def test_released_is_tau_of_the_sorted_positions_over_all_tokens():
    """With [CLS] and [SEP] at 0: scores 0 4 3 2 1 0 sort to positions 1 2 3 4 0 5, and 0 3 4 2 1 0 to 2 1 3 4 0 5.
    The released value is the tau of these two lists as they stand."""
    wanted = kendalltau([1, 2, 3, 4, 0, 5], [2, 1, 3, 4, 0, 5]).statistic
    assert measured(FIRST, SECOND, preset="released")[0] == pytest.approx(wanted, abs=1e-12)
    assert wanted == pytest.approx(13 / 15)


def test_another_class_can_be_named_and_one_answer_has_none():
    assert measured(FIRST, SECOND, other=1)[0] == pytest.approx(4 / 6)
    value, again = measured(FIRST, SECOND, other=0)  # its own
    assert value != value and again.asked == []
    with pytest.raises(MetricError, match="'scores', 'positions'"):
        measured(FIRST, SECOND, on="ranks")


def test_patches_of_a_picture():
    e = picture(FIRST, 2, 2)
    again = FakeRerun(e, torch.zeros(1, 1, 2, 2), lambda **_: torch.tensor(SECOND))
    assert class_discrimination(e, FakeProbe(FIRST, grid=(2, 2)), again).item() == pytest.approx(4 / 6)
