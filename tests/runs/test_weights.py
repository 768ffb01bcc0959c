"""The hash of the weights changes with every parameter and buffer, and with nothing else."""

import copy

import torch

from whyformer._runs.weights import hash_weights


def test_changes_with_a_parameter_a_buffer_and_a_dtype():
    module = torch.nn.BatchNorm1d(3)
    marks = {hash_weights(module)}
    for change in ("weight", "bias", "running_mean"):
        other = copy.deepcopy(module)
        with torch.no_grad():
            getattr(other, change)[0] += 1e-3
        marks.add(hash_weights(other))
    marks.add(hash_weights(copy.deepcopy(module).to(torch.bfloat16)))
    assert len(marks) == 5


def test_weights_that_change_places_change_the_hash():
    """The sum is the same, the model is not."""
    module = torch.nn.Linear(2, 2)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.weight.copy_(module.weight.flip(0))
    assert hash_weights(other) != hash_weights(module)


def test_stays_for_a_copy_whose_tensors_lie_differently_in_memory():
    module = torch.nn.Linear(2, 3, bias=False)
    other = copy.deepcopy(module)
    other.weight = torch.nn.Parameter(module.weight.detach().t().contiguous().t())
    assert hash_weights(other) == hash_weights(module)
