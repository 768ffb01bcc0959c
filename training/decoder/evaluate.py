"""The numbers of the decoder's card: python training/decoder/evaluate.py

Agreement: after the words before the verb, is the right form of the verb more likely than the wrong one? On held-out
sentences, by how many nouns of the other number stand between subject and verb. Sums: is the answer the most likely
next token? On sums that were trained on, and on held-out ones.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from arithmetic import questions
from torch import Tensor
from transformers import AutoTokenizer, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
from whyformer_papers.worlds import agreement

MODEL = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "decoder"
SEED, COUNT, BELOW = 0, 1000, 20


class Reader:
    def __init__(self, folder: Path) -> None:
        self.model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def next_logits(self, prefixes: list[str]) -> Iterator[Tensor]:
        """The logits after each prefix."""
        for start in range(0, len(prefixes), 50):
            inputs = self.tokenizer(
                prefixes[start : start + 50], padding=True, padding_side="right", return_tensors="pt"
            )
            logits = self.model(**inputs).logits
            yield from logits[torch.arange(len(logits)), inputs["attention_mask"].sum(-1) - 1]

    def token(self, text: str) -> int:
        (token,) = self.tokenizer.encode(text)
        return token

    def agreeing(self, sentences: tuple[agreement.Sentence, ...]) -> int:
        rows = self.next_logits([s.prefix for s in sentences])
        pairs = ((self.token(f" {s.right_verb}"), self.token(f" {s.wrong_verb}")) for s in sentences)
        return sum(bool(row[right] > row[wrong]) for row, (right, wrong) in zip(rows, pairs, strict=True))

    def answering(self, asked: list[tuple[str, str]]) -> int:
        rows = self.next_logits([question for question, _ in asked])
        return sum(int(row.argmax()) == self.token(f" {answer}") for row, (_, answer) in zip(rows, asked, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    reader = Reader(parser.parse_args().model)
    total = 0
    for attractors in range(4):
        count = reader.agreeing(agreement.generate(COUNT, SEED, attractors=attractors))
        total += count if attractors else 0
        print(f"agreement, {attractors} attractors: {count} of {COUNT} right, {100 * count / COUNT:.2f} %")
    print(f"agreement, with attractors: {total} of {3 * COUNT} right, {100 * total / (3 * COUNT):.2f} %")
    for part in ("training", "held-out"):
        asked = questions(part, BELOW)
        count = reader.answering(asked)
        print(f"sums below {BELOW}, {part}: {count} of {len(asked)} right, {100 * count / len(asked):.2f} %")


if __name__ == "__main__":
    main()
