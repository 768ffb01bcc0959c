"""Results that a program computes again: which, and that nothing but memory changes."""

import pytest
import torch

from whyformer._engine.program import program
from whyformer._engine.program import rematerialise as recompute
from whyformer._engine.program.program import RecordedProgram
from whyformer._engine.program.recorder import Recorder

WIDTH = 8


@pytest.fixture(autouse=True)
def compute_all_again(monkeypatch):
    monkeypatch.setattr(program, "RECOMPUTED_ABOVE", 0)
    monkeypatch.setattr(program, "LARGE_PART", 1)
    monkeypatch.setattr(recompute, "SMALLEST", 1)
    monkeypatch.setattr(recompute, "APART", 8)


def read_later(states):
    """A product of sums, each state once, long after all of them were made, the last one first."""
    total = states[0].sum()
    for _ in range(12):
        total = total.cos()
    for state in reversed(states):
        total = total * state.sum()
    return total


def record_work(work, x, weights=(), *, repeats_products=False):
    recorder = Recorder({"x": x}, weights)
    with recorder:
        result = work(x)
    return RecordedProgram(recorder, [recorder.require_slot(result)], repeats_products=repeats_products)


def count_steps(made, name):
    return sum(str(step.function) == name for step in made.steps)


def test_a_residual_stream_is_added_up_again_a_few_sums_at_a_time():
    def work(x):
        states = [x]
        for k in range(1, 9):
            states.append(states[-1] + x / k)
        return read_later(states)

    x = torch.rand(4, WIDTH, dtype=torch.double)
    made = record_work(work, x)
    assert torch.equal(made.run({"x": x})[0], work(x))
    assert 8 < count_steps(made, "aten.add.Tensor") <= 8 * (1 + recompute.DEEPEST_SUM)


def test_a_product_of_a_held_tensor_is_computed_again_if_it_keeps_the_size():
    torch.manual_seed(0)
    square, wide, narrow = (torch.rand(WIDTH, out, dtype=torch.double) for out in (WIDTH, 4 * WIDTH, WIDTH // 2))

    def work(x):
        held = x.exp()
        return read_later([held, held @ square, held @ wide, held @ narrow])

    x = torch.rand(4, WIDTH, dtype=torch.double)
    plain, again = (record_work(work, x, [square, wide, narrow], repeats_products=flag) for flag in (False, True))
    assert torch.equal(plain.run({"x": x})[0], work(x))
    assert torch.equal(again.run({"x": x})[0], work(x))
    assert count_steps(plain, "aten.mm.default") == 3
    assert count_steps(again, "aten.mm.default") == 5  # all but the one that makes a tensor smaller
    assert again.peak < plain.peak
