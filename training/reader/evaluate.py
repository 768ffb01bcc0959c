"""The numbers of the reader's card: python training/reader/evaluate.py

Held-out questions of seed 0: the fact that answers was in no training passage. An answer is right if every token of it,
and the end after it, is the most likely one, which is the same as decoding greedily and comparing. By the number of
passages, with and without another passage that states the same relation, and in the three forms of a prompt.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from answering import FORMS, Answering, report
from rows import has_rival

from whyformer.demo import reader

MODEL = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "reader"
SEED, COUNT, FORM_COUNT = 0, 1000, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    answering = Answering(arguments.model)
    questions = reader.generate(arguments.count, SEED)
    right = answering.mark(questions)
    report("4 to 10 passages", right)
    for passages in range(4, reader.MOST + 1):
        report(
            f"{passages} passages",
            [one for one, asked in zip(right, questions, strict=True) if len(asked.passages) == passages],
        )
    for rivalled in (True, False):
        own = [one for one, asked in zip(right, questions, strict=True) if has_rival(asked) == rivalled]
        report(f"{'another' if rivalled else 'no other'} passage states the same relation", own)
    for form in FORMS[1:]:
        report(f"as {form}", answering.mark(questions[:FORM_COUNT], form))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
