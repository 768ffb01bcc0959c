"""Is the default method the best of its cost on real models? Faithfulness by plain calls of the models alone.

    PYTHONPATH=evaluation python benchmarks/real_default.py sst2 gender --data FOLDER --texts 150
    PYTHONPATH=evaluation python benchmarks/real_default.py nli smollm2 --squad squad2.json --texts 40
    PYTHONPATH=evaluation python benchmarks/real_default.py sst2 --data FOLDER --peers "autoLRP: attnlrp" --texts 16
    PYTHONPATH=evaluation python benchmarks/real_default.py --write

Nothing of `whyformer.metrics` is used: tokens are deleted or masked by hand, those with the highest scores first, and
the plain model is asked for the probability p of the answer that it gave to the whole text (an encoder: the cosine with
a question). Tokens that are special, the last one of a language model and the tagged word always stay.

delete, mask       AOPC: p of the whole text minus p without the top 10, 20, 30, 40, 50 %, the mean
comprehensiveness  the same by deletion of the top 1, 5, 10, 20, 50 % (ERASER)
log-odds           log p of the whole text minus log p with the top 20 % masked

All four are higher for a better order. The gap is from the default to the best of the methods that cost no more than it
(a forward and one pass back), with the 95 % interval of the paired differences. With --peers, other libraries are asked
on the same texts; their cost is counted in calls of the model, a pass back as two.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from page_table import DOCS, insert_table
from peer_scores import PEERS, count_calls
from real_texts import METRICS, Text, list_texts, open_asked
from torch import Tensor

import whyformer as why

DEFAULT = "libragrad"
BEGIN = "<!-- table of benchmarks/real_default.py -->"
BESIDE = ("libragrad", "attnlrp")  # of ours, in the tables with other libraries
AIM = 0.02


def list_methods() -> list[str]:
    """Those that run forward once, and back at most once."""
    affordable = {"forward", "forward + backward", "forward + relevance"}
    return [one.name for one in why.METHODS.values() if str(one.cost) in affordable]


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """{method: [text][metric]}, what a text costs, and what was refused."""
    asked, model = open_asked(name, options.data)
    texts = [Text.make(asked, one) for one in list_texts(name, options.squad, options.data, options.texts)]
    scores: dict[str, list[Tensor]] = {}
    costs, refused = {}, {}
    for method in options.methods or (BESIDE if options.peers else list_methods()):
        try:
            found = [one.explain(model, method) for one in texts]
        except why.WhyformerError as error:
            refused[method] = str(error)[:120]
            continue
        scores[method] = [e.scores[0][: len(one.ids)] for e, one in zip(found, texts, strict=True)]
        costs[method] = count_spent(found[-1])
    draw = random.Random(1)
    scores["random order"] = [torch.tensor([draw.random() for _ in one.ids]) for one in texts]
    costs["random order"] = 0.0
    for peer in options.peers:
        try:
            with count_calls(asked.module) as counted:
                scores[peer] = [PEERS[peer](asked, one) for one in texts]
            costs[peer] = counted.cost / len(texts)
        except Exception as error:
            refused[peer] = f"{type(error).__name__}: {error}"[:120]
    rows: dict[str, list[list[float]]] = {method: [] for method in scores}
    for number, text in enumerate(texts):
        own = {method: found[number] for method, found in scores.items()}
        text.learn(q for one in own.values() for asked_of in text.list_questions(one).values() for q in asked_of)
        for method, one in own.items():
            rows[method].append(text.measure(one))
    return {"rows": rows, "costs": costs, "refused": refused}


def count_spent(e: why.Explanation) -> float:
    """Forwards, a pass back as two."""
    return e.spent.get("forward", 1.0) + 2 * (e.spent.get("backward", 0.0) + e.spent.get("relevance", 0.0))


# --- results ----------------------------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """Of each method and metric: the mean, and by how much it is ahead of the default, with a standard error."""
    rows = measured["rows"]
    methods = {}
    for method, found in rows.items():
        gaps = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(found, rows[DEFAULT], strict=True)]
        methods[method] = {
            "cost": measured["costs"][method],
            "means": [round(mean(column), 5) for column in zip(*found, strict=True)],
            "ahead": [[round(mean(column), 5), round(standard_error(column), 5)] for column in zip(*gaps, strict=True)],
        }
    return {"texts": len(rows[DEFAULT]), "methods": methods, "refused": measured["refused"]}


def standard_error(values: Sequence[float]) -> float:
    center = mean(values)
    return math.sqrt(sum((one - center) ** 2 for one in values) / max(len(values) - 1, 1) / len(values))


def find_best(stored: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """Of each metric: the best method that costs no more than the default, its lead, and half of the 95 % interval."""
    methods = stored["methods"]
    limit = methods[DEFAULT]["cost"]
    equals = [name for name, one in methods.items() if name in why.METHODS and one["cost"] <= limit]
    for number in range(len(methods[DEFAULT]["means"])):
        best = max(equals, key=lambda name: methods[name]["means"][number])
        gap, error = methods[best]["ahead"][number]
        yield METRICS[number], best, gap, 1.96 * error


def rank(stored: dict[str, Any]) -> dict[str, float]:
    """The mean of a method's ranks in the metrics."""
    means = {name: one["means"] for name, one in stored["methods"].items()}
    return {
        name: mean([1 + sum(other[n] > own[n] for other in means.values()) for n in range(len(own))])
        for name, own in means.items()
    }


