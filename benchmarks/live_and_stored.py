"""Do stored outcomes say what cite() says? The same claims, once from the file and once from the model.

    python benchmarks/citation_outcomes.py claims --model demo/sources --name neox ... --out FILE.jsonl
    python benchmarks/live_and_stored.py demo/sources FILE.jsonl [--questions 60]

Every claim of the first questions is judged by stored_citations.py and by the code that cite() runs. A line for each
that differs in its verdict, in the sources that it rests on or in those that speak against it; then how many.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from citation_outcomes import list_ways
from citation_verdicts import examine_claims, judge
from stored_citations import judge_stored_claim, read_entries

import whyformer as why
from whyformer.demo import sources

LABELS = ("world", "seed", "passages", "kind", "number", "way")


def ask_again(entry: Mapping[str, Any]) -> sources.SourceQuestion:
    """The question of a stored claim, with the answer that was given to it."""
    number, kind = entry["number"], entry["kind"]
    some = sources.generate(number + 1, entry["seed"], world=entry["world"], kind=kind, passages=entry["passages"])
    asked = list_ways(some[number], entry["seed"], number)[entry["way"]]
    assert asked is not None
    return asked


def describe_claim(case: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": judge(case).verdict, "rests on": case["basis"], "against": case["opposed"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = why.open(arguments.model, device=arguments.device)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in read_entries([arguments.file]):
        groups.setdefault(tuple(entry[name] for name in LABELS), []).append(entry)
    claims = differing = 0
    for label, entries in list(groups.items())[: arguments.questions]:
        live = examine_claims(model, ask_again(entries[0]), "checked")
        for entry, case in zip(entries, live, strict=True):
            stored = describe_claim(judge_stored_claim(entry, "checked"))
            own = describe_claim({"effort": "checked", **case})
            claims += 1
            if stored != own:
                differing += 1
                print(*label, "stored:", stored, "live:", own, flush=True)
    print(f"{differing} of {claims} claims differ, {min(len(groups), arguments.questions)} questions")


if __name__ == "__main__":
    main()
