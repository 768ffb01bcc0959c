"""Compiled programs: the same results as the program; layers that are alike are compiled once; steps that write."""

import shutil
import warnings

import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import whyformer as why
from whyformer._engine.program import compiled, replay
from whyformer._engine.program.compiled import CompiledProgram, NotCompiled, PureSteps, find_cuts
from whyformer._engine.program.nested_values import describe_packing
from whyformer._engine.program.program import Program
from whyformer._engine.program.recorder import Recorder

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")


@pytest.fixture
def tiny_vit():
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=16, patch_size=4, hidden_size=16, num_attention_heads=2, num_hidden_layers=3, intermediate_size=32
    )
    return ViTForImageClassification(config).eval()


def make_program(work, weights=(), **inputs):
    """The program of `work(**inputs)`."""
    recorder = Recorder(inputs, weights)
    with recorder:
        results = work(**inputs)
        slots = [recorder.require_slot(result) for result in results]
    return Program(recorder, slots)


def use_steps_themselves(monkeypatch):
    """Stretches as they are, without a compiler."""

    def run_steps(stretch, operands):
        def run(*taken):
            values = dict(zip(stretch.takes, taken, strict=True))
            for step in stretch.steps:
                compiled.run_into(values, step)
            return [values[number] for number in stretch.gives]

        return run

    monkeypatch.setattr(compiled, "compile_steps", run_steps)


def assert_alike(one, other, tolerance):
    """To this part of the largest score."""
    a, b = torch.as_tensor(one.scores), torch.as_tensor(other.scores)
    assert float((a - b).abs().max()) <= tolerance * float(a.abs().max())


# --- stretches -------------------------------------------------------------------------------------------------------


def test_cuts_at_each_period_of_a_repetition():
    layer = [f"step {k}" for k in range(25)]
    kinds = ["embed"] * 3 + layer * 4 + ["head"] * 2
    assert find_cuts(kinds) >= {3, 28, 53, 78, 103}


def test_a_shorter_period_wins_over_a_multiple_of_it():
    layer = [f"step {k}" for k in range(30)]
    assert {30, 60, 90, 120, 150} <= find_cuts(layer * 6)


def test_what_repeats_nothing_is_cut_by_length(monkeypatch):
    monkeypatch.setattr(compiled, "LONGEST", 10)
    assert find_cuts(list(range(35))) == {0, 10, 20, 30, 35}


# --- steps that write ------------------------------------------------------------------------------------------------


def test_a_step_that_writes_becomes_one_that_returns():
    program = make_program(lambda x: [(x * 2).add_(1).mul_(3)], x=torch.ones(4))
    pure = PureSteps(program)
    assert not any(step.writes for step in pure.steps)


def test_a_write_that_a_view_shows_later_stays_a_write(monkeypatch):
    use_steps_themselves(monkeypatch)

    def work(x):
        y = x * 2
        view = y[:2]
        y.add_(1)
        return [view * 1, y * 1]

    x = torch.arange(4.0)
    program = make_program(work, x=x)
    assert any(step.writes for step in PureSteps(program).steps)
    view, whole, _ = CompiledProgram(program, {"x": x}).run({"x": x})
    assert view.tolist() == [1.0, 3.0] and whole.tolist() == [1.0, 3.0, 5.0, 7.0]


def test_no_cut_lies_between_a_value_and_a_write_that_a_view_shows(monkeypatch):
    use_steps_themselves(monkeypatch)
    monkeypatch.setattr(compiled, "LONGEST", 1)

    def work(x):
        y = x * 2
        view = y[:2]
        y.add_(1)
        return [view * 3]

    program = make_program(work, x=torch.arange(4.0))
    for at, stretch in enumerate(CompiledProgram(program, {"x": torch.arange(4.0)}).stretches):
        written = [number for step in stretch.steps for number in step.writes]
        made = {number for step in stretch.steps for number in step.outputs}
        assert set(written) <= made, at


def test_memory_used_again_with_out_is_a_new_value_each_time(monkeypatch):
    use_steps_themselves(monkeypatch)

    def work(x):
        scratch = torch.empty_like(x)
        first = torch.abs(x, out=scratch) + 1
        second = torch.abs(x * 3, out=scratch) + 1
        return [first, second]

    x = torch.tensor([-1.0, 2.0])
    first, second, _ = CompiledProgram(make_program(work, x=x), {"x": x}).run({"x": x})
    assert first.tolist() == [2.0, 3.0] and second.tolist() == [4.0, 7.0]


# --- what Python read ------------------------------------------------------------------------------------------------