def write_rows(name: str, stored: dict[str, Any], most: int = 4) -> Iterator[str]:
    """The methods by the mean of their ranks, and always the default, the control and other libraries."""
    ranks = rank(stored)
    order = sorted(ranks, key=lambda method: ranks[method])
    shown = [*order[:most], *(one for one in order[most:] if one in BESIDE or one not in why.METHODS)]
    columns = METRICS[: len(stored["methods"][DEFAULT]["means"])]
    yield f"| {name}, {stored['texts']} texts | cost | {' | '.join(columns)} | mean rank |"
    yield "|---|---:|" + "---:|" * (len(columns) + 1)
    for method in shown:
        one = stored["methods"][method]
        cells = " | ".join(f"{value:.3f}" for value in one["means"])
        label = f"**{method}**" if method == DEFAULT else method
        yield f"| {label} | {one['cost']:.0f} | {cells} | {ranks[method]:.1f} of {len(ranks)} |"


def write_gaps(stored: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One line a model: how far the default is behind the best of its cost."""
    yield f"| behind the best of its cost | texts | rank | {' | '.join(METRICS)} |"
    yield "|---|---:|---:|" + "---|" * len(METRICS)
    for name, one in stored.items():
        cells = []
        for _, best, gap, half in find_best(one):
            text = "best" if best == DEFAULT else f"{gap:.3f} ± {half:.3f} {best}"
            cells.append(f"**{text}**" if gap > AIM else text)
        cells += [""] * (len(METRICS) - len(cells))
        ranks = rank({"methods": {method: of for method, of in one["methods"].items() if method in why.METHODS}})
        yield f"| {name} | {one['texts']} | {ranks[DEFAULT]:.1f} of {len(ranks)} | {' | '.join(cells)} |"


def write_counts(stored: dict[str, dict[str, Any]]) -> str:
    """In how many metrics of all models each method is at most AIM behind the best of them."""
    cells: dict[str, list[bool]] = {}
    for one in stored.values():
        methods = {name: of["means"] for name, of in one["methods"].items() if name in why.METHODS}
        best = [max(column) for column in zip(*methods.values(), strict=True)]
        for name, means in methods.items():
            cells.setdefault(name, []).extend(top - own <= AIM for top, own in zip(best, means, strict=True))
    order = sorted(cells, key=lambda name: -sum(cells[name]))
    counts = ", ".join(f"`{name}` {sum(cells[name])}" for name in order)
    return f"At most {AIM:g} behind the best, of {len(cells[DEFAULT])} means: {counts}."


def write_page(stored: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """The gaps of all models, and the tables with other libraries."""
    lines = [*write_gaps(stored["models"]), "", write_counts(stored["models"]), ""]
    for name, one in stored["beside"].items():
        lines += [*write_rows(name, one, 9), ""]
    return [line.replace(" | ", "|") for line in lines]


def write_all(stored: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Each model with all methods, for the file beside the results."""
    tables = ["\n".join([*write_rows(name, one, 99), *write_refused(one)]) for name, one in stored["models"].items()]
    return "\n\n".join(["Written by benchmarks/real_default.py.", *tables]) + "\n"


def write_refused(stored: dict[str, Any]) -> Iterator[str]:
    for method, reason in stored["refused"].items():
        yield f"| {method} | refused: {' '.join(reason.split())} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of evaluation/real; sst2, imdb, gender, toxicity")
    parser.add_argument("--squad", type=Path)
    parser.add_argument("--data", type=Path, help="the folder with the classifiers and their texts")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--peers", nargs="*", default=[], choices=PEERS)
    parser.add_argument("--out", type=Path, default=Path("evaluation/real/results/default.json"))
    parser.add_argument("--rows", type=Path, help="a folder for the measurements of each text")
    parser.add_argument("--write", action="store_true", help="the stored results into docs/real.md")
    options = parser.parse_args()
    for name in options.names:
        measured = measure_model(name, options)
        stored = json.loads(options.out.read_text()) if options.out.exists() else {"models": {}, "beside": {}}
        stored["beside" if options.peers else "models"][name] = one = summarise(measured)
        options.out.write_text(json.dumps(stored, separators=(",", ":")) + "\n")
        if options.rows:
            (options.rows / f"{name}.json").write_text(json.dumps(measured["rows"]))
        print(
            "\n".join([*write_rows(name, one, 20), "", *write_gaps({name: one}), f"refused: {one['refused']}", ""]),
            flush=True,
        )
    if options.write:
        stored = json.loads(options.out.read_text())
        insert_table(DOCS / "real.md", BEGIN, write_page(stored))
        options.out.with_suffix(".md").write_text(write_all(stored))


if __name__ == "__main__":
    main()
