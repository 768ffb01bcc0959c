"""Training rows of the reader: passages, then up to six questions with their answers, as tokens.

    python training/reader/rows.py --out ROWS.npz [--count 150000]

A row is a prompt as a text, as a chat, or as a chat with the passages as documents. Several questions about the same
passages give more to learn from one row.
"""

import argparse
import multiprocessing
import random
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import device

from whyformer.demo import reader
from whyformer.demo.reader_words import SYSTEM_PROMPTS
from whyformer_papers.worlds.agreement import Part

PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "document")}
SPECIAL = (PAD, BEGIN, END, *ROLES.values())
CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{% if documents and loop.index0 == (messages[0]['role'] == 'system') | int %}"  # after the system prompt
    "{% for document in documents %}{{ '<|document|> ' + document['text'] + '<|end|>' }}{% endfor %}{% endif %}"
    "{{ '<|' + message['role'] + '|> ' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
FORMS = {"text": 0.7, "chat": 0.15, "documents": 0.15}  # of the rows
HARD = 0.75  # share of the rows that ask for relations stated of several subjects first
ALIKE = 0.65  # share of the rows with passages that only their subjects tell apart
MOST_QUESTIONS = 10
BUCKET = 32  # rows are padded to a multiple of this
Segments = list[tuple[str, bool]]  # texts that follow each other, and whether each is an answer


def make_tokenizer(words: Sequence[str] = reader.VOCABULARY) -> Tokenizer:
    """One token a word, its blank included, and single bytes for every other text: nothing is lost."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = dict.fromkeys((*SPECIAL, *letters, *(f"Ġ{w}" for w in words if w[0].isalnum())))
    pieces |= dict.fromkeys(word for word in words if word[0].isupper())  # the first word of a line
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, SPECIAL.index(BEGIN))]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def find_special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """What a decoder's configuration has of the tokenizer."""
    tokens = (("pad", PAD), ("bos", BEGIN), ("eos", END))
    return {f"{name}_token_id": tokenizer.token_to_id(token) for name, token in tokens}


