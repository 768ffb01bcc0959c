"""What answers of a real language model rest on, measured without whyformer: log-odds with subsets of passages kept.

    python benchmarks/rests_on_truth.py squad  MODEL DATA/squad2.json OUT.json --other DATA/subsets.json --claims 60
    python benchmarks/rests_on_truth.py hotpot MODEL DATA/hotpot.json OUT.json --claims 30
    python benchmarks/rests_on_truth.py many   MODEL DATA/squad2.json OUT.json --passages 20 --claims 10

Plain transformers. The passages are in a fixed order, so the subsets of them are the leaves of a tree: a run reads one
passage after the keys and values of what is kept before it, and every leaf is asked several questions. `--check` scores
some subsets again without any cache. Results are written after each group of questions; the same call goes on from
them.

squad   six paragraphs of one article that are asked about nowhere in --other; all 64 subsets; a greedy answer of at
        most 24 tokens and the given answer of each question
hotpot  ten paragraphs; all, none, each alone, all but each, and the pairs of the five that matter most alone
many    short passages (single sentences) of one article; the same subsets
"""

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

Subset = tuple[bool, ...]  # which passages are kept, in their order
LONGEST_ANSWER = 24  # tokens of a greedy answer
LONGEST_PARAGRAPH = 800  # characters of a paragraph of squad2.json
MARK = "\x00"


class Reader:
    """A language model that reads passages one after the other and scores answers."""

    def __init__(self, folder: str) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.is_chat = bool(self.tokenizer.chat_template)
        self.tokens_read = 0

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_frame(self) -> tuple[list[int], str]:
        """The tokens before the passages, and the text after the question."""
        if not self.is_chat:
            first = self.tokenizer.bos_token_id
            return ([] if first is None else [first]), "\nAnswer:"
        chat = [{"role": "user", "content": MARK}]
        whole = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        before, after = whole.split(MARK)
        return self.encode(before), after

    def encode_question(self, question: str) -> list[int]:
        return self.encode(f"Question: {question}{self.encode_frame()[1]}")

    def encode_answer(self, answer: str) -> list[int]:
        return self.encode(answer if self.is_chat else f" {answer}")

    def encode_passage(self, text: str) -> list[int]:
        """With the blank line after it, whose tokens depend on that another text follows."""
        follower = "Question"
        return self.encode(f"{text}\n\n{follower}")[: -len(self.encode(follower))]

    def read(self, ids: Sequence[int], cache: DynamicCache, logits: int) -> Tensor:
        """The logits of the last `logits` tokens; the cache then has these tokens too."""
        self.tokens_read += len(ids)
        out = self.model(
            torch.tensor([list(ids)]), past_key_values=cache, use_cache=True, logits_to_keep=max(logits, 1)
        )
        return out.logits[0]

    def answer(self, cache: DynamicCache, question: Sequence[int]) -> list[int]:
        """The greedy answer; the cache is left as it was."""
        length, ends = cache.get_seq_length(), self.list_ends()
        ids: list[int] = []
        logits = self.read(question, cache, 1)
        while len(ids) < LONGEST_ANSWER:
            token = int(logits[-1].argmax())
            if token in ends or (not self.is_chat and ids and "\n" in self.tokenizer.decode([token])):
                break
            ids.append(token)
            logits = self.read([token], cache, 1)
        cut_back(cache, length)
        return ids

    def list_ends(self) -> set[int]:
        told = self.model.generation_config.eos_token_id
        return {*(told if isinstance(told, list) else [told]), self.tokenizer.eos_token_id}

    def score(self, cache: DynamicCache, asked: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> list[list]:
        """Log-odds, log p and whether greedy decoding says it, of each answer to each question, in one run.

        The questions and answers are one sequence; a mask lets each question see the passages alone, and each answer
        the passages and its question. The cache is left as it was.
        """
        length = cache.get_seq_length()
        ids: list[int] = []
        places: list[int] = []  # as if each question came right after the passages
        sees: list[list[range]] = []  # which entries of the sequence each one attends to
        reads: list[list[list[int]]] = []  # where the tokens of each answer are predicted
        for question, answers in asked:
            first = len(ids)
            ids += question
            places += range(length, length + len(question))
            sees += [[range(first, first + n + 1)] for n in range(len(question))]
            reads.append([])
            for answer in answers:
                start = len(ids)
                ids += answer[:-1]
                places += range(length + len(question), length + len(question) + len(answer) - 1)
                before = range(first, first + len(question))
                sees += [[before, range(start, start + n + 1)] for n in range(len(answer) - 1)]
                reads[-1].append([before[-1], *range(start, start + len(answer) - 1)])
        seen = torch.zeros(len(ids), length + len(ids), dtype=torch.bool)
        seen[:, :length] = True
        for row, ranges in zip(seen, sees, strict=True):
            for some in ranges:
                row[length + some.start : length + some.stop] = True
        positions = torch.tensor(places)
        logits_at = [place for answers in reads for one in answers for place in one]
        self.tokens_read += len(ids)
        out = self.model(
            torch.tensor([ids]), past_key_values=cache, use_cache=True, position_ids=positions[None],
            attention_mask=self.make_mask(seen, torch.cat([torch.arange(length), positions]), positions),
            logits_to_keep=torch.tensor(logits_at),
        )  # fmt: skip
        cut_back(cache, length)
        rows = iter(out.logits[0].split([len(one) for answers in reads for one in answers]))
        return [[sum_scores(next(rows), answer) for answer in answers] for _, answers in asked]

    def make_mask(self, seen: Tensor, keys: Tensor, queries: Tensor) -> Tensor | dict[str, Tensor]:
        """What is added to the attention logits; for layers with a sliding window, a mask of their own."""

        def as_numbers(allowed: Tensor) -> Tensor:
            return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)[None, None]

        window = getattr(self.model.config, "sliding_window", None)
        if "sliding_attention" not in (getattr(self.model.config, "layer_types", None) or ()):
            return as_numbers(seen)
        near = seen & (queries[:, None] - keys[None] < window)
        return {"full_attention": as_numbers(seen), "sliding_attention": as_numbers(near)}


