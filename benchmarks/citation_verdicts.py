"""Are the verdicts of cite right? Planted, other and absent answers, at three degrees of certainty, in two precisions.

    python benchmarks/citation_verdicts.py [--seeds 7002 7003 7004] [--questions 100] [--sharpness 1 2 3]
        [--dtypes float32 bfloat16] [--device cuda] [--json FILE]
    python benchmarks/citation_verdicts.py --read FILE ... [--write]      the table of saved runs, into docs/cite.md

Held-out questions of demo/reader; the last norm of the model is multiplied by the sharpness, so that its logits are:
at 3 the probability of most answers is 1 in float32. Each question is asked three times, with the defaults of cite:

* with the right answer: is the passage that states it first, and is it supported? Questions where another passage
  contains the same words are counted apart. Any other passage that is supported is a mistake.
* with an answer of the same kind that no passage contains: any passage that is supported is a mistake.
* without the passage that states it, and with the model's own answer, if no passage contains that: made up.

A passage contains an answer if its text does.
"""

import argparse
import copy
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from page_table import DOCS, insert_table

import whyformer as why
from whyformer.demo import reader
from whyformer.demo.reader_words import NAMES, RELATIONS, VALUES

HEADINGS = (
    "precision", "sharpness", "seed", "stated: first", "stated once: supported", "stated twice: supported",
    "other passages supported", "absent answer supported (caution)", "made-up answer supported (caution)",
)  # fmt: skip

BEGIN = "<!-- table of benchmarks/citation_verdicts.py -->"


def sharpen(model: why.Model, factor: float, dtype: torch.dtype, device: str) -> why.Model:
    """The reader with logits `factor` times as large."""
    module = copy.deepcopy(model.module).to(device, dtype)
    with torch.no_grad():
        module.model.norm.weight.mul_(factor)
    return why.open(module, tokenizer=model.tokenizer)


def choose_absent_answer(question: reader.PassageQuestion, rng: random.Random) -> str:
    """Another value of the relation that is asked for, which no passage contains."""
    kind = RELATIONS[question.passages[question.source].facts[question.fact].relation].value
    options = NAMES if kind == "person" else VALUES[kind]
    return rng.choice([value for value in options if value not in question.context] or ["nothing"])


def cite_in_order(model: why.Model, prompt: why.Prompt, passages: Sequence[str]) -> list[why.Citation]:
    """The citations of these passages, in the order of the prompt."""
    cited = sorted(why.cite(model, prompt, samples=0), key=lambda one: one.start)
    assert [one.text for one in cited] == list(passages)
    return cited


def ask_stated(model: why.Model, question: reader.PassageQuestion) -> dict[str, Any]:
    prompt = why.Prompt.from_text(model, question.text, answer=f" {question.answer}")
    cited = cite_in_order(model, prompt, [passage.text for passage in question.passages])
    holds = [question.answer in one.text for one in cited]
    others = [one.verdict == "supported" for one, held in zip(cited, holds, strict=True) if not held]
    planted = cited[question.source]
    return {
        "first": planted.score == max(one.score for one in cited),
        "twice": sum(holds) > 1,
        "supported": planted.verdict == "supported",
        "others": len(others),
        "others supported": sum(others),
    }


def find_strongest(cited: Sequence[why.Citation]) -> str | None:
    """Supported before caution, which is what leaving passages out alone would call supported; None without either."""
    verdicts = {one.verdict for one in cited}
    return next((verdict for verdict in ("supported", "caution") if verdict in verdicts), None)


def ask_absent(model: why.Model, question: reader.PassageQuestion, rng: random.Random) -> str | None:
    prompt = why.Prompt.from_text(model, question.text, answer=f" {choose_absent_answer(question, rng)}")
    cited = cite_in_order(model, prompt, [passage.text for passage in question.passages])
    return find_strongest(cited)


def ask_made_up(model: why.Model, question: reader.PassageQuestion) -> dict[str, Any]:
    """Nothing if one of the other passages contains what the model answers."""
    left = [passage.text for i, passage in enumerate(question.passages) if i != question.source]
    text = "\n\n".join([*left, f"Question: {question.question}\nAnswer:"])
    prompt = why.generate(model, text, max_new_tokens=6)
    answer = prompt.answer_text.strip().rstrip(".")
    if len(left) < 2 or not answer or any(answer in one for one in left):
        return {}
    return {"made up": find_strongest(cite_in_order(model, prompt, left))}


def measure_seed(model: why.Model, seed: int, questions: int) -> list[dict[str, Any]]:
    return [
        {
            **ask_stated(model, question),
            "absent": ask_absent(model, question, random.Random(f"{seed} {i}")),
            **ask_made_up(model, question),
        }
        for i, question in enumerate(reader.generate(questions, seed))
    ]


def format_row(label: Sequence[Any], rows: Sequence[dict[str, Any]]) -> str:
    def count(some: Sequence[Any]) -> str:
        return f"{sum(some)} of {len(some)}"

    def count_verdicts(kind: str) -> str:
        found = [row[kind] for row in rows if kind in row]
        return f"{found.count('supported')} of {len(found)} ({found.count('caution')})"

    once, twice = ([row["supported"] for row in rows if row["twice"] == is_twice] for is_twice in (False, True))
    others, wrong = sum(row["others"] for row in rows), sum(row["others supported"] for row in rows)
    cells = [
        *label, count([row["first"] for row in rows]), count(once), count(twice),
        f"{wrong} of {others} ({wrong / max(others, 1):.1%})", count_verdicts("absent"), count_verdicts("made up"),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def measure_all(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    reader_model = why.open("demo/reader")
    for dtype in arguments.dtypes:
        for sharpness in arguments.sharpness:
            model = sharpen(reader_model, sharpness, getattr(torch, dtype), arguments.device)
            for seed in arguments.seeds:
                rows = measure_seed(model, seed, arguments.questions)
                yield {"label": [dtype, f"{sharpness:g}", seed], "rows": rows}


def read_all(files: Sequence[Path]) -> list[dict[str, Any]]:
    """What was saved, float32 first, then by sharpness and seed."""
    saved = [one for file in files for one in json.loads(file.read_text())]
    return sorted(saved, key=lambda one: (one["label"][0] != "float32", *one["label"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[7002, 7003, 7004])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--sharpness", nargs="+", type=float, default=[1.0, 2.0, 3.0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table into docs/cite.md")
    parser.add_argument("--read", nargs="+", type=Path, help="files of earlier runs, instead of a run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = []
    for one in read_all(arguments.read) if arguments.read else measure_all(arguments):
        done.append(one)
        print(format_row(one["label"], one["rows"]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(done))
    if arguments.write:
        head = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
        insert_table(DOCS / "cite.md", BEGIN, [*head, *(format_row(one["label"], one["rows"]) for one in done)])


if __name__ == "__main__":
    main()