def write_row(rng: random.Random, part: Part, passages: int | None = None) -> Segments:
    """One row of passages, questions and answers."""
    alike = rng.random() < ALIKE
    count = passages or rng.randint(reader.FEWEST, 6 if alike else reader.MOST)
    drawn = reader.draw_passages(rng, count, part, alike=alike)
    asked = list(reader.ask_everything(rng, drawn))
    rng.shuffle(asked)
    if rng.random() < HARD:
        asked.sort(key=lambda one: not has_rival(one))
    questions = asked[: rng.randint(MOST_QUESTIONS // 2 if alike else 1, MOST_QUESTIONS)]
    rng.shuffle(questions)
    return arrange(rng, questions, rng.choices(list(FORMS), list(FORMS.values()))[0])


def has_rival(asked: reader.PassageQuestion) -> bool:
    """Whether another passage states the same relation: the kind of value alone does not give the answer away."""
    relation = asked.passages[asked.source].facts[asked.fact].relation
    return sum(fact.relation == relation for passage in asked.passages for fact in passage.facts) > 1


def arrange(rng: random.Random, questions: Sequence[reader.AskedPassages], form: str) -> Segments:
    """The questions and answers after their passages, in one of FORMS."""
    context, first = questions[0].context, True
    segments: Segments = [(BEGIN, False)]
    if form != "text" and rng.random() < 0.7:
        segments.append((f"{ROLES['system']} {rng.choice(SYSTEM_PROMPTS)}{END}", False))
    if form == "documents":
        segments += [(f"{ROLES['document']} {passage.text}{END}", False) for passage in questions[0].passages]
    for asked in questions:
        if form == "text":
            before = f"{context}\n\n" if first else "\n\n"
            segments.append((f"{before}Question: {asked.question}\nAnswer:", False))
        else:
            before = f" {context}\n\n" if first and form == "chat" else " "
            segments.append((f"{ROLES['user']}{before}{asked.question}{END}{ROLES['assistant']}", False))
        segments.append((f" {asked.answer}{END}", True))
        first = False
    return segments


def encode_rows(tokenizer: Tokenizer, rows: list[Segments]) -> tuple[list[list[int]], list[list[bool]]]:
    """Token ids of each row, and which of them are answers."""
    texts = [text for row in rows for text, _ in row]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    ids, answers = [], []
    for row in rows:
        pieces = [(next(encoded).ids, is_answer) for _, is_answer in row]
        ids.append([token for piece, _ in pieces for token in piece])
        answers.append([is_answer for piece, is_answer in pieces for _ in piece])
    return ids, answers


def make_part(seed: int, count: int, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of one worker, joined: ids, which are answers, and the lengths."""
    rng = random.Random(f"reader rows {seed}")
    return join_rows(make_tokenizer(), [write_row(rng, "training") for _ in range(count)], longest)


def join_rows(tokenizer: Tokenizer, rows: list[Segments], longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of at most `longest` tokens, one after the other: ids, which are answers, and the lengths."""
    ids, answers = encode_rows(tokenizer, rows)
    kept = [i for i, row in enumerate(ids) if len(row) <= longest]
    return (
        np.array(list(chain.from_iterable(ids[i] for i in kept)), dtype=np.int16),
        np.array(list(chain.from_iterable(answers[i] for i in kept)), dtype=bool),
        np.array([len(ids[i]) for i in kept], dtype=np.int32),
    )


def make_rows(count: int, seed: int, longest: int, workers: int) -> dict[str, np.ndarray]:
    """Rows of at most `longest` tokens, made by several processes."""
    size = 2000
    jobs = [(1_000_000 * seed + i, min(size, count - i), longest) for i in range(0, count, size)]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        parts = pool.starmap(make_part, jobs, chunksize=1)
    names = ("ids", "answers", "lengths")
    return {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}


class Rows:
    """All rows on the device, in buckets of one padded length each: few shapes, and nothing to wait for."""

    def __init__(self, rows: Mapping[str, np.ndarray]) -> None:
        self.ids: dict[int, Tensor] = {}
        self.answers: dict[int, Tensor] = {}
        self.add(rows)

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Further rows; what was there stays."""
        starts = np.cumsum(rows["lengths"], dtype=np.int64) - rows["lengths"]
        padded = -(-rows["lengths"] // BUCKET) * BUCKET
        for length in np.unique(padded).tolist():
            chosen = padded == length
            places = np.arange(length)
            is_inside = places < rows["lengths"][chosen, None]
            index = np.minimum(starts[chosen, None] + places, len(rows["ids"]) - 1)
            self._extend(self.ids, length, np.where(is_inside, rows["ids"][index], 0))
            self._extend(self.answers, length, rows["answers"][index] & is_inside)
        self.lengths = sorted(self.ids)
        self.counts = np.array([len(self.ids[length]) for length in self.lengths])

    @staticmethod
    def _extend(buckets: dict[int, Tensor], length: int, rows: np.ndarray) -> None:
        more = torch.from_numpy(rows).to(device())
        buckets[length] = torch.cat([buckets[length], more]) if length in buckets else more

    def draw_batch(self, random: np.random.Generator, tokens: int, share: float) -> tuple[Tensor, Tensor]:
        """Rows of one bucket, about `tokens` tokens, from the shortest `share` of all rows: ids, 0 where a row is over,
        and which of them are answers."""
        allowed = np.cumsum(self.counts) - self.counts < share * self.counts.sum()
        length = self.lengths[random.choice(len(self.lengths), p=self.counts * allowed / (self.counts * allowed).sum())]
        chosen = torch.randint(len(self.ids[length]), (tokens // length,), device=device())
        return self.ids[length][chosen].long(), self.answers[length][chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=384)
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    np.savez(arguments.out, **make_rows(arguments.count, arguments.seed, arguments.longest, arguments.workers))


if __name__ == "__main__":
    main()
