"""Calls to try relevance rules on, and slow definitions that several tests share."""

import math

import torch
from torch import Tensor

from whyformer._engine.relevance.calls import SomeCall
from whyformer._engine.tracing.provenance import SampleGroups, label_axis


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def away_from_zero(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Magnitudes between 0.5 and 1.5, so that nothing cancels by accident."""
    drawn = numbers(seed, *shape)
    return torch.copysign(0.5 + drawn.abs() % 1, drawn).to(dtype)


def make_call(call_class: type[SomeCall], result: Tensor, **fields) -> SomeCall:
    """A call whose examples are along the first axis of its result."""
    samples = SampleGroups(label_axis(0, result.size(0), result.dim(), result.device), result.size(0))
    return call_class(step=0, operation="operation", place="place", samples=samples, **fields)


def assert_same(found: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    """Equal to `tolerance` of the largest magnitude."""
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def softmax_slowly(row: list[float]) -> list[float]:
    powers = [math.exp(entry - max(row)) for entry in row]
    return [p / math.fsum(powers) for p in powers]
