"""How often does the quick answer of `cite` agree with all subsets? On outcomes of real models, stored beforehand.

    python benchmarks/rests_on.py --subsets subsets.json --squad NAME=truth.json ... [--write]
    python benchmarks/rests_on.py --model FOLDER --asked NAME=truth.json ...

--subsets: 318 claims with all 64 subsets of six passages. Every other question was looked at while the procedure was
written (the number of candidates and of triples, the order of the checks), the others were not: HALVES.
--squad: what benchmarks/rests_on_truth.py has measured, of other paragraphs. Nothing was chosen on these.

--asked: the same of more than eight passages, from direct checks (rests_on_truth.py hotpot, many). Which subsets the
quick answer asks for is not known beforehand, so `why.cite` is asked of the prompt itself, on this model.

The code that runs is that of the library (`_cite/measuring.py`), asked about the stored log-odds. Truth: the reading
from all 64 subsets. A claim whose truth is borderline (another reading at .45 or .55 of its effect) is counted apart.
Intervals: Wilson, 95 %.

LDS: the rank correlation of summed scores with the log-odds, over the subsets that neither the quick answer nor
ContextCite with 32 draws was fitted on; ContextCite by the solver of its package where that is installed (its file
alone is loaded), else by our re-implementation (lasso on standardised masks, alpha .01), of log-odds divided by the
number of tokens; of the stored subsets by 10, as it is not stored.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import torch
from page_table import DOCS, insert_table

import whyformer as why
from whyformer._cite.dependence import NOTHING, Dependence, Sources
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
    lasso = fit_context_cite(keep, outcomes, claim.length)
    unseen = [kept for kept in claim.log_odds if kept not in ablations.known and kept not in drawn]
    table = torch.tensor([[float(j in kept) for j in range(count)] for kept in unseen], dtype=torch.float64)
    actual = torch.tensor([claim.log_odds[kept] for kept in unseen], dtype=torch.float64)
    ours = correlate_defined_ranks(table @ torch.from_numpy(quick.weights), actual)
    return ours, correlate_defined_ranks(table @ lasso, actual)


def fit_context_cite(keep: torch.Tensor, outcomes: torch.Tensor, length: int) -> torch.Tensor:
    """By the solver of its package, if it is there."""
    found = find_spec("context_cite")
    if found is None or not found.submodule_search_locations:
        return fit_lasso(keep, outcomes / length, PENALTY).weights * length
    solver = run_path(str(Path(found.submodule_search_locations[0]) / "solver.py"))["LassoRegression"](PENALTY)
    weights, _ = solver.fit(keep.numpy(), outcomes.numpy(), length)
    return torch.from_numpy(weights).double()


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


def ask_model(folder: str, name: str, file: Path) -> Iterator[tuple[str, str, str, float, bool]]:
    """Of each claim: whose answer, both readings, the cost, and whether the truth is borderline."""
    model = why.open(folder, dtype=torch.float32)
    for group in json.loads(file.read_text()):
        texts = group["passages"]
        for asked in group["questions"]:
            for claim in asked["claims"]:
                text = "\n\n".join([*texts, f"Question: {asked['question']}"])
                if getattr(model.tokenizer, "chat_template", None):
                    prompt = why.Prompt.from_messages(model, [{"role": "user", "content": text}], answer=claim["ids"])
                else:
                    prompt = why.Prompt.from_text(model, f"{text}\nAnswer:", claim["ids"])
                found = why.cite(model, prompt, by=texts, select=slice(None))
                names = {f"passage {n}": n - 1 for n in range(1, len(texts) + 1)}
                own = found.claim.against if found.claim.how == "against" else found.claim.rests_on
                named = tuple(sorted(names[one] for one in own))
                truth = read_direct_checks(claim, len(texts))
                row = (Dependence(found.claim.how, named), truth.reading, found.spent["cost"], truth.is_borderline)
                yield f"{name}, {name_kind(claim['kind'])}", *row


def read_direct_checks(claim: dict[str, Any], count: int) -> Measured:
    """The reading of what is stored; of more than eight passages, of the singles and the pairs that were measured."""
    odds = {read_flags(flags): found["log_odds"] for flags, found in claim["outcomes"].items()}
    return measure_completely(Stored(odds, [1] * count, 1, len(claim["ids"])).ask(), [0])


def read_flags(flags: str) -> Sources:
    return frozenset(j for j, flag in enumerate(flags) if flag == "1") if "1" in flags else NOTHING


def name_kind(kind: str) -> str:
    return "own answers" if kind == "own" else "given answers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--subsets", type=Path)
    parser.add_argument("--squad", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--model", help="a folder, for --asked")
    parser.add_argument("--asked", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--write", action="store_true", help="into docs/cite.md")
    args = parser.parse_args()
    for name, file in (one.split("=", 1) for one in args.asked):
        for kind, said, true, cost, near in ask_model(args.model, name, Path(file)):
            verdict = "same" if said == true else "differs"
            print(f"{kind}: {verdict}; cite {said}, direct checks {true}, {cost:.1f} forwards{', borderline' * near}")
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
