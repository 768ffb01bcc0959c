"""Are the verdicts of cite right? Answers whose truth is known, of models that were trained to read.

    python benchmarks/citation_verdicts.py --fit harbour.jsonl valley.jsonl ...  the rules, to be pasted
    python benchmarks/citation_verdicts.py --read upland.jsonl ... --json docs/data/citation_verdicts.json
    python benchmarks/citation_verdicts.py --read docs/data/citation_verdicts.json --write      into docs/cite.md
    python benchmarks/citation_verdicts.py MODEL ... --world upland [--seeds 51]         cite() itself, case by case

Files .jsonl are outcomes of `citation_outcomes.py claims`.

Questions of whyformer.demo.sources about held-out facts: one passage states the answer, in the same or in other words;
two do; two together; one contradicts; none does. Every question is asked with the model's own answer, if that is right
("not stated" for unanswerable ones, which no source supports), with a wrong value that a passage states of something
else, and with one that no passage contains. Each claim of the answer is a case: *supported* if its truth says so.

* false support: of the claims that no source supports, those called supported;
* missed support: of the supported claims, those called anything but supported or undecided;
* undecided: of all claims; named right: of those called supported that are, the sources named are one set of the truth
  (*either*: any part of it that is enough);
* unanswerable: false support where the question has no answer in the sources;
* contradiction said: of the wrong claims that a passage contradicts, those called contradicted by such passages only.

Rules are fitted on the worlds "harbour" and "valley"; the tables are of "upland", whose words, wordings, questions and
facts are others. The expected calibration error is the mean distance of the estimated probability from the frequency
of supported claims, over ten equal ranges of it.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_table import DOCS, insert_table
from stored_citations import judge_stored_claim, read_entries

import whyformer as why
from whyformer._cite.calibration import CHECKED, FAST, Calibration, judge_support
from whyformer._cite.effort import choose_effort
from whyformer._cite.run import CITE_METHOD, Study
from whyformer._cite.sources import find_sources
from whyformer.demo import sources
from whyformer.results.citations import CONTRADICTED, SUPPORTED, UNDECIDED
from whyformer.targets import Answer

KINDS = ("one", "reworded", "either", "both", "contradicted", "unanswerable", "sentences")
BEGIN = "<!-- table of benchmarks/citation_verdicts.py -->"
HEADINGS = (
    "false support", "missed support", "undecided", "unanswerable called supported", "sources named right",
    "contradiction said",
)  # fmt: skip
RULES = {"fast": FAST, "checked": CHECKED, "thorough": CHECKED}
STEPS, RIDGE = 20_000, 1e-3  # of the fit


def answer_in_ways(model: why.Model, asked: sources.SourceQuestion, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """The question with the model's own right answer, and with wrong ones."""
    own = why.generate(model, asked.text, max_new_tokens=40).answer_text.strip()
    if own.rstrip(".") == asked.answer.strip().rstrip("."):
        yield "own", asked
    for is_stated in (True, False):
        wrong = sources.answer_wrongly(asked, rng, is_stated=is_stated)
        if wrong is not None:
            yield "stated elsewhere" if is_stated else "absent", wrong


def examine_claims(model: why.Model, asked: sources.SourceQuestion, effort: str) -> Iterator[dict[str, Any]]:
    prompt = why.Prompt.from_text(model, asked.text, answer=f" {asked.answer}")
    found = find_sources(prompt, list(asked.passage_spans), None).sources
    study = Study(model, prompt, found, CITE_METHOD, {}, choose_effort(effort))
    for claim, (start, stop) in zip(asked.claims, asked.claim_spans, strict=True):
        aim = Answer(None) if len(asked.claims) == 1 else Answer((start + 1, stop + 1), unit="character")
        seen = study.examine(aim)
        yield {
            "support": [list(one) for one in claim.support], "against": [list(one) for one in claim.against],
            "basis": list(seen.evidence.likely_basis), "how": seen.evidence.how,
            "opposed": list(seen.evidence.against), "features": dict(seen.features),
            "forwards": seen.spent["cost"],
        }  # fmt: skip


