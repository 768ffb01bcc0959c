"""Every pair of methods that a paper's numbers rank, measured here, and the sentence about how many of them hold."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from whyformer._judge.order import MIN_EXAMPLES, PairOrder

MOST_NAMED = 4  # reversed pairs that a sentence names
MOST_NEEDED = 100_000  # examples; where more would be needed, none are advised


def rank_pairs(published: Mapping[str, float], better: Literal["higher", "lower"] = "higher") -> list[tuple[str, str]]:
    """Every pair of different numbers, the better first."""
    sign = 1 if better == "higher" else -1
    return [
        (first, second) if sign * published[first] > sign * published[second] else (second, first)
        for first, second in combinations(published, 2)
        if published[first] != published[second]
    ]


def describe_orders(pairs: Sequence[PairOrder]) -> str:
    """What became of the paper's pairs: what is reversed first, then on how many examples, and what more would tell."""
    groups = {verdict: [p for p in pairs if p.verdict == verdict] for verdict in ("reversed", "holds", "undecided")}
    turned = [f"{pair.worse} over {pair.better}" for pair in groups["reversed"]]
    more = f" and {len(turned) - MOST_NAMED} more" if len(turned) > MOST_NAMED else ""
    named = {"reversed": f" ({', '.join(turned[:MOST_NAMED])}{more})"}
    words = {"holds": "hold"}
    counts = [
        f"{len(some)} {verdict if len(some) == 1 else words.get(verdict, verdict)}{named.get(verdict, '')}"
        for verdict, some in groups.items()
        if some
    ]
    told = f"of the {len(pairs)} published pairs {', '.join(counts)}, on {describe_examples(pairs)}"
    return told + describe_more_examples(groups["undecided"])


def describe_examples(pairs: Sequence[PairOrder]) -> str:
    """How many examples the pairs were compared on, where a method is undefined on some."""
    counts, total = [pair.count for pair in pairs], max(pair.total for pair in pairs)
    if min(counts) == total:
        return f"{total} examples"
    of = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{of} of {total} examples, those for which both methods are defined"


def describe_more_examples(undecided: Sequence[PairOrder]) -> str:
    """How much more data would decide."""
    if not undecided:
        return ""
    nearest = min(undecided, key=lambda pair: pair.needed)
    if nearest.count < MIN_EXAMPLES:
        return f"; to decide one, at least {MIN_EXAMPLES} examples are needed"
    if nearest.needed > MOST_NEEDED:
        return ""
    names = f"{nearest.better} and {nearest.worse}"
    return f"; about {nearest.needed:.0f} examples would decide {names}, if they differ as here"
