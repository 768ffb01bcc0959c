"""Are the verdicts of cite right? Answers whose truth is known, of models that were trained to read.

    python benchmarks/citation_verdicts.py MODEL ... [--world harbour] [--seeds 1] [--questions 10] --json fit.json
    python benchmarks/citation_verdicts.py --fit fit.json ...                    coefficients and limits, to be pasted
    python benchmarks/citation_verdicts.py MODEL ... --world valley --seeds 11 12 13 --json test.json
    python benchmarks/citation_verdicts.py --read test.json ... [--write]        the table, into docs/cite.md

Questions of whyformer.demo.sources about held-out facts: one passage states the answer, in the same or in other words;
two do; two together; one contradicts; none does. Every question is asked with the model's own answer, if that is right
("not stated" for unanswerable ones, which no source supports), with a wrong value that a passage states of something
else, and with one that no passage contains. Each claim of the answer is a case: *supported* if its truth says so.

* false support: of the claims that no source supports, those called supported;
* missed support: of the supported claims, those called anything but supported or undecided;
* undecided: of all claims; named right: of those called supported that are, the sources named are one set of the truth
  (*either*: any part of it that is enough);
* unanswerable: false support where the question has no answer in the sources.

Limits are chosen on world "harbour", the table is of world "valley", whose words, wordings and facts are others.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_table import DOCS, insert_table

import whyformer as why
from whyformer._cite.calibration import CHECKED, FAST, Calibration
from whyformer._cite.effort import choose_effort
from whyformer._cite.run import CITE_METHOD, Study
from whyformer._cite.sources import find_sources
from whyformer.demo import sources
from whyformer.targets import Answer

KINDS = ("one", "reworded", "either", "both", "contradicted", "unanswerable", "sentences")
BEGIN = "<!-- table of benchmarks/citation_verdicts.py -->"
HEADINGS = (
    "model", "effort", "passages", "claims", "false support", "missed support", "undecided", "sources named right",
    "unanswerable called supported",
)  # fmt: skip
RULES = {"fast": FAST, "checked": CHECKED, "thorough": CHECKED}
MOST_FALSE, MOST_MISSED = 0.02, 0.04  # on the data of the choice: below what is promised


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
            "log_odds": seen.log_odds, "least": seen.likelihood.least_log_odds, "drop": seen.evidence.drop,
            "control": seen.evidence.control, "margin": seen.evidence.margin,
            "drops": [[list(some), drop] for some, drop in seen.evidence.drops.items()],
            "spent": dict(seen.spent),
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


# --- choosing ---------------------------------------------------------------------------------------------------------


def fit_rule(cases: Sequence[dict[str, Any]], names: Sequence[str]) -> Calibration:
    """Coefficients >= 0 by projected gradient steps; then the widest limits that keep both errors low."""
    x = np.array([[case["features"][name] for name in names] for case in cases])
    y = np.array([bool(case["support"]) for case in cases], dtype=float)
    weight = np.where(y > 0, 0.5 / y.sum(), 0.5 / (1 - y).sum())
    scale = x.std(0) + 1e-9
    z, c, b = x / scale, np.zeros(len(names)), 0.0
    for _ in range(20_000):
        slip = weight * (1 / (1 + np.exp(-(z @ c + b))) - y)
        c, b = np.maximum(c - 1.0 * (z.T @ slip + 1e-3 * c), 0), b - 1.0 * slip.sum()
    p = 1 / (1 + np.exp(-(z @ c + b)))
    high = float(np.quantile(p[y == 0], 1 - MOST_FALSE))
    low = float(np.quantile(p[y == 1], MOST_MISSED))
    middle = (high + low) / 2
    low, high = (middle, middle) if low > high else (low, high)
    return Calibration(round(float(b), 3), {n: round(float(v), 4) for n, v in zip(names, c / scale, strict=True)},
                       round(low, 4), round(high, 4))  # fmt: skip


# --- the table --------------------------------------------------------------------------------------------------------


def judge(case: dict[str, Any], rule: Calibration) -> str:
    return rule.judge(rule.estimate_support(case["features"]), bool(case["opposed"]))


def is_named_right(case: dict[str, Any]) -> bool:
    basis = set(case["basis"])
    return any(set(one) <= basis for one in case["support"]) and basis <= {i for one in case["support"] for i in one}


def format_row(label: Sequence[Any], cases: Sequence[dict[str, Any]], rule: Calibration) -> str:
    verdicts = [judge(case, rule) for case in cases]
    pairs = list(zip(cases, verdicts, strict=True))

    def share(wanted: Sequence[bool]) -> str:
        return f"{sum(wanted)} of {len(wanted)} ({sum(wanted) / max(len(wanted), 1):.1%})"

    cells = [
        *label, len(cases),
        share([verdict == "supported" for case, verdict in pairs if not case["support"]]),
        share([verdict not in ("supported", "undecided") for case, verdict in pairs if case["support"]]),
        share([verdict == "undecided" for _, verdict in pairs]),
        share([is_named_right(case) for case, verdict in pairs if case["support"] and verdict == "supported"]),
        share([verdict == "supported" for case, verdict in pairs if case["kind"] == "unanswerable"]),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def list_table(cases: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|---" * len(HEADINGS) + "|"
    labels = sorted({(case["model"], case["effort"], case["passages"]) for case in cases})
    for label in labels:
        some = [case for case in cases if (case["model"], case["effort"], case["passages"]) == label]
        yield format_row(label, some, RULES[label[1]])
    for effort in sorted({case["effort"] for case in cases}):
        yield format_row(("all", effort, "all"), [one for one in cases if one["effort"] == effort], RULES[effort])


def read_all(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [case for file in files for case in json.loads(file.read_text())]


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
        print("FAST =", fit_rule(cases, list(FAST.coefficients)))
        print("CHECKED =", fit_rule([one for one in cases if one["effort"] != "fast"], list(CHECKED.coefficients)))
        return
    cases = read_all(arguments.read) if arguments.read else []
    for name in arguments.models:
        for case in measure(name, arguments):
            cases.append(case)
            if arguments.json and len(cases) % 50 == 0:
                arguments.json.write_text(json.dumps(cases))
    if arguments.json:
        arguments.json.write_text(json.dumps(cases))
    lines = list(list_table(cases))
    print("\n".join(lines))
    if arguments.write:
        insert_table(DOCS / "cite.md", BEGIN, lines)


if __name__ == "__main__":
    main()
