r"""Rotary embeddings written with complex numbers, as the same rotation in real numbers.

$(a + bi)(\cos\theta + i\sin\theta)$ has the real part $a\cos\theta - b\sin\theta$ and the imaginary part
$a\sin\theta + b\cos\theta$. Relevance of a complex number means nothing; of the two real ones it does.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer._engine.tracing.operations import Operation
from whyformer._plain.private_torch import without_interception


def remember_pairs(pairs: Tensor) -> Tensor:
    """`view_as_complex`: the complex numbers remember the pairs that they were made of."""
    with without_interception():
        numbers = torch.view_as_complex(pairs.contiguous())
    numbers._whyformer_pairs = pairs  # type: ignore[attr-defined]
    return numbers


def rotate_pairs(operation: Operation) -> Tensor | None:
    """A product with complex constants, on the pairs; None if there are no pairs."""
    first, second = operation.argument(0, "input", "self"), operation.argument(1, "other")
    x, factor = (second, first) if getattr(first, "_whyformer_pairs", None) is None else (first, second)
    pairs = getattr(x, "_whyformer_pairs", None)
    if pairs is None or not isinstance(factor, Tensor) or not factor.is_complex() or factor.requires_grad:
        return None
    a, b = pairs.unbind(-1)
    cosine, sine = factor.real, factor.imag
    return remember_pairs(torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1))


def read_pairs(operation: Operation) -> Tensor | None:
    """`view_as_real` of numbers that remember their pairs."""
    return getattr(operation.argument(0, "input", "self"), "_whyformer_pairs", None)


COMPLEX_OPERATIONS: dict[str, Callable[[Operation], Tensor | None]] = {
    "view_as_complex": lambda operation: remember_pairs(operation.argument(0, "input", "self")),
    "mul": rotate_pairs,
    "view_as_real": read_pairs,
}
