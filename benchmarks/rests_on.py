"""How often does the quick answer of `cite` agree with all subsets? On outcomes of real models, stored beforehand.

    python benchmarks/rests_on.py --subsets subsets.json --squad NAME=truth.json ... [--write]

--subsets: 318 claims with all 64 subsets of six passages. Every other question was looked at while the procedure was
written (the number of candidates and of triples, the order of the checks), the others were not: HALVES.
--squad: what benchmarks/rests_on_truth.py has measured, of other paragraphs. Nothing was chosen on these.

The code that runs is that of the library (`_cite/measuring.py`), asked about the stored log-odds. Truth: the reading
from all 64 subsets. A claim whose truth is borderline (another reading at .45 or .55 of its effect) is counted apart.
Intervals: Wilson, 95 %.

LDS: the rank correlation of summed scores with the log-odds, over the subsets that neither the quick answer nor
ContextCite with 32 draws was fitted on; ContextCite by our re-implementation of its solver (lasso on standardised
masks, alpha .01, log-odds divided by the number of tokens; of the stored subsets by 10, as it is not stored).
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_table import DOCS, insert_table

from whyformer._cite.dependence import NOTHING, Sources
from whyformer._cite.design import MOST_UNITS, Vector, make_units
from whyformer._cite.effort import EFFORTS
from whyformer._cite.measuring import Ablations, Measured, measure_claim, measure_completely
from whyformer.methods.context_cite import fit_lasso
from whyformer.metrics.datamodelling import correlate_defined_ranks

HALVES = ("looked at", "kept apart")  # questions by their order, one after the other
BEGIN = "<!-- table of benchmarks/rests_on.py -->"
PASSAGE, REST = 120, 45  # tokens where they are not stored
DRAWS, PENALTY, SEED = 32, 0.01, 0
HEAD = (
    "| claims | number | borderline | agrees, not borderline | agrees, all | *one* said wrongly | *several*, nobody "
    "named | forwards | LDS | ContextCite, 32 |"
)


@dataclass(frozen=True)
class Stored:
    """A claim with its log-odds by the sources that are kept."""

    log_odds: dict[Sources, float]
    sizes: Sequence[int]
    rest: int
    length: int  # tokens of the answer

    def ask(self) -> Ablations:
        def run(sets: Sequence[Sources]) -> list[Vector]:
            return [np.array([self.log_odds[kept]]) for kept in sets]

        return Ablations(run, self.sizes, self.rest)


@dataclass
class Row:
    """What was found for one set of claims."""

    same: list[bool] = field(default_factory=list)
    borderline: list[bool] = field(default_factory=list)
    false_one: list[bool] = field(default_factory=list)
    nobody: list[bool] = field(default_factory=list)
    forwards: list[float] = field(default_factory=list)
    lds: list[tuple[float, float]] = field(default_factory=list)

    def add(self, claim: Stored) -> None:
        quick, truth, ablations = measure_both(claim)
        same = quick.reading == truth.reading
        self.same.append(same)
        self.borderline.append(truth.is_borderline)
        self.false_one.append(quick.reading.how == "one" and not same)
        self.nobody.append(quick.reading.how == "several" and not quick.also)
        self.forwards.append(ablations.forwards)
        if len(claim.sizes) <= MOST_UNITS:
            self.lds.append(compare_scores(claim, quick, ablations))

    def write(self, name: str) -> str:
        clear = [same for same, near in zip(self.same, self.borderline, strict=True) if not near]
        lds = np.nanmean(np.array(self.lds), axis=0) if self.lds else (math.nan, math.nan)
        cells = (
            name, str(len(self.same)), share(self.borderline), with_interval(clear), with_interval(self.same),
            share(self.false_one), share(self.nobody),
            f"{np.mean(self.forwards):.1f}, at most {max(self.forwards):.1f}",
            *("-" if math.isnan(one) else f"{one:.3f}" for one in lds),
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def share(flags: Sequence[bool]) -> str:
    return f"{100 * np.mean(flags):.1f} %"


def with_interval(flags: Sequence[bool]) -> str:
    """`58 of 60: 96.7 % (88.6 to 99.1)`."""
    count, hits, z = len(flags), sum(flags), 1.96
    if not count:
        return "-"
    centre = (hits + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(hits * (count - hits) / count + z * z / 4)
    return f"{hits} of {count}: {100 * hits / count:.1f} % ({100 * (centre - half):.1f} to {100 * (centre + half):.1f})"


def measure_both(claim: Stored) -> tuple[Measured, Measured, Ablations]:
    plan, count = EFFORTS["checked"], len(claim.sizes)
    ablations = claim.ask()
    quick = measure_claim(ablations, [0], make_units([0.0] * count), plan.forwards + plan.count_more(count))
    return quick, measure_completely(claim.ask(), [0]), ablations


def compare_scores(claim: Stored, quick: Measured, ablations: Ablations) -> tuple[float, float]:
    """LDS of the weights of the quick answer and of ContextCite, over the subsets that neither has seen."""
    count, generator = len(claim.sizes), torch.Generator().manual_seed(SEED)
    keep = torch.rand(DRAWS, count, generator=generator) < 0.5
    drawn = [frozenset(j for j in range(count) if row[j]) for row in keep.tolist()]
    outcomes = torch.tensor([claim.log_odds[kept] for kept in drawn], dtype=torch.float64)
    lasso = fit_lasso(keep, outcomes / claim.length, PENALTY).weights
    unseen = [kept for kept in claim.log_odds if kept not in ablations.known and kept not in drawn]
    table = torch.tensor([[float(j in kept) for j in range(count)] for kept in unseen], dtype=torch.float64)
    actual = torch.tensor([claim.log_odds[kept] for kept in unseen], dtype=torch.float64)
    ours = correlate_defined_ranks(table @ torch.from_numpy(quick.weights), actual)
    return ours, correlate_defined_ranks(table @ lasso, actual)


# --- stored claims ----------------------------------------------------------------------------------------------------


def read_subsets(file: Path) -> Iterator[tuple[str, Stored]]:
    """The 318 claims, by half and kind."""
    data = json.loads(file.read_text())
    halves = {question: n % 2 for n, question in enumerate(dict.fromkeys(one["question"] for one in data))}
    flags = list(product([False, True], repeat=6))
    for one in data:
        odds = {
            frozenset(j for j in range(6) if row[j]): value for row, value in zip(flags, one["log_odds"], strict=True)
        }
        name = f"`subsets.json`, {HALVES[halves[one['question']]]}, {name_kind(one['kind'])}"
        yield name, Stored(odds, [PASSAGE] * 6, REST, 10)


def read_truth(name: str, file: Path) -> Iterator[tuple[str, Stored]]:
    for group in json.loads(file.read_text()):
        sizes = [max(len(text) // 4, 1) for text in group["passages"]]  # about four characters a token
        for asked in group["questions"]:
            for claim in asked["claims"]:
                odds = {read_flags(flags): found["log_odds"] for flags, found in claim["outcomes"].items()}
                yield f"{name}, {name_kind(claim['kind'])}", Stored(odds, sizes, REST, len(claim["ids"]))


def read_flags(flags: str) -> Sources:
    return frozenset(j for j, flag in enumerate(flags) if flag == "1") if "1" in flags else NOTHING


def name_kind(kind: str) -> str:
    return "own answers" if kind == "own" else "given answers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--subsets", type=Path)
    parser.add_argument("--squad", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--write", action="store_true", help="into docs/cite.md")
    args = parser.parse_args()
    rows: dict[str, Row] = {}
    named: list[Any] = [read_subsets(args.subsets)] if args.subsets else []
    named += [read_truth(name, Path(file)) for name, file in (one.split("=", 1) for one in args.squad)]
    for stored in named:
        for name, claim in stored:
            rows.setdefault(name, Row()).add(claim)
    lines = [HEAD, "|---|" + "---:|" * (HEAD.count("|") - 2), *(row.write(name) for name, row in rows.items())]
    print("\n".join(lines))
    if args.write:
        insert_table(DOCS / "cite.md", BEGIN, lines)


if __name__ == "__main__":
    main()
