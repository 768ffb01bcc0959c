"""Recording and repeating operations, by hand."""

import pytest
import torch

from whyformer._engine.program.program import RecordedProgram
from whyformer._engine.program.recorder import BranchDiffers, Recorder
from whyformer._engine.program.steps import Unrecordable

FOREIGN = torch.ones(2)


def record_work(work, x, constants=()):
    """The program of work(x), and its result."""
    recorder = Recorder({"x": x}, constants)
    with recorder:
        result = work(x)
    return RecordedProgram(recorder, [recorder.require_slot(result)]), result


def repeat(program, x):
    (result,) = program.run({"x": x})
    return result


def names_of(program):
    return [str(step.function) for step in program.steps]


def test_repeats_only_what_the_result_needs():
    def work(x):
        x.exp()  # used by nothing
        return (x * 2).detach() + 1

    program, result = record_work(work, torch.tensor([1.0, 2.0]))
    assert result.tolist() == [3, 5]
    assert names_of(program) == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert repeat(program, torch.tensor([10.0, 20.0])).tolist() == [21, 41]


def test_gradients_become_plain_operations():
    def work(x):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad((leaf**2).sum(), leaf)[0]

    program, result = record_work(work, torch.tensor([1.0, 3.0]))
    assert result.tolist() == [2, 6]
    assert repeat(program, torch.tensor([5.0, 7.0])).tolist() == [10, 14]


def test_operations_on_numbers_and_views_of_weights_are_done_once():
    """What is computed from a weight is computed anew: the weight may have changed since."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    program, _ = record_work(lambda x: x @ weight.t().abs() + torch.arange(2), torch.ones(1, 2), [weight])
    assert names_of(program) == ["aten.abs.default", "aten.mm.default", "aten.add.Tensor"]
    assert repeat(program, torch.tensor([[1.0, 0.0]])).tolist() == [[1, 4]]
    weight.data.neg_().sub_(1)
    assert repeat(program, torch.tensor([[1.0, 0.0]])).tolist() == [[2, 5]]


def test_writes_in_place_are_repeated_in_order():
    def work(x):
        y = x.clone()
        half = y[:1]
        half.add_(10)
        y.mul_(2)
        half.zero_()
        return y

    program, result = record_work(work, torch.tensor([1.0, 2.0]))
    assert result.tolist() == [0, 4]
    assert repeat(program, torch.tensor([5.0, 6.0])).tolist() == [0, 12]
    assert repeat(program, torch.tensor([5.0, 6.0])).tolist() == [0, 12]


def test_memory_that_is_written_again_is_no_constant():
    weights = [torch.tensor([1.0, -2.0]), torch.tensor([-3.0, 4.0])]

    def work(x):
        scratch = torch.empty(2)
        for weight in weights:
            x = x * torch.abs(weight, out=scratch)
        return x

    program, result = record_work(work, torch.ones(2), weights)
    assert result.tolist() == repeat(program, torch.ones(2)).tolist() == [3, 8]


def test_what_python_read_is_read_again():
    program, _ = record_work(lambda x: x * 2 if bool((x > 0).all()) else x * 3, torch.ones(2))
    assert repeat(program, torch.full((2,), 5.0)).tolist() == [10, 10]
    with pytest.raises(BranchDiffers):
        repeat(program, torch.tensor([1.0, -1.0]))


def test_a_number_of_entries_that_depends_on_values_is_compared():
    program, _ = record_work(lambda x: x[x > 0] * 2, torch.tensor([1.0, -1.0, 2.0]))
    assert repeat(program, torch.tensor([-1.0, 3.0, 4.0])).tolist() == [6, 8]
    with pytest.raises(BranchDiffers):
        repeat(program, torch.tensor([1.0, 3.0, 4.0]))


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda x: x * float(x.sum()), "number with a fraction"),
        (lambda x: x * x.tolist()[0], "tolist"),
        (lambda x: x + torch.rand(2), "random"),
        (lambda x: x.add_(1), "writes into an input"),
        (lambda x: x + FOREIGN, "neither an input nor a weight"),
    ],
    ids=["float", "tolist", "random", "write", "unknown"],
)
def test_refuses_what_it_could_not_repeat(work, reason):
    with pytest.raises(Unrecordable, match=reason):
        record_work(work, torch.ones(2))


def test_a_result_that_is_a_constant_is_copied():
    program, _ = record_work(lambda x: torch.arange(3), torch.ones(2))
    repeat(program, torch.ones(2)).zero_()
    assert repeat(program, torch.ones(2)).tolist() == [0, 1, 2]


def test_what_is_computed_twice_is_computed_once():
    def work(x):
        return x.exp().sum() + x.exp().sum() + (x.exp() * 2.0).sum()

    program, result = record_work(work, torch.tensor([0.0, 0.0]))
    assert float(result) == float(repeat(program, torch.zeros(2))) == 8
    assert names_of(program).count("aten.exp.default") == 1 and names_of(program).count("aten.sum.default") == 2


def test_what_was_written_to_is_not_taken_for_the_same():
    def work(x):
        y = x.exp()
        y.add_(1)
        return y + x.exp()

    program, result = record_work(work, torch.zeros(2))
    assert result.tolist() == repeat(program, torch.zeros(2)).tolist() == [3, 3]


def test_places_by_number_have_a_fixed_size():
    places = torch.tensor([1, 0])
    by_number, _ = record_work(lambda x: x[torch.tensor([1, 0])] * 2, torch.tensor([1.0, 2.0]))
    by_mask, _ = record_work(lambda x: x[x > 0] * 2, torch.tensor([1.0, 2.0]))
    assert by_number.has_fixed_sizes and not by_mask.has_fixed_sizes
    assert repeat(by_number, torch.tensor([3.0, 4.0])).tolist() == (torch.tensor([3.0, 4.0])[places] * 2).tolist()
