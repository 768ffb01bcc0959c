"""Which method finds the word that decides the tag of a name? A trained tagger, 200 held-out sentences it tags right.

    python benchmarks/named_entities.py [--model demo/names] [--methods ...] [--items 200] [--print]

Writes the table into docs/targets.md; with --print it only prints it. The score is the logit of the right tag at the
name (`Entity`). A hit: the trigger has the strictly highest score of all words outside the name itself. Controls: one
of these words at random, and always the position that held the trigger most often in training sentences, counted from
the start, the end or the name (what a map of positions alone can know).
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from page_table import run_for_page
from torch import Tensor

import whyformer as why
from whyformer.errors import WhyformerError
from whyformer.methods._registry import METHODS
from whyformer.targets import Entity
from whyformer_papers.worlds import names

BUDGET = {"budget": 256}
BATCH = 50
ORIGINS: tuple[Callable[[names.NamedSentence], int], ...] = (lambda s: 0, lambda s: len(s.words), lambda s: s.name)


def is_hit(scores: Tensor, sentence: names.NamedSentence) -> bool:
    """Whether the trigger has the strictly highest score of all words but the name. `scores` [word]."""
    others = scores.clone()
    others[sentence.name] = -torch.inf
    return (others == others.max()).nonzero()[:, 0].tolist() == [sentence.evidence]


def measure_hit_rate(model: why.Model, sentences: Sequence[names.NamedSentence], method: str) -> float | None:
    """The share of hits; None for a method that refuses this model."""
    settings = BUDGET if "budget" in METHODS[method].settings else {}
    hits = 0
    try:
        for start in range(0, len(sentences), BATCH):
            part = sentences[start : start + BATCH]
            target = [Entity(s.name + 1, label=s.label) for s in part]
            e = why.explain(model, [s.text for s in part], method, target=target, **settings)
            hits += sum(is_hit(row[1 : 1 + len(s.words)], s) for row, s in zip(e.scores, part, strict=True))
    except WhyformerError as error:
        print(f"{method}: {error}", file=sys.stderr)
        return None
    return hits / len(sentences)


def choose_right(model: why.Model, count: int) -> list[names.NamedSentence]:
    """The first `count` held-out sentences of seed 0 whose explained name the model tags right."""
    chosen: list[names.NamedSentence] = []
    sentences = names.generate(2 * count, 0)
    for start in range(0, len(sentences), BATCH):
        part = sentences[start : start + BATCH]
        with torch.no_grad():
            best = model.module(**model.encode([s.text for s in part]).inputs).logits.argmax(-1)
        chosen += [s for i, s in enumerate(part) if names.LABELS[int(best[i, s.name + 1])] == s.label]
    if len(chosen) < count:
        raise SystemExit(f"The model tags only {len(chosen)} of {len(sentences)} names right; {count} are needed.")
    return chosen[:count]


def measure_best_position(sentences: Sequence[names.NamedSentence]) -> float:
    """The highest hit rate of a fixed position: most frequent in training sentences, for each origin."""
    seen = names.generate(5000, 1, part="training")
    rates = []
    for origin in ORIGINS:
        place = Counter(s.evidence - origin(s) for s in seen).most_common(1)[0][0]
        rates.append(sum(s.evidence - origin(s) == place for s in sentences) / len(sentences))
    return max(rates)


def make_table(model: why.Model, sentences: Sequence[names.NamedSentence], methods: Sequence[str]) -> list[str]:
    rows = []
    for method in methods:
        began = time.monotonic()
        rate = measure_hit_rate(model, sentences, method)
        print(f"{method}: {rate} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        rows += [(f"`{method}`", rate)] if rate is not None else []
    rows.sort(key=lambda row: (-row[1], row[0]))
    chance = sum(1 / (len(s.words) - 1) for s in sentences) / len(sentences)
    rows += [("*a word at random*", chance), ("*the best fixed position*", measure_best_position(sentences))]
    return ["| method | hit rate, % |", "|---|---|", *(f"| {name} | {100 * rate:.1f} |" for name, rate in rows)]


def main() -> None:
    run_for_page(
        "named_entities.py",
        __doc__,
        "targets.md",
        model="demo/names",
        items=200,
        make_table=lambda model, items, methods: make_table(model, choose_right(model, items), methods),
    )


if __name__ == "__main__":
    main()