def cut_back(cache: DynamicCache, length: int) -> None:
    """Keep the first tokens only."""
    if more := cache.get_seq_length() - length:
        cache.crop(-more)


def sum_scores(logits: Tensor, ids: Sequence[int]) -> dict:
    wide, own = logits.double(), torch.tensor(list(ids))[:, None]
    others = wide.scatter(-1, own, -torch.inf).logsumexp(-1)
    odds = wide.gather(-1, own)[:, 0] - others
    log_p = -torch.nn.functional.softplus(-odds)
    said = bool((logits.argmax(-1) == own[:, 0]).all())
    return {"log_odds": round(float(odds.sum()), 4), "log_p": round(float(log_p.sum()), 4), "said": said}


def walk(reader: Reader, passages: Sequence[Sequence[int]], subsets: Sequence[Subset], visit: Callable) -> None:
    """Call visit(subset, cache) for every subset, each passage read once for all that keep the same ones before it."""
    cache = DynamicCache()
    reader.read(reader.encode_frame()[0] or [reader.encode_passage("")[0]], cache, 1)

    def descend(depth: int, left: list[Subset]) -> None:
        if depth == len(passages):
            visit(left[0], cache)
            return
        for kept in (True, False):
            some = [one for one in left if one[depth] is kept]
            if not some:
                continue
            length = cache.get_seq_length()
            if kept:
                reader.read(passages[depth], cache, 1)
            descend(depth + 1, some)
            cut_back(cache, length)

    descend(0, list(subsets))


