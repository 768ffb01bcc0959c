"""Which method finds the passage that answers? The bundled reader, 100 held-out questions that it answers right.

    python benchmarks/reader_passages.py [--methods ...] [--items 100] [--print]

Writes the table into docs/language-models.md; with --print it only prints it. The whole answer is explained at once
(the sum of the logits of its tokens), and the scores of each passage are summed. A hit: the passage that states the
answer has the strictly highest sum. "Words": of all words of all passages, the highest score is on a word of the answer
where that passage states it. A passage or a word drawn at random is the control.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import whyformer as why
from whyformer._plain.statistics import bootstrap
from whyformer.demo import reader
from whyformer.errors import WhyformerError
from whyformer.methods._registry import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "language-models.md"
BEGIN, END = "<!-- table of benchmarks/reader_passages.py -->", "<!-- end of the table -->"
BUDGET = {"budget": 128}
SEED = 0


class Answered(NamedTuple):
    """A question that the model answers right."""

    asked: reader.PassageQuestion
    prompt: why.Prompt

    def list_passages(self) -> list[range]:
        """The tokens of each passage."""
        return [range(r.start, r.stop) for r in self.prompt.split([p.text for p in self.asked.passages])]

    def list_evidence(self) -> list[int]:
        """The tokens of the words that state the answer."""
        spans = self.prompt.pieces.spans
        place = self.asked.evidence_span
        return [i for i, span in enumerate(spans) if span and place[0] < span[1] and span[0] < place[1]]


def choose_right(model: why.Model, count: int, seed: int = SEED) -> Iterator[Answered]:
    """The first held-out questions of a seed that the model answers right."""
    found = 0
    for asked in reader.generate(3 * count, seed):
        prompt = why.Prompt.from_text(model, asked.text, answer=f" {asked.answer}")
        with torch.no_grad():
            best = model.module(input_ids=torch.tensor([prompt.ids], device=model.device)).logits[0].argmax(-1).tolist()
        end = model.tokenizer.eos_token_id
        if best[prompt.prompt_length - 1 :] == [*prompt.ids[prompt.prompt_length :], end] and found < count:
            found += 1
            yield Answered(asked, prompt)


def is_strictly_highest(values: Sequence[float], place: int) -> bool:
    return all(value < values[place] for i, value in enumerate(values) if i != place)


def find_hits(scores: Tensor, one: Answered) -> tuple[bool, bool]:
    """Whether the passage, and one of the words that state the answer, have the highest score. `scores` [token]."""
    passages = one.list_passages()
    sums = [float(scores[list(tokens)].sum()) for tokens in passages]
    words = [i for tokens in passages for i in tokens]
    best = max(words, key=lambda i: float(scores[i]))
    return is_strictly_highest(sums, one.asked.source), best in one.list_evidence()


def measure_hits(model: why.Model, answered: Sequence[Answered], method: str) -> list[tuple[bool, bool]] | None:
    """The hits of one method; None if it refuses."""
    settings = BUDGET if "budget" in METHODS[method].settings else {}
    try:
        return [
            find_hits(why.explain(model, one.prompt, method, **settings).scores[0].double(), one) for one in answered
        ]
    except WhyformerError as error:
        print(f"{method}: {error}", file=sys.stderr)
        return None


def write_share(hits: Sequence[bool]) -> str:
    mean, low, high = bootstrap([float(hit) for hit in hits])
    return f"{100 * mean:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def make_table(model: why.Model, answered: Sequence[Answered], methods: Sequence[str]) -> list[str]:
    rows: list[tuple[float, str]] = []
    for method in methods:
        began = time.monotonic()
        hits = measure_hits(model, answered, method)
        if hits is not None:
            seconds = (time.monotonic() - began) / len(answered)
            passage, words = ([hit[i] for hit in hits] for i in (0, 1))
            rows.append((-sum(passage), f"| `{method}` | {write_share(passage)} | {write_share(words)} |"))
            print(rows[-1][1], f"{seconds:.2f} s a prompt", file=sys.stderr, flush=True)
    chance = sum(1 / len(one.asked.passages) for one in answered) / len(answered)
    words = sum(len(one.list_evidence()) / sum(map(len, one.list_passages())) for one in answered) / len(answered)
    head = ["| method | passage first, % | words first, % |", "|---|---|---|"]
    last = f"| *drawn at random* | {100 * chance:.0f} | {100 * words:.1f} |"
    return [*head, *(row for _, row in sorted(rows)), last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS), metavar="METHOD")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--print", action="store_true", help="print the table instead of writing it into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = why.open("demo/reader")
    lines = make_table(model, list(choose_right(model, arguments.items)), arguments.methods)
    if arguments.print:
        print("\n".join(lines))
        return
    page = PAGE.read_text("utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