def measure(model_name: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    model = why.open(model_name)
    begin = time.perf_counter()
    for number in range(arguments.questions):
        for seed, passages, kind in product(arguments.seeds, arguments.passages, KINDS):
            if time.perf_counter() - begin > arguments.seconds:
                return
            some = sources.generate(number + 1, seed, world=arguments.world, kind=kind, passages=passages)
            label = {"model": Path(model_name).name, "seed": seed, "passages": passages, "kind": kind}
            for way, answered in answer_in_ways(model, some[number], random.Random(f"{seed} {kind} {number}")):
                for one in examine_claims(model, answered, arguments.effort):
                    yield {**label, "way": way, "effort": arguments.effort, "world": arguments.world, **one}


# --- fitting ----------------------------------------------------------------------------------------------------------


def fit_rule(cases: Sequence[dict[str, Any]], names: Sequence[str]) -> Calibration:
    """Maximum likelihood with coefficients >= 0, by projected gradient steps; features end at the supported median."""
    x = np.array([[case["features"][name] for name in names] for case in cases])
    y = np.array([bool(case["support"]) for case in cases], dtype=float)
    most = np.round(np.median(x[y == 1], axis=0), 4)
    x = np.minimum(x, most)
    mean, scale = x.mean(0), x.std(0) + 1e-9
    z, c, b = (x - mean) / scale, np.zeros(len(names)), 0.0
    for _ in range(STEPS):
        slip = (1 / (1 + np.exp(-(z @ c + b))) - y) / len(y)
        c, b = np.maximum(c - (z.T @ slip + RIDGE * c), 0), b - slip.sum()
    own = {name: round(float(weight), 4) for name, weight in zip(names, c / scale, strict=True)}
    base = round(float(b - (c / scale) @ mean), 4)
    return Calibration(base, own, {name: float(one) for name, one in zip(names, most, strict=True)})


# --- the tables -------------------------------------------------------------------------------------------------------


def is_named_right(case: dict[str, Any]) -> bool:
    basis = set(case["basis"])
    return any(set(one) <= basis for one in case["support"]) and basis <= {i for one in case["support"] for i in one}


def is_opposed_right(case: dict[str, Any]) -> bool:
    return set(case["opposed"]) <= {i for one in case["against"] for i in one}


@dataclass(frozen=True)
class Judged:
    """A case and what is said of it."""

    case: dict[str, Any]
    support: float
    verdict: str


def judge(case: dict[str, Any]) -> Judged:
    support = RULES[case["effort"]].estimate_support(case["features"])
    return Judged(case, support, judge_support(support, bool(case["opposed"])))


def share(wanted: Sequence[bool]) -> str:
    return f"{sum(wanted)} of {len(wanted)} ({sum(wanted) / len(wanted):.1%})" if wanted else "-"


def list_errors(some: Sequence[Judged]) -> list[str]:
    true, false = [one for one in some if one.case["support"]], [one for one in some if not one.case["support"]]
    right = [one for one in true if one.verdict == SUPPORTED]
    denied = [one for one in false if one.case["against"]]
    return [
        share([one.verdict == SUPPORTED for one in false]),
        share([one.verdict not in (SUPPORTED, UNDECIDED) for one in true]),
        share([one.verdict == UNDECIDED for one in some]),
        share([one.verdict == SUPPORTED for one in some if one.case["kind"] == "unanswerable"]),
        share([is_named_right(one.case) for one in right]),
        share([one.verdict == CONTRADICTED and is_opposed_right(one.case) for one in denied]),
    ]


def list_rows(judged: Sequence[Judged], names: Sequence[str]) -> Iterator[str]:
    """A row for each value of these labels, and one of all."""
    groups: dict[tuple[Any, ...], list[Judged]] = {}
    for one in judged:
        groups.setdefault(tuple(one.case[name] for name in names), []).append(one)
    groups = {label: groups[label] for label in sorted(groups)}
    groups |= {("all",) * len(names): list(judged)} if len(groups) > 1 else {}
    yield from format_table([*names, "claims", *HEADINGS], [[*k, len(v), *list_errors(v)] for k, v in groups.items()])


def list_reliability(judged: Sequence[Judged]) -> Iterator[str]:
    estimated = np.array([one.support for one in judged])
    truth = np.array([bool(one.case["support"]) for one in judged])
    place = np.minimum((10 * estimated).astype(int), 9)
    rows, error = [], 0.0
    for i in range(10):
        if (here := place == i).any():
            error += float(here.mean() * abs(estimated[here].mean() - truth[here].mean()))
            mean, often = f"{estimated[here].mean():.3f}", f"{truth[here].mean():.3f}"
            rows.append([f"{i / 10:.1f} to {(i + 1) / 10:.1f}", int(here.sum()), mean, often])
    yield from format_table(["estimated probability", "claims", "its mean", "supported"], rows)
    yield from ("", f"Expected calibration error {error:.3f}, over {len(judged)} claims.")


def format_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    for cells in (headings, ["---"] * len(headings), *rows):
        yield f"| {' | '.join(map(str, cells))} |"


def list_tables(cases: Sequence[dict[str, Any]]) -> Iterator[str]:
    for effort in sorted({case["effort"] for case in cases}):
        judged = [judge(case) for case in cases if case["effort"] == effort]
        yield from (f'Effort `"{effort}"`:', "", *list_rows(judged, ["model", "passages"]), "")
        if effort == "checked":
            yield from (*list_rows(judged, ["kind"]), "")
        yield from (*list_reliability(judged), "")


def read_all(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Saved cases, and those of stored outcomes."""
    stored = read_entries([file for file in files if file.suffix == ".jsonl"])
    saved = [case for file in files if file.suffix != ".jsonl" for case in json.loads(file.read_text())]
    return saved + [judge_stored_claim(entry, effort) for entry in stored for effort in ("checked", "fast")]


def shorten(case: dict[str, Any]) -> dict[str, Any]:
    """What the tables need."""
    labels = ("model", "passages", "kind", "effort", "support", "against", "basis", "opposed")
    return {name: case[name] for name in labels} | {"features": {k: round(v, 4) for k, v in case["features"].items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--world", default="harbour")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--questions", type=int, default=10, help="of each kind, seed and number of passages")
    parser.add_argument("--passages", nargs="+", type=int, default=[8, 20])
    parser.add_argument("--effort", default="checked")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop each model after so long")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", nargs="+", type=Path)
    parser.add_argument("--read", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table into docs/cite.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.fit:
        cases = read_all(arguments.fit)
        for name, rule, efforts in (("FAST", FAST, {"fast"}), ("CHECKED", CHECKED, {"checked"})):
            some = [one for one in cases if one["effort"] in efforts]
            print(f"{name} = {fit_rule(some, list(rule.coefficients))}  # {len(some)} claims" if some else "")
        return
    cases = read_all(arguments.read) if arguments.read else []
    for name in arguments.models:
        for case in measure(name, arguments):
            cases.append(case)
            if arguments.json and len(cases) % 20 == 0:
                arguments.json.write_text(json.dumps(cases))
    if arguments.json:
        arguments.json.write_text(json.dumps([shorten(case) for case in cases], separators=(",", ":")) + "\n")
    lines = list(list_tables(cases))
    print("\n".join(lines))
    if arguments.write:
        insert_table(DOCS / "cite.md", BEGIN, lines)


if __name__ == "__main__":
    main()
