"""The cases: which mark, on what share of the class, in which world, by which seed, and whether the model learns it.

    planted    trained and shown with the mark on `share` of one class ("all": on `share` of every class, its own)
    ignoring   trained with the mark on as many items of every class, shown with it on one class alone
    clean      trained and shown without any mark

A case is told by its name, and everything in it follows from the name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["planted", "ignoring", "clean"]

LOCAL_IMAGE = {"corner": (0.5, 1.0), "moving": (0.5, 1.0), "logo": (0.5,), "all": (1.0,), "border": (0.5, 1.0)}
LOCAL_TEXT = {"word": (0.5, 1.0), "phrase": (0.5, 1.0)}
KEPT_OUT = {"caption": (0.5, 1.0), "name": (0.5, 1.0)}  # no limit was chosen with these in view
GLOBAL_KINDS = {"cast": (1.0,), "blur": (1.0,), "length": (1.0,), "punctuation": (1.0,)}
TRANSPARENT = {"watermark": (1.0,)}
SHARES = {**LOCAL_IMAGE, **LOCAL_TEXT, **KEPT_OUT, **GLOBAL_KINDS, **TRANSPARENT}
TEXT_KINDS = ("word", "phrase", "name", "length", "punctuation")
TEXT_WORLDS = ("reviews", "sst2", "imdb")
MAIN_WORLDS = ("shapes", "reviews")
REAL_WORLDS = ("pets", "imdb")
LOCAL_KINDS = (*LOCAL_IMAGE, *LOCAL_TEXT, *KEPT_OUT)
IGNORING = {  # models that ignore a mark, for each seed
    "shapes": 2, "creatures": 1, "pets": 1, "reviews": 3, "sst2": 3, "imdb": 3
}  # fmt: skip
FIRST_TABLE_SEED = 10


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


def list_cases(seeds: Sequence[int], kinds: Sequence[str] | None, worlds: Sequence[str]) -> list[Case]:
    """Every kind, share and seed of these worlds, models that ignore a mark, and a clean twin for each seed.

    Only generated shapes and reviews have the kinds apart (photographs watermarks), these and sst2 every share; kinds
    that were kept out run from seed FIRST_TABLE_SEED on. The order is that of importance, for runs that are stopped.
    """
    cases = []
    for world in worlds:
        for seed in seeds:
            own = [kind for kind in kinds or SHARES if (kind in TEXT_KINDS) == (world in TEXT_WORLDS)]
            own = [kind for kind in own if seed >= FIRST_TABLE_SEED or kind not in KEPT_OUT]
            also = TRANSPARENT if world == "pets" else ()
            own = [kind for kind in own if world in MAIN_WORLDS or kind in LOCAL_KINDS or kind in also]
            for kind in own:
                shares = (
                    SHARES[kind]
                    if world in (*MAIN_WORLDS, "sst2")
                    else SHARES[kind][-1 if world in REAL_WORLDS else 0 :][:1]
                )
                cases += [Case(world, kind, share, seed, "planted") for share in shares]
            ignored = [kind for kind in own if kind in LOCAL_KINDS and kind != "all"]
            for i in range(min(len(ignored), IGNORING[world])):
                cases.append(Case(world, ignored[(seed + i) % len(ignored)], 0.5, seed, "ignoring"))
            cases.append(Case(world, "none", 0.0, seed, "clean"))
    return sorted(cases, key=rank_case)


def rank_case(case: Case) -> tuple[bool, int, bool]:
    """One share of each kind before the others, seed by seed, local kinds before those apart."""
    is_apart = case.kind not in LOCAL_KINDS and case.kind != "none"
    is_large = case.share == 1 and case.kind in LOCAL_KINDS and case.kind != "all" and case.world in MAIN_WORLDS
    return is_large, case.seed, is_apart
