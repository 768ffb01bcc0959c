r"""Which sources are left out together: a two-level design of at most 16 ablations, and the weights that they give.

Up to four units every subset is asked for. From five to eight the first four vary freely and each other one is the
product of three of them, so that the effect of a unit is confounded with none of two others together (resolution IV,
Box & Hunter 1961). Both the whole prompt and the one without any source are among the 16.

$$ v(S) \approx b + \sum_{j \in S} w_j $$

by least squares over all ablations that are known. More units than eight do not fit: of more sources, those with the
highest relevance are units of their own, and the rest are left out in groups.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from whyformer._cite.dependence import Sources

MOST_UNITS = 8
FREE = 4  # units that vary freely
GENERATORS = ((0, 1, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3))  # of the fifth unit, the sixth, ...
ALONE = 5  # sources that are units of their own if there are more than MOST_UNITS

Vector = NDArray[np.float64]


def make_units(relevance: Sequence[float]) -> list[Sources]:
    """The sources one by one or, if they are many, the most relevant ones one by one and the others in groups."""
    count = len(relevance)
    if count <= MOST_UNITS:
        return [frozenset([j]) for j in range(count)]
    order = sorted(range(count), key=lambda j: -relevance[j])
    groups = [order[ALONE:][start :: MOST_UNITS - ALONE] for start in range(MOST_UNITS - ALONE)]
    return [frozenset(some) for some in [*([j] for j in order[:ALONE]), *groups] if some]


def list_ablations(units: Sequence[Sources]) -> list[Sources]:
    """The sources that each ablation keeps."""
    kept = []
    for free in product((False, True), repeat=min(FREE, len(units))):
        others = (bool(sum(free[j] for j in chosen) % 2) for chosen in GENERATORS[: max(len(units) - FREE, 0)])
        flags = (*free, *others)
        kept.append(frozenset().union(*(unit for unit, is_kept in zip(units, flags, strict=True) if is_kept)))
    return kept


def fit_weights(units: Sequence[Sources], values: Mapping[Sources, float]) -> Vector:
    """[unit]: by least squares; a unit of which a part is kept counts in proportion."""
    shares = [[len(unit & kept) / len(unit) for unit in units] for kept in values]
    table = np.column_stack([np.ones(len(values)), np.array(shares)])
    found: Vector = np.linalg.lstsq(table, np.array(list(values.values())), rcond=None)[0][1:]
    return found
