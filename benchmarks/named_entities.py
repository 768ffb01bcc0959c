"""Which method finds the word that decides the tag of a name? A trained tagger, 100 held-out sentences.

    python benchmarks/named_entities.py [--model demo/names] [--methods ...] [--items 100] [--print]

Writes the table into docs/targets.md; with --print it only prints it. Two columns: the logit of the tag, and the tag
rather than that of the other name (`versus`), from which what makes a word a name cancels out. Controls: chance, the
position in the sentence that held the evidence most often in training sentences (what a map of positions alone can
know), and one of the words that decide a tag, drawn at random.
"""

import argparse
import sys
import time
from collections import Counter
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


def hit_rate(model: why.Model, sentences: list[names.NamedSentence], method: str, contrast: bool) -> float | None:
    """How often the evidence has the strictly highest score of all words; None if the method cannot be used."""
    settings = BUDGET if "budget" in METHODS[method].settings else {}
    hits = 0
    try:
        for start in range(0, len(sentences), 50):
            part = sentences[start : start + 50]
            target = [Entity(s.name + 1, label=s.label) for s in part]
            versus = [Entity(s.name + 1, label=s.decoy_label) for s in part] if contrast else None
            e = why.explain(model, [s.text for s in part], method, target=target, versus=versus, **settings)
            for row, sentence in zip(e.scores, part, strict=True):
                words = row[1 : 1 + len(sentence.words)]
                best = words == words.max()
                hits += int(best.sum() == 1 and bool(best[sentence.evidence]))
    except WhyformerError as error:
        print(f"{method}: {error}", file=sys.stderr)
        return None
    return hits / len(sentences)


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


def position_prior(sentences: list[names.NamedSentence]) -> float:
    """The hit rate of always pointing at the most frequent position, counted from the start or from the end."""
    seen = names.generate(4000, 1, part="training")
    first = Counter(s.evidence for s in seen).most_common(1)[0][0]
    last = Counter(len(s.words) - s.evidence for s in seen).most_common(1)[0][0]
    rates = (
        sum(s.evidence == first for s in sentences),
        sum(len(s.words) - s.evidence == last for s in sentences),
    )
    return max(rates) / len(sentences)


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.0f}"


def make_table(model: why.Model, sentences: list[names.NamedSentence], methods: list[str]) -> list[str]:
    rows = []
    for method in methods:
        began = time.monotonic()
        rates = [hit_rate(model, sentences, method, contrast) for contrast in (False, True)]
        print(f"{method}: {rates} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if any(rate is not None for rate in rates):
            rows.append((method, *rates))
    rows.sort(key=lambda row: (-(row[2] or 0), -(row[1] or 0), row[0]))
    lines = ["| method | tag | tag rather than that of the other name |", "|---|---|---|"]
    lines += [f"| `{name}` | {percent(one)} | {percent(other)} |" for name, one, other in rows]
    prior, drawn = position_prior(sentences), 0.5  # two words decide a tag
    chance = sum(1 / len(s.words) for s in sentences) / len(sentences)
    lines += [
        f"| *a word at random* | {percent(chance)} | {percent(chance)} |",
        f"| *the most frequent position* | {percent(prior)} | {percent(prior)} |",
        f"| *one of the deciding words at random* | {percent(drawn)} | {percent(drawn)} |",
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
