"""The numbers of the translator's card: python training/translation/evaluate.py

Accuracy: does greedy decoding write the whole translation? On held-out sentences. Alignment: for each word that is
written, does the word of the source with the highest score give it? By method, with 95 % bootstrap intervals over
sentences, beside chance (one word of the source, drawn), position (the word at the same relative place) and the
attention of the last cross-attention. Prefix: how much of |score| is at what was written before.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from alignment import format_interval, read_arguments

import whyformer as why
from whyformer_papers.worlds import translation

SEED = 0


def is_written(model: why.Model, one: translation.Translation) -> bool:
    """Whether greedy decoding writes the translation and ends."""
    written = why.generate(model, one.source, max_new_tokens=len(one.words) + 2)
    return written.answer_text.split() == list(one.words)


def find_hits(matrix: Tensor, one: translation.Translation) -> float:
    """The share of the written words whose best word of the source, </s> left out, is the one they come from."""
    best = matrix[:, : len(one.source_words)].argmax(1).tolist()
    return sum(place == wanted for place, wanted in zip(best, one.alignment, strict=True)) / len(best)


def find_position_hits(one: translation.Translation) -> float:
    """The same for the word at the same place: both have as many words."""
    return sum(place == wanted for place, wanted in enumerate(one.alignment)) / len(one.alignment)


def explain_sentence(model: why.Model, one: translation.Translation, method: str) -> tuple[float, float]:
    """The share of hits, and the share of |score| at the prefix."""
    g = why.explain_generation(model, one.source, method, continuation=one.text)
    parts = [step.stream(name).scores.abs().sum() for name in ("source", "prefix") for step in g]
    source, prefix = (float(sum(parts[half])) for half in (slice(0, len(g)), slice(len(g), None)))
    return find_hits(g.matrix("source"), one), prefix / (source + prefix)


def main() -> None:
    arguments = read_arguments(__doc__, "translation", 500, "sentences")
    model = why.open(arguments.model)
    sentences = translation.generate(arguments.count, SEED)
    right = [one for one in sentences if is_written(model, one)]
    print(f"{len(right)} of {arguments.count} sentences translated without a mistake")
    chosen = right[: arguments.explained]
    words = sum(len(one.words) for one in chosen)
    print(f"alignment of {words} words in {len(chosen)} of these sentences")
    for name, hits in (
        ("chance", [1 / len(one.words) for one in chosen]),
        ("position", [find_position_hits(one) for one in chosen]),
    ):
        print(f"{name}: {format_interval(hits)}")
    for method in arguments.methods:
        hits, prefixes = zip(*(explain_sentence(model, one, method) for one in chosen), strict=True)
        print(f"{method}: {format_interval(hits)}, prefix {format_interval(prefixes)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
