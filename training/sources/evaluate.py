"""The numbers of the card of demo/sources: python training/sources/evaluate.py [--model FOLDER]

Held-out questions of seed 0: no fact that decides an answer was in a training passage. An answer is right if every
token of it, and the end after it, is the most likely one; of a contradicted question either value is right. By world
and kind, by the number of passages, and in the three forms of a prompt.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from train import list_accepted

sys.path.insert(0, str(Path(__file__).parents[1] / "reader"))
from answering import FORMS, Answering, report

from whyformer_papers.worlds import sources
from whyformer_papers.worlds.sources_words import SOURCE_WORLDS

MODEL = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "sources"
SEED, COUNT = 0, 200


def mark(answering: Answering, questions: Sequence[sources.SourceQuestion], form: str = "text") -> list[bool]:
    """Whether each question gets one of its right answers."""
    return [any(answering.mark(list_accepted(asked), form)) for asked in questions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    answering, count = Answering(arguments.model), arguments.count
    for world in SOURCE_WORLDS:
        for kind in sources.SOURCE_KINDS:
            report(f"{world}, {kind}", mark(answering, sources.generate(count, SEED, world=world, kind=kind)))
        for passages in (8, 20, 50):
            asked = sources.generate(count // 2, SEED, world=world, passages=passages)
            report(f"{world}, {passages} passages, all kinds", mark(answering, asked))
    for form in FORMS[1:]:
        report(f"as {form}", mark(answering, sources.generate(count, SEED), form))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