def test_says_whether_python_would_read_the_same(monkeypatch):
    use_steps_themselves(monkeypatch)

    def work(x):
        return [x * 2] if bool((x > 0).any()) else [x * 3]

    fast = CompiledProgram(make_program(work, x=torch.tensor([1.0, -1.0])), {"x": torch.tensor([1.0, -1.0])})
    assert bool(fast.run({"x": torch.tensor([5.0, -1.0])})[-1])
    assert not bool(fast.run({"x": torch.tensor([-5.0, -1.0])})[-1])


def test_refuses_sizes_that_depend_on_values():
    program = make_program(lambda x: [x[x > 0].sum()], x=torch.tensor([1.0, -1.0]))
    with pytest.raises(NotCompiled, match="depends on the inputs"):
        CompiledProgram(program, {"x": torch.tensor([1.0, -1.0])})


def test_a_result_that_is_a_constant_is_copied(monkeypatch):
    use_steps_themselves(monkeypatch)
    weight = torch.ones(3)
    program = make_program(lambda x: [x + weight, weight.view(3)], weights=[weight], x=torch.zeros(3))
    given = CompiledProgram(program, {"x": torch.zeros(3)}).run({"x": torch.zeros(3)})[1]
    given.zero_()
    assert weight.tolist() == [1.0, 1.0, 1.0]


# --- whole explanations ----------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Six layers that are alike."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x)).abs().sqrt().add_(1).log().mul_(2).tanh().sigmoid().exp().neg()
        return x


@pytest.mark.slow
@needs_compiler
def test_layers_that_are_alike_are_compiled_once(monkeypatch):
    monkeypatch.setattr(compiled, "SHORTEST", 5)
    torch.manual_seed(0)
    module = Layers().eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        program = make_program(lambda x: [module(x)], weights=list(module.parameters()), x=x)
        fast = CompiledProgram(program, {"x": x})
        assert len({id(stretch.compiled) for stretch in fast.stretches}) <= 3 < len(fast.stretches)
        torch.testing.assert_close(fast.run({"x": 2 * x})[0], module(2 * x))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("method", ["transformer_attribution", "attnlrp", "gradient_x_input"])
def test_scores_of_a_compiled_program_are_those_of_the_model(method, tiny_vit):
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    plain = why.explain(tiny_vit, images, method)
    with why.replay(compile=True), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(replay.RECORDED_AT + 1):
            again = why.explain(tiny_vit, images, method)
        runs = [run for _, programs in replay.KNOWN.values() for run in programs.runs.values() if run is not None]
        assert any(run.compiled is not None for run in runs)
    for one, other in zip(plain, again, strict=True):
        assert_alike(one, other, 1e-3)


@pytest.mark.slow
@needs_compiler
def test_a_single_entry_is_packed_by_a_compiled_program():
    """A sum spread over one entry has stride 0."""
    work = lambda x: describe_packing([x.sum().expand(1), x]).pack([x.sum().expand(1), x])  # noqa: E731
    x = torch.tensor([1.0, 2.0, 4.0])
    fast = CompiledProgram(make_program(work, x=x), {"x": x})
    assert torch.equal(fast.run({"x": x})[0], work(x)[0])


class Careful(nn.Module):
    """Looks whether any input is above 1."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, pixel_values):
        logits = self.vit(pixel_values=pixel_values).logits
        return logits if bool((pixel_values > 1).any()) else logits * 2


def test_inputs_moved_across_what_python_reads_are_no_error(monkeypatch, tiny_vit):
    """At exactly 1, moving by one rounding takes the other way."""
    use_steps_themselves(monkeypatch)
    monkeypatch.setattr(replay, "RECORDED_AT", 1)
    model, image = why.open(Careful(tiny_vit)), torch.full((1, 3, 16, 16), 1.0)
    plain = why.explain(model, image, "rollout")
    with why.replay(compile=True), pytest.warns(RuntimeWarning, match="without being compiled: WayDiffers"):
        again = why.explain(model, image, "rollout")
    assert_alike(plain, again, 1e-6)


def test_without_a_compiler_the_program_itself_runs(monkeypatch, tiny_vit):
    def fail(stretch, operands):
        raise OSError("no compiler here")

    monkeypatch.setattr(compiled, "compile_steps", fail)
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(replay, "RECORDED_AT", 1)
    with why.replay(compile=True):
        with pytest.warns(RuntimeWarning, match="no compiler here"):
            why.explain(tiny_vit, image, "rollout")
        again = why.explain(tiny_vit, image, "rollout")
    assert_alike(why.explain(tiny_vit, image, "rollout"), again, 1e-6)
