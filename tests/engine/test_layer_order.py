"""The order of the steps of a program: by hand, and random programs that write in place give the same in any order."""

import random

import pytest
import torch

from whyformer._engine.program import program
from whyformer._engine.program import rematerialise as layer_order
from whyformer._engine.program.program import RecordedProgram, find_first_use
from whyformer._engine.program.recorder import Recorder
from whyformer._engine.program.rematerialise import find_steps_before, order_by_layer


def record_work(work, x, target):
    recorder = Recorder({"x": x, "target": target}, ())
    with recorder:
        result = work(x, target)
    return recorder, result


def test_passes_take_turns_layer_by_layer(monkeypatch):
    """Two passes, each from the second layer to the first."""
    monkeypatch.setattr(layer_order, "LARGE", 1)

    def work(x, target):
        first = x.exp()
        second = first.sin()
        gradient = (target * second).cos() * first
        relevance = (target - second).tanh() - first
        return gradient + relevance

    recorder, _ = record_work(work, torch.ones(3), torch.ones(3))
    begins = find_first_use(recorder.steps, recorder.inputs["target"])
    ordered = order_by_layer(recorder.steps, recorder.memory, recorder.sizes, begins)
    names = [str(step.function).split(".")[1] for step in ordered]
    assert names == ["exp", "sin", "mul", "cos", "sub", "tanh", "mul", "sub", "add"]


def test_a_step_runs_after_those_that_use_what_it_writes_into():
    def work(x, target):
        made = x * 2  # 0
        seen = made + 1  # 1
        made.add_(5)  # 2
        return seen * made  # 3

    recorder, _ = record_work(work, torch.ones(2), torch.ones(2))
    assert find_steps_before(recorder.steps, recorder.memory) == [set(), {0}, {0, 1}, {0, 1, 2}]


@pytest.mark.parametrize("seed", range(20))
def test_any_program_gives_the_same_in_its_new_order(monkeypatch, seed):
    monkeypatch.setattr(layer_order, "LARGE", 1)
    monkeypatch.setattr(program, "RECOMPUTED_ABOVE", -1)
    rng = random.Random(seed)

    def work(x, target):
        values = [x * 1.0]
        for at in range(30):
            one, other = rng.choice(values), rng.choice(values)
            if at > 8:
                other = rng.choice([other, target])
            kind = rng.choice(["add", "mul", "view", "write", "write view"])
            if kind == "add":
                values.append(one + other)
            elif kind == "mul":
                values.append(one * 0.5 + other.flip(0))
            elif kind == "view":
                values.append(one.view(2, 3).t().reshape(6) if one.is_contiguous() else one.flip(0))
            elif kind == "write":
                one.add_(other, alpha=0.25)
            else:
                one[:3].mul_(0.5)
        return torch.stack(values).sum(0)

    x, target = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    recorder, expected = record_work(work, x, target)
    (found,) = RecordedProgram(recorder, [recorder.require_slot(expected)]).run({"x": x, "target": target})
    assert torch.equal(found, expected)
