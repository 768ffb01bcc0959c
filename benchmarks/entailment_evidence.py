"""Which method finds the fact that decides? A trained model of entailment, 100 held-out pairs that it answers right.

    python benchmarks/entailment_evidence.py [--model demo/entailment] [--methods ...] [--items 100] [--print]

Writes the table into docs/pairs.md; with --print it only prints it. The target is the right label. A hit in the
premise: of its properties, the deciding one has the strictly highest score. "Both" also needs the hypothesis: the
claimed property has the strictly highest score of its five words. Neutral pairs have no evidence in the premise and are
left out. The control draws one of the properties, and one of the five words, at random.
"""

import sys
import time
from collections.abc import Sequence

import torch
from page_table import run_for_page
from torch import Tensor

import whyformer as why
from whyformer.errors import WhyformerError
from whyformer.methods._registry import METHODS
from whyformer_papers.worlds import entailment

BUDGET = {"budget": 256}
BATCH = 50
ANSWERS = ("entailment", "contradiction")


def has_best(scores: Tensor, candidates: Sequence[int], evidence: Sequence[int]) -> bool:
    """Whether the strictly highest of the candidates is evidence."""
    best = max(float(scores[i]) for i in candidates)
    return [i in evidence for i in candidates if float(scores[i]) == best] == [True]


def find_hits(scores: Tensor, pair: entailment.EntailmentPair) -> tuple[bool, bool]:
    """Hit in the premise, and in both texts. `scores` [token]."""
    words = len(pair.premise_words)
    premise = has_best(scores[1:], pair.candidates, pair.premise_evidence)
    hypothesis = scores[2 + words : 2 + words + len(pair.hypothesis_words)]
    return premise, premise and has_best(hypothesis, range(len(pair.hypothesis_words)), pair.hypothesis_evidence)


def measure_hit_rates(
    model: why.Model, pairs: Sequence[entailment.EntailmentPair], method: str
) -> tuple[float, float, float] | None:
    """Premise of entailed pairs, premise of contradictions, both texts of all; None for a method that refuses."""
    settings = BUDGET if "budget" in METHODS[method].settings else {}
    hits: list[tuple[str, bool, bool]] = []
    try:
        for start in range(0, len(pairs), BATCH):
            part = pairs[start : start + BATCH]
            texts = [why.TextPair(*pair.texts) for pair in part]
            e = why.explain(model, texts, method, target=[pair.label for pair in part], **settings)
            hits += [(pair.label, *find_hits(row, pair)) for row, pair in zip(e.scores, part, strict=True)]
    except WhyformerError as error:
        print(f"{method}: {error}", file=sys.stderr)
        return None
    by_label = [[hit for label, hit, _ in hits if label == answer] for answer in ANSWERS]
    return (*(sum(own) / len(own) for own in by_label), sum(both for *_, both in hits) / len(hits))  # type: ignore[return-value]


def choose_right(model: why.Model, count: int) -> list[entailment.EntailmentPair]:
    """The first held-out pairs of seed 0 with evidence in the premise that the model answers right, half of each."""
    chosen: dict[str, list[entailment.EntailmentPair]] = {answer: [] for answer in ANSWERS}
    pairs = [pair for pair in entailment.generate(4 * count, 0) if pair.label in ANSWERS]
    for start in range(0, len(pairs), BATCH):
        part = pairs[start : start + BATCH]
        with torch.no_grad():
            encoded = model.encode([why.TextPair(*pair.texts) for pair in part])
            best = model.module(**encoded.inputs).logits.argmax(-1).tolist()
        for pair, answer in zip(part, best, strict=True):
            if entailment.LABELS[answer] == pair.label and len(chosen[pair.label]) < count // 2:
                chosen[pair.label].append(pair)
    return [pair for own in chosen.values() for pair in own]


def make_table(model: why.Model, pairs: Sequence[entailment.EntailmentPair], methods: Sequence[str]) -> list[str]:
    rows: list[tuple[str, tuple[float, float, float]]] = []
    for method in methods:
        began = time.monotonic()
        rates = measure_hit_rates(model, pairs, method)
        print(f"{method}: {rates} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        rows += [(f"`{method}`", rates)] if rates is not None else []
    rows.sort(key=lambda row: (-row[1][0], -row[1][1], row[0]))
    share = {a: [len(p.premise_evidence) / len(p.candidates) for p in pairs if p.label == a] for a in ANSWERS}
    every = [len(p.premise_evidence) / len(p.candidates) for p in pairs]
    means = [sum(own) / len(own) for own in share.values()]
    rows.append(("*a candidate at random*", (means[0], means[1], 0.2 * sum(every) / len(every))))
    head = ["| method | entailment: premise | contradiction: premise | both texts |", "|---|---|---|---|"]
    return head + [f"| {name} | " + " | ".join(f"{100 * rate:.1f}" for rate in rates) + " |" for name, rates in rows]


def main() -> None:
    run_for_page(
        "entailment_evidence.py",
        __doc__,
        "pairs.md",
        model="demo/entailment",
        items=100,
        make_table=lambda model, items, methods: make_table(model, choose_right(model, items), methods),
    )


if __name__ == "__main__":
    main()