def measure(
    reader: Reader, texts: Sequence[str], asked: Sequence[dict], subsets: Sequence[Subset], *, given_only: bool = False
) -> None:
    """Adds to each asked question its answers (unless they are there) and their outcomes, by subset ("110101")."""
    passages = [reader.encode_passage(text) for text in texts]
    questions = [reader.encode_question(one["question"]) for one in asked]

    def visit(subset: Subset, cache: DynamicCache) -> None:
        for one, question in zip(asked, questions, strict=True):
            if "claims" not in one:  # the first leaf keeps all passages
                own = [] if given_only else reader.answer(cache, question)
                given = reader.encode_answer(one["given"])
                one["claims"] = [
                    {"kind": kind, "ids": ids, "answer": reader.tokenizer.decode(ids), "outcomes": {}}
                    for kind, ids in (("own", own), ("given", given))
                    if ids
                ]
        told = [[claim["ids"] for claim in one["claims"]] for one in asked]
        found = reader.score(cache, list(zip(questions, told, strict=True)))
        for one, scores in zip(asked, found, strict=True):
            for claim, score in zip(one["claims"], scores, strict=True):
                claim["outcomes"]["".join("01"[kept] for kept in subset)] = score

    walk(reader, passages, subsets, visit)


def check(reader: Reader, texts: Sequence[str], asked: dict, count: int = 4) -> float:
    """The largest difference of log-odds from runs without a cache, of the whole text encoded at once."""
    worst = 0.0
    for claim in asked["claims"]:
        for name in random.Random(0).sample(sorted(claim["outcomes"]), min(count, len(claim["outcomes"]))):
            text = "".join(f"{one}\n\n" for one, kept in zip(texts, name, strict=True) if kept == "1")
            before, after = reader.encode_frame()
            ids = [*before, *reader.encode(f"{text}Question: {asked['question']}{after}"), *claim["ids"]]
            logits = reader.model(torch.tensor([ids]), use_cache=False).logits[0, -len(claim["ids"]) - 1 : -1]
            found = sum_scores(logits, claim["ids"])["log_odds"]
            worst = max(worst, abs(found - claim["outcomes"][name]["log_odds"]))
    return worst


# --- the questions ----------------------------------------------------------------------------------------------------


def list_squad(
    data: list[dict], other: Path | None, claims: int, each: int, seed: int
) -> Iterator[tuple[list[str], list[dict]]]:
    """Six paragraphs of one article in random order, and questions about each of them."""
    taken = {one["question"] for one in json.loads(other.read_text())} if other else set()
    draw, asked = random.Random(seed), set()
    free = [p for p in data if not any(q["question"] in taken for q in p["qas"])]
    free = [p for p in free if len(p["context"]) <= LONGEST_PARAGRAPH]
    articles = list(dict.fromkeys(p["title"] for p in free))
    done = 0
    for turn in range(100):
        article = [p for p in free if p["title"] == articles[turn % len(articles)]]
        six = draw.sample(article, 6)
        questions = []
        for place, paragraph in enumerate(six):
            fresh = [q for q in paragraph["qas"] if q["question"] not in asked and (q["answers"] or q["plausible"])]
            for one in draw.sample(fresh, min(each, len(fresh), claims - done - len(questions))):
                asked.add(one["question"])
                given = (one["answers"] or one["plausible"])[0]
                questions.append(
                    {"question": one["question"], "given": given, "impossible": one["impossible"], "stated_in": place}
                )
        if questions:
            done += len(questions)
            yield [p["context"] for p in six], questions
        if done >= claims:
            return


def list_hotpot(data: list[dict], claims: int) -> Iterator[tuple[list[str], list[dict]]]:
    """The questions with the shortest ten paragraphs first."""
    texts = [
        [
            f"{t}: {''.join(s).strip()}"
            for t, s in zip(one["context"]["title"], one["context"]["sentences"], strict=True)
        ]
        for one in data
    ]
    order = sorted(range(len(data)), key=lambda n: sum(map(len, texts[n])))
    for n in [n for n in order if len(texts[n]) == 10][:claims]:
        titles, needed = data[n]["context"]["title"], dict.fromkeys(data[n]["supporting_facts"]["title"])
        stated = [titles.index(title) for title in needed if title in titles]
        yield texts[n], [{"question": data[n]["question"], "given": data[n]["answer"], "stated_in": stated}]


