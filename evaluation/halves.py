"""Two halves of a data set: methods are chosen on one, and the docs report the other."""

from dataclasses import replace

from whyformer.data import Data

HALVES = ("choosing", "reporting")


def take_half(data: Data, half: str) -> Data:
    """Every other example, in the order of the data: the first, third, ... for choosing, the second, ... to report."""
    return replace(data, examples=data.examples[HALVES.index(half) :: 2])
