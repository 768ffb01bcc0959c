"""Sums and differences of small numbers, "12 + 7 = 19.", split by a checksum as the agreement sentences are."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from whyformer.demo.draws import Part, part_of


def questions(part: Part, below: int) -> list[tuple[str, str]]:
    """Every question of this part about two numbers below `below`, with its answer: ("12 + 7 =", "19")."""
    numbers = range(below)
    sums = [(f"{a} + {b} =", str(a + b)) for a in numbers for b in numbers]
    differences = [(f"{a} - {b} =", str(a - b)) for a in numbers for b in numbers if b <= a]
    return [(question, answer) for question, answer in sums + differences if part_of(question) == part]
