"""The contract that every registered method has to meet on every machine: the same scores.

The same means within 1e-4 of the largest score, and the same five highest but for ties within that, whatever the
instruction set, the number of threads and the size of the batch. What is explained, and how, is in machines.py.
"""

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from machines import (
    ILL_CONDITIONED,
    OLDEST,
    RUNS,
    SETTINGS,
    SUBJECTS,
    Run,
    can_run,
    compute_scores,
    has_other_top,
    measure_difference,
    measure_differences,
    start_run,
)

from whyformer._explain import default_method
from whyformer.methods._registry import METHODS

ROOT = Path(__file__).parents[1]
COMMAND = "run: python benchmarks/every_machine.py --methods"
QUICK_METHODS = sorted(name for name, method in METHODS.items() if method.is_quick)
STABLE = sorted(METHODS.keys() - ILL_CONDITIONED.keys())
SHIPPED = ["demo/pets", "demo/sentiment", "demo/decoder"]  # an image, a text, a prompt
FEW = 2  # examples


# --- another instruction set -----------------------------------------------------------------------------------------


@cache
def differences_from_here():
    """Examples alone in this process, and in a batch in another one, with other instructions."""
    is_oldest = all(os.environ.get(name) == value for name, value in OLDEST.items())
    other_settings = [name for name in ("avx2" if is_oldest else "oldest", "newest") if can_run(SETTINGS[name])]
    if not other_settings:
        pytest.skip("this processor has only the oldest instructions")
    options = ["--count", str(FEW), "--subjects", *SHIPPED, "--methods", *QUICK_METHODS]
    with TemporaryDirectory() as folder:
        other = start_run(Run(other_settings[0], together=True), Path(folder) / "other.npz", *options)
        here = compute_scores(Run("newest"), SHIPPED, QUICK_METHODS, FEW)
        assert other.wait() == 0
        return measure_differences([here, dict(np.load(Path(folder) / "other.npz"))])


@pytest.mark.parametrize("subject", SHIPPED)
@pytest.mark.parametrize("method", [name for name in QUICK_METHODS if name in STABLE])
def test_gives_the_same_scores_with_other_instructions(method, subject):
    """Quick methods on the shipped models; the rest is slow."""
    found = {key: d for key, d in differences_from_here().items() if key.split()[:2] == [method, subject]}
    assert len(found) >= FEW
    assert not {key: d for key, d in found.items() if not d.is_none}


@cache
def all_differences():
    with TemporaryDirectory() as folder:
        found = []
        for number, run in enumerate(run for run in RUNS if can_run(SETTINGS[run.setting])):
            path = Path(folder) / f"{number}.npz"
            assert start_run(run, path).wait() == 0
            found.append(dict(np.load(path)))
    return measure_differences(found)


@pytest.mark.slow
@pytest.mark.parametrize("method", STABLE)
def test_gives_the_same_scores_on_every_machine(method):
    found = {key: d for key, d in all_differences().items() if key.split()[0] == method}
    assert found
    assert not {key: d for key, d in found.items() if not d.is_none}


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(ILL_CONDITIONED))
def test_an_ill_conditioned_method_is_one(method):
    """So that the list holds no method that was mended."""
    assert any(not d.is_none for key, d in all_differences().items() if key.split()[0] == method)


# --- which methods may depend on the machine -------------------------------------------------------------------------


def test_only_the_rules_of_lrp_may_be_ill_conditioned():
    assert all(METHODS[name].recipe in ("chefer", "epsilon", "gamma") for name in ILL_CONDITIONED)


def test_no_default_is_ill_conditioned():
    defaults = {*default_method.DEFAULT_METHODS.values(), *default_method.OTHER_CLASS_METHODS}
    assert not defaults & ILL_CONDITIONED.keys()


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_the_difference_is_a_share_of_the_largest_magnitude():
    """0.02 between the second and the third run, of 4."""
    found = measure_difference([np.array([-4.0, 1.0]), np.array([-4.0, 1.01]), np.array([-4.0, 0.99])])  # three runs
    assert found.largest == pytest.approx(0.005)
    assert not found.is_none
    assert measure_difference([np.array([-4.0, 1.0]), np.array([-4.0, 1.0003])]).is_none


def test_maps_of_zeros_are_the_same():
    assert measure_difference([np.zeros(3), np.zeros(3)]).is_none
    assert not measure_difference([np.zeros(3), np.array([0, 0, 1e-9])]).is_none


def test_other_high_scores_are_a_difference_unless_they_are_tied():
    """The fifth and sixth change places: 1.0 and 0.9 do not, 1.0 and 0.99999 do."""
    a = np.array([5, 4, 3, 2, 1.0, 0.9])
    b = np.array([5, 4, 3, 2, 0.9, 1.0])
    assert has_other_top(a, b, tie=5e-4)
    assert not has_other_top(a, a[::-1][::-1], tie=0)
    assert not has_other_top(np.array([5, 4, 3, 2, 1.0, 0.99999]), np.array([5, 4, 3, 2, 0.99999, 1.0]), tie=5e-4)
    assert not has_other_top(a, np.array([4, 5, 3, 2, 1.0, 0.9]), tie=0)  # the same five, in another order


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def every_machine(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import every_machine

    return every_machine


def test_the_page_is_not_stale(every_machine):
    """Its sentences come from the program; the numbers are those that were measured."""
    assert every_machine.PAGE.read_text() == every_machine.make_page(*every_machine.read_page()), f"{COMMAND} chance"


def test_the_page_has_every_method(every_machine):
    rows, _ = every_machine.read_page()
    assert rows.keys() == METHODS.keys(), f"{COMMAND} {' '.join(METHODS.keys() - rows.keys())}"


def test_every_model_is_in_a_column(every_machine):
    assert sorted(name for names in every_machine.COLUMNS.values() for name in names) == sorted(SUBJECTS)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_page_shows_a_difference_only_where_a_method_is_ill_conditioned(method, every_machine):
    row = every_machine.read_page()[0][method]
    assert all(map(every_machine.is_same, row)) is (method not in ILL_CONDITIONED), f"{COMMAND} {method}"
