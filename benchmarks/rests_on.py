"""How often does the quick answer of `cite` agree with all subsets? On outcomes of real models, stored beforehand.

    python benchmarks/rests_on.py --subsets subsets.json --squad NAME=truth.json ... [--write]
    python benchmarks/rests_on.py [--model FOLDER] --asked NAME=truth.json ...

--subsets: 318 claims with all 64 subsets of six passages. Every other question was looked at while the procedure was
written (the number of candidates and of triples, the order of the checks), the others were not: HALVES.
--squad: what benchmarks/rests_on_truth.py has measured, of other paragraphs. Nothing was chosen on these.

--asked: the same of more than eight passages, from direct checks (rests_on_truth.py hotpot, many). Which subsets the
quick answer asks for depends on relevance: with --model they are measured, and added to the file.

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
import time
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
from rests_on_truth import Reader, measure

import whyformer as why
from whyformer._cite.dependence import NOTHING, Sources, TooCostly
from whyformer._cite.design import MOST_UNITS, Vector, list_ablations, make_units
from whyformer._cite.effort import EFFORTS, OPENING
from whyformer._cite.measuring import Ablations, Measured, measure_claim, measure_completely
from whyformer._cite.run import Study, list_answer_parts
from whyformer._cite.sources import find_sources
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
    opening: float = 0.0  # forwards before the first ablation
    relevance: Sequence[float] = ()

    def ask(self) -> Ablations:
        def run(sets: Sequence[Sources]) -> list[Vector]:
            if any(kept not in self.log_odds for kept in sets):
                raise TooCostly
            return [np.array([self.log_odds[kept]]) for kept in sets]

        return start(Ablations(run, self.sizes, self.rest), self.opening)


def start(ablations: Ablations, opening: float) -> Ablations:
    """After a run of the whole prompt or a relevance pass, if there was one."""
    if opening:
        ablations.ask([ablations.everything])
        ablations.forwards = opening
    return ablations


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
    ablations = claim.ask()
    quick = measure_quickly(ablations, make_units(claim.relevance or [0.0] * len(claim.sizes)))
    return quick, measure_completely(claim.ask(), [0]), ablations


def measure_quickly(ablations: Ablations, units: Sequence[Sources]) -> Measured:
    plan, count = EFFORTS["checked"], len(ablations.sizes)
    limit = ablations.forwards + plan.forwards - (ablations.forwards > 0)  # as Study.measure counts
    return measure_claim(ablations, [0], units, limit + OPENING * (count > MOST_UNITS))


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


def complete(folder: str, file: Path) -> None:
    """Adds the relevance of the passages, and the outcomes that the quick answer asks for, to claims of many passages.

    Relevance is that of the library; outcomes are those of rests_on_truth.py, which reads passages only once.
    """
    data = json.loads(file.read_text())
    model, reader = why.open(folder, dtype=torch.float32), Reader(folder)
    for group in data:
        for asked in group["questions"]:
            if any("relevance" not in claim for claim in asked["claims"]):
                began = time.perf_counter()
                complete_question(model, reader, group["passages"], asked)
                asked["seconds"] = round(time.perf_counter() - began, 1)
                file.write_text(json.dumps(data))
                print(asked["question"], asked["seconds"], flush=True)


def complete_question(model: why.Model, reader: Reader, texts: Sequence[str], asked: dict[str, Any]) -> None:
    opened = [open_claim(model, reader, texts, asked["question"], claim["ids"]) for claim in asked["claims"]]
    coded = [kept for study in opened for kept in list_ablations(study.units)]
    learn(reader, texts, asked, coded)
    for claim, study in zip(asked["claims"], opened, strict=True):

        def run(sets: Sequence[Sources], claim: dict[str, Any] = claim) -> list[Vector]:
            learn(reader, texts, asked, sets)
            return [np.array([claim["outcomes"][write_flags(kept, len(texts))]["log_odds"]]) for kept in sets]

        whole = study.opened.ablations
        measure_quickly(start(Ablations(run, whole.sizes, whole.rest), whole.forwards), study.units)
        claim |= {"sizes": whole.sizes, "rest": whole.rest, "opening": whole.forwards, "relevance": study.relevance}


def open_claim(model: why.Model, reader: Reader, texts: Sequence[str], question: str, ids: Sequence[int]) -> Study:
    text = "\n\n".join([*texts, f"Question: {question}"])
    if reader.is_chat:
        prompt = why.Prompt.from_messages(model, [{"role": "user", "content": text}], answer=ids)
    else:
        prompt = why.Prompt.from_text(model, f"{text}\nAnswer:", ids)
    return Study(model, prompt, find_sources(prompt, list(texts), None), list_answer_parts(prompt, slice(None)))


def learn(reader: Reader, texts: Sequence[str], asked: dict[str, Any], sets: Sequence[Sources]) -> None:
    known = asked["claims"][0]["outcomes"]
    new = [kept for kept in dict.fromkeys(sets) if write_flags(kept, len(texts)) not in known]
    if new:
        with torch.inference_mode():
            measure(reader, texts, [asked], [tuple(j in kept for j in range(len(texts))) for kept in new])


def read_many(name: str, file: Path) -> Iterator[tuple[str, Stored]]:
    """Claims of more than eight passages."""
    for group in json.loads(file.read_text()):
        for asked in group["questions"]:
            for claim in (one for one in asked["claims"] if "relevance" in one):
                odds = {read_flags(flags): found["log_odds"] for flags, found in claim["outcomes"].items()}
                more = {name: claim[name] for name in ("sizes", "rest", "opening", "relevance")}
                yield f"{name}, {name_kind(claim['kind'])}", Stored(odds, length=len(claim["ids"]), **more)


def write_flags(kept: Sources, count: int) -> str:
    return "".join("01"[j in kept] for j in range(count))


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
    rows: dict[str, Row] = {}
    named: list[Any] = [read_subsets(args.subsets)] if args.subsets else []
    for name, file in (one.split("=", 1) for one in args.asked):
        if args.model:
            complete(args.model, Path(file))
        named.append(read_many(name, Path(file)))
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
