"""Does what `judge` says of forty examples hold on the rest of the data?

    python benchmarks/judge_verdicts.py DATA [hatexplain sst2 imdb pets] [--forties 10] [--rest 300]

Every method of one pass, the controls and the default metrics are measured once on all examples; then the verdict is
written for each of several disjoint forties, and the recommended method is compared with every other one on all other
examples, in each metric of faithfulness. Decided before anything was measured:

* a *miss*: another method is better there by more than 0.02, by the whole 95 % interval, in a metric in which the first
  sentence of the verdict neither calls the recommended method worse, nor leaves a lead as large open;
* *open*: the same, but the first sentence leaves it open, or says it;
* *nothing*: no method is recommended.

DATA holds the models and data sets: bert-tiny-toxicity on HateXplain (posts with marked words, for *toxic*), a MiniLM
on SST-2 and on reviews of IMDB cut to 128 tokens, demo/pets on held-out photos (evaluation/stage.py pets).
"""

import argparse
import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import whyformer as why
from whyformer._judge.judgement import Judgement
from whyformer._judge.rows import RowTable
from whyformer._judge.table import Table, tabulate_rows
from whyformer._judge.verdict import find_winner, list_fair_metrics, list_verdict
from whyformer.data import Data, read
from whyformer.metrics._registry import choose_metric

SIZE = 40
TOLERANCE = 0.02  # of a probability
WORDS = 90  # about 128 tokens of a review
PHOTOS = Path(__file__).parents[1] / "evaluation" / "data" / "pets"
METHODS = ("attnlrp", "libragrad", "gamma_attribution", "attcat", "gradient_x_input", "saliency", "rollout", "grad_cam")


def open_hatexplain(data: Path) -> tuple[why.Model, Data, str]:
    posts = read(
        data / "hatexplain" / "test.jsonl.gz",
        classes={"hatespeech": "toxic", "offensive": "toxic", "normal": "not-toxic"},
    )
    marked = tuple(example for example in posts.examples if example.rationale)
    return why.open(str(data / "bert-tiny-toxicity"), dtype=torch.float32), replace(posts, examples=marked), "toxic"


def open_sst2(data: Path) -> tuple[why.Model, Data, str]:
    return why.open(str(data / "minilm-l6-sst2"), dtype=torch.float32), read(data / "sst2" / "dev.tsv"), "predicted"


def open_imdb(data: Path) -> tuple[why.Model, Data, str]:
    reviews = read(next((data / "imdb").glob("*.gz")))
    short = [replace(one, content=" ".join(one.load().split()[:WORDS])) for one in reviews.examples]
    return (
        why.open(str(data / "minilm-l6-sst2"), dtype=torch.float32),
        replace(reviews, examples=tuple(short)),
        "predicted",
    )


def open_pets(data: Path) -> tuple[why.Model, Data, str]:
    return why.open("demo/pets"), read(PHOTOS, mask_values="trimap"), "predicted"


SETS = {"hatexplain": open_hatexplain, "sst2": open_sst2, "imdb": open_imdb, "pets": open_pets}


def take_examples(rows: RowTable, chosen: Sequence[int]) -> RowTable:
    """The rows of these examples."""
    part = copy.copy(rows)
    part.all, part.value, part.infinite = (array[chosen] for array in (rows.all, rows.value, rows.infinite))
    return part


def tabulate(judged: Judgement, chosen: Sequence[int]) -> Table:
    calls = {label: choose_metric(label.split("(")[0]) for label in judged.rows.metrics}
    blind = judged.table.class_blind
    return tabulate_rows(take_examples(judged.rows, chosen), calls, class_blind=blind)


def find_misses(headline: str, winner: str, metrics: Sequence[str], rest: Table) -> tuple[list[str], list[str]]:
    """What the headline does not say of the rest of the data, and what it leaves open or says."""
    missed: list[str] = []
    left_open: list[str] = []
    for (metric, rival, other), lead in rest.leads.items():
        if other == winner and metric in metrics and lead.low > TOLERANCE:
            said = f"{metric}: {rival} is better by {lead.mean:.3f} ({lead.low:.3f} to {lead.high:.3f})"
            bound = re.search(rf"by up to ([\d.e-]+) in {metric}\b", headline)
            is_said = f"in {metric} (by" in headline or (bound is not None and float(bound[1].rstrip(".")) >= lead.low)
            (left_open if is_said else missed).append(said)
    return missed, left_open


def measure_set(name: str, given: argparse.Namespace) -> None:
    model, data, target = SETS[name](given.data)
    data = data.sample(given.forties * SIZE + given.rest, seed=7)
    metrics = None if name == "hatexplain" else ["comprehensiveness", "sufficiency"]
    asked = {"target": target, "out": given.out / name, "batch_size": 16, "report": False}
    judged = why.judge(model, data, given.methods, metrics, **asked)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(7)).tolist()
    counts = {"nothing": 0, "missed": 0, "open": 0}
    for forty in range(given.forties):
        inside = order[forty * SIZE : (forty + 1) * SIZE]
        table, rest = tabulate(judged, inside), tabulate(judged, [n for n in order if n not in inside])
        headline, winner = list_verdict(table)[0], find_winner(table)
        missed, left_open = (
            ([], []) if winner is None else find_misses(headline, winner, list_fair_metrics(table), rest)
        )
        counts["nothing"] += winner is None
        counts["missed"] += bool(missed)
        counts["open"] += bool(left_open)
        print(f"{name} {forty}: {headline}")
        for kind, lines in (("MISS", missed), ("open", left_open)):
            print("".join(f"    {kind} {line}\n" for line in lines), end="")
    print(f"{name}: {given.forties} forties, {len(data) - SIZE} others: {counts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", choices=[*SETS, []], default=list(SETS))
    parser.add_argument("--forties", type=int, default=10)
    parser.add_argument("--rest", type=int, default=300)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path("runs/forties"))
    given = parser.parse_args()
    for name in given.names:
        measure_set(name, given)


if __name__ == "__main__":
    main()