def list_many(data: list[dict], count: int, claims: int, seed: int) -> Iterator[tuple[list[str], list[dict]]]:
    """Sentences of one article as passages; one of them has the answer."""
    draw = random.Random(seed)
    articles = list(dict.fromkeys(p["title"] for p in data))
    for turn in range(claims):
        paragraphs = [p for p in data if p["title"] == articles[turn % len(articles)]]
        sentences = [
            s for p in paragraphs for s in re.split(r"(?<=[a-z]\.) (?=[A-Z])", p["context"]) if 40 < len(s) < 160
        ]
        while True:
            paragraph = draw.choice(paragraphs)
            one = draw.choice([q for q in paragraph["qas"] if q["answers"]] or [None])
            stating = [s for s in sentences if one and s in paragraph["context"] and one["answers"][0] in s]
            if stating:
                break
        others = draw.sample([s for s in dict.fromkeys(sentences) if one["answers"][0] not in s], count - 1)
        texts = [stating[0], *others]
        draw.shuffle(texts)
        place = texts.index(stating[0])
        yield texts, [{"question": one["question"], "given": one["answers"][0], "stated_in": [place]}]


def list_singles(count: int) -> list[Subset]:
    alone = [tuple(i == j for i in range(count)) for j in range(count)]
    return [(True,) * count, (False,) * count, *alone, *(tuple(not one for one in some) for some in alone)]


def list_pairs(claim: dict, count: int) -> list[Subset]:
    """The pairs of the five without which the log-odds fall most."""

    def without(j: int) -> float:
        return claim["outcomes"]["".join("0" if i == j else "1" for i in range(count))]["log_odds"]

    five = sorted(range(count), key=without)[:5]
    pairs = [tuple(i in pair for i in range(count)) for pair in combinations(sorted(five), 2)]
    return [*pairs, *(tuple(not one for one in some) for some in pairs)]


# --- the program ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["squad", "hotpot", "many"])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--claims", type=int, default=60)
    parser.add_argument("--each", type=int, default=1, help="questions about each paragraph")
    parser.add_argument("--given-only", action="store_true")
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    data = json.loads(args.data.read_text())
    groups = {
        "squad": lambda: list_squad(data, args.other, args.claims, args.each, args.seed),
        "hotpot": lambda: list_hotpot(data, args.claims),
        "many": lambda: list_many(data, args.passages, args.claims, args.seed),
    }[args.what]()
    done = json.loads(args.out.read_text()) if args.out.exists() else []
    reader = Reader(args.model)
    with torch.inference_mode():
        for number, (texts, asked) in enumerate(groups):
            if number < len(done):
                continue
            began, read = time.perf_counter(), reader.tokens_read
            count = len(texts)
            if args.what == "squad":
                every = list(product([True, False], repeat=count))
                measure(reader, texts, asked, every, given_only=args.given_only)
            else:
                measure(reader, texts, asked, list_singles(count))
                pairs = [pair for claim in asked[0]["claims"] for pair in list_pairs(claim, count)]
                measure(reader, texts, asked, list(dict.fromkeys(pairs)))
            group = {"passages": texts, "questions": asked, "tokens_read": reader.tokens_read - read}
            group["seconds"] = round(time.perf_counter() - began, 1)
            if args.check or not number:
                group["difference_from_uncached"] = check(reader, texts, asked[0])
            done.append(group)
            args.out.write_text(json.dumps(done))
            print(
                number,
                len(asked),
                group["tokens_read"],
                group["seconds"],
                group.get("difference_from_uncached"),
                flush=True,
            )


if __name__ == "__main__":
    main()
