"""Which method finds the word that decides the tag of a name? A trained tagger, 100 held-out sentences.

    python benchmarks/named_entities.py [--model demo/names] [--methods ...] [--items 100] [--print]

Writes the table into docs/targets.md; with --print it only prints it. The score is the tag rather than that of the
other name (`versus`), from which what makes a word a name cancels out. Two columns: the deciding word has the highest
score, and it or the second mention of the name, which says whose kind it is, has it. Controls: a word at random, and
the positions in the sentence that held them most often in training sentences (what a map of positions alone can know).
"""

import argparse
import sys
import time
from pathlib import Path

import torch

import whyformer as why
from whyformer.demo import names
from whyformer.errors import WhyformerError
from whyformer.methods._registry import METHODS
from whyformer.targets import Entity

PAGE = Path(__file__).parents[1] / "docs" / "targets.md"
BEGIN, END = "<!-- table of benchmarks/named_entities.py -->", "<!-- end of the table -->"
BUDGET = {"budget": 256}


def hit_rates(model: why.Model, sentences: list[names.NamedSentence], method: str) -> tuple[float, float] | None:
    """How often the deciding word, and it or the second mention of the name, has the strictly highest score."""
    settings = BUDGET if "budget" in METHODS[method].settings else {}
    hits = [0, 0]
    try:
        for start in range(0, len(sentences), 50):
            part = sentences[start : start + 50]
            target, versus = (
                [Entity(s.name + 1, label=label) for s, label in zip(part, labels, strict=True)]
                for labels in ([s.label for s in part], [s.decoy_label for s in part])
            )
            e = why.explain(model, [s.text for s in part], method, target=target, versus=versus, **settings)
            for row, sentence in zip(e.scores, part, strict=True):
                words = row[1 : 1 + len(sentence.words)]
                best = (words == words.max()).nonzero()[:, 0].tolist()
                hits[0] += best == [sentence.evidence]
                hits[1] += best in ([sentence.evidence], [sentence.mention])
    except WhyformerError as error:
        print(f"{method}: {error}", file=sys.stderr)
        return None
    return hits[0] / len(sentences), hits[1] / len(sentences)


def count_correct(model: why.Model, sentences: list[names.NamedSentence]) -> float:
    """How often the tagger tags the explained name right."""
    right = 0
    for start in range(0, len(sentences), 50):
        part = sentences[start : start + 50]
        encoded = model.encode([s.text for s in part])
        with torch.no_grad():
            best = model.module(**encoded.inputs).logits.argmax(-1)
        right += sum(names.LABELS[int(best[i, s.name + 1])] == s.label for i, s in enumerate(part))
    return right / len(sentences)


def position_priors(sentences: list[names.NamedSentence]) -> tuple[float, float]:
    """The hit rates of always pointing at one place, counted from the start or the end: the best one in training."""
    seen = names.generate(2000, 1, part="training")

    def rate(part: list[names.NamedSentence], place: int, both: bool) -> float:
        at = [place if place >= 0 else len(s.words) + place for s in part]
        return sum(p == s.evidence or (both and p == s.mention) for p, s in zip(at, part, strict=True)) / len(part)

    places = [*range(-12, 0), *range(25)]
    best = [max(places, key=lambda place: rate(list(seen), place, both)) for both in (False, True)]
    return rate(sentences, best[0], False), rate(sentences, best[1], True)


def percent(rate: float) -> str:
    return f"{100 * rate:.0f}"


def make_table(model: why.Model, sentences: list[names.NamedSentence], methods: list[str]) -> list[str]:
    rows = []
    for method in methods:
        began = time.monotonic()
        rates = hit_rates(model, sentences, method)
        print(f"{method}: {rates} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        rows += [(method, *rates)] if rates is not None else []
    rows.sort(key=lambda row: (-row[2], -row[1], row[0]))
    lines = ["| method | the deciding word | it or the second mention |", "|---|---|---|"]
    lines += [f"| `{name}` | {percent(one)} | {percent(other)} |" for name, one, other in rows]
    chance = sum(1 / len(s.words) for s in sentences) / len(sentences)
    prior = position_priors(sentences)
    lines += [
        f"| *a word at random* | {percent(chance)} | {percent(2 * chance)} |",
        f"| *the most frequent position* | {percent(prior[0])} | {percent(prior[1])} |",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo/names")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS), metavar="METHOD")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--print", action="store_true", help="print the table instead of writing it into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = why.open(arguments.model)
    sentences = list(names.generate(arguments.items, 0))
    print(f"right tags: {100 * count_correct(model, sentences):.1f} %", file=sys.stderr)
    lines = make_table(model, sentences, arguments.methods)
    if arguments.print:
        print("\n".join(lines))
        return
    page = PAGE.read_text("utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
