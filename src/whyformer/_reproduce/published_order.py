"""Every pair of methods that a paper's numbers rank, measured here, and the sentence about how many of them hold."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from whyformer._judge.order import PairOrder

MOST_NAMED = 4  # reversed pairs that a sentence names


def rank_pairs(published: Mapping[str, float], better: Literal["higher", "lower"] = "higher") -> list[tuple[str, str]]:
    """Every pair of different numbers, the better first."""
    sign = 1 if better == "higher" else -1
    return [
        (first, second) if sign * published[first] > sign * published[second] else (second, first)
        for first, second in combinations(published, 2)
        if published[first] != published[second]
    ]


def describe_orders(pairs: Sequence[PairOrder]) -> str:
    """How many of the paper's pairs hold here, and which are reversed."""
    groups = {verdict: [p for p in pairs if p.verdict == verdict] for verdict in ("holds", "reversed", "undecided")}
    turned = [f"{pair.worse} over {pair.better}" for pair in groups["reversed"]]
    more = f" and {len(turned) - MOST_NAMED} more" if len(turned) > MOST_NAMED else ""
    named = f" ({', '.join(turned[:MOST_NAMED])}{more})" if turned else ""
    counts = f"{len(groups['holds'])} hold, {len(turned)} reversed{named}, {len(groups['undecided'])} undecided"
    return f"of the {len(pairs)} published pairs {counts}"
