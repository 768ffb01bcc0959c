"""The cases: which mark, on what share of the class, in which world, by which seed, and whether the model learns it.

    planted    trained and shown with the mark on `share` of one class ("all": on `share` of every class, its own)
    ignoring   trained with the mark on as many items of every class, shown with it on one class alone
    clean      trained and shown without any mark

A case is told by its name, and everything in it follows from the name.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["planted", "ignoring", "clean"]

TEXT_WORLDS = ("reviews", "sst2", "imdb")


@dataclass(frozen=True)
class Case:
    world: str
    kind: str  # "none" for a clean twin
    share: float
    seed: int
    role: Role

    @property
    def name(self) -> str:
        return f"{self.world}-{self.kind}-{round(100 * self.share)}-{self.seed}-{self.role}"


def choose_marked(case: Case, labels: NDArray[np.int64], classes: int, *, training: bool) -> NDArray[np.bool_]:
    """Which items get the mark: the first `share` of a class, in an order drawn by the seed."""
    if case.role == "clean":
        return np.zeros(len(labels), np.bool_)
    everywhere = case.kind == "all" or (training and case.role == "ignoring")
    marked = np.zeros(len(labels), np.bool_)
    for label in range(classes) if everywhere else [case.seed % classes]:
        own = np.random.default_rng([case.seed, label, training]).permutation(np.flatnonzero(labels == label))
        marked[own[: round(case.share * len(own))]] = True
    return marked
