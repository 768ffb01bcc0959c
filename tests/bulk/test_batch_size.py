"""The batch size under a budget of memory."""

import subprocess
import sys

import pytest
import torch

from whyformer._bulk import trial
from whyformer._bulk.trial import choose_power_of_two, find_batch_size

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("alone", "several", "budget", "expected"),
    [
        (100, 800, 100, 1),  # 100 bytes an item
        (100, 800, 199, 1),
        (100, 800, 200, 2),
        (100, 800, 790, 4),
        (100, 800, 800, 8),
        (100, 800, 10**9, 256),
        (100, 800, 5, 1),  # not even one fits: try it
        (100, 100, 10**9, 256),
    ],
)
def test_the_largest_power_of_two_by_hand(alone, several, budget, expected):
    assert choose_power_of_two(alone, several, budget) == expected


def test_on_a_processor_nothing_is_measured_without_a_budget():
    assert find_batch_size(lambda count: pytest.fail("ran"), CPU, None) == 16


def test_the_budget_decides(monkeypatch):
    sizes = []
    monkeypatch.setattr(trial, "measure_peak_memory", lambda run, device: (run(), 1000 * sizes[-1])[1])
    assert find_batch_size(sizes.append, CPU, 5000) == 4
    assert sizes == [1, 1, 8]


def test_where_several_do_not_fit_one_is_taken(monkeypatch):
    def run(count):
        if count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert find_batch_size(run, CPU, 10**9) == 1


def test_the_peak_is_that_of_the_run():
    """100 MB, in a process of its own: in an old one, the allocator may have kept as much."""
    code = (
        "import torch; from whyformer._plain.peak_memory import measure_peak_memory;"
        "print(measure_peak_memory(lambda: torch.ones(25_000_000).sum(), torch.device('cpu')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if printed == "None":
        pytest.skip("this system does not tell the peak of memory")
    assert 80e6 < int(printed) < 150e6
