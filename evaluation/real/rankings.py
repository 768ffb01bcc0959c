"""Do the words with the highest contrast put a passage where it is? 40 rankings of paragraphs of SQuAD 2.

PYTHONPATH=evaluation python -m real.rankings squad2.json gte mpnet nli

Each question ranks the paragraph that answers it among five others of its article; the two best are compared. The
three words of the upper one with the highest contrast are hidden, beside ten draws of three random words of the same
paragraph.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

import whyformer as why
from real.make import load
from real.shelf import find_cache

QUESTIONS, OTHERS, SEED = 40, 5, 0
RESULTS = Path(__file__).parent / "results" / "rankings.json"
TARGETS = {"nli": 0}  # a classifier of pairs: the class that ranks


def draw_rankings(paragraphs: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Questions, each with its paragraph among others of the same article; paragraphs of at most 200 words."""
    generator = random.Random(SEED)
    short = [paragraph for paragraph in paragraphs if len(paragraph["context"].split()) <= 200]
    asked = [(p, q["question"]) for p in short for q in p["qas"] if not q["impossible"]]
    rankings = []
    for paragraph, question in generator.sample(asked, QUESTIONS):  # fewer are the first of these
        same = [p["context"] for p in short if p["title"] == paragraph["title"] and p is not paragraph]
        rankings.append((question, [paragraph["context"], *generator.sample(same, OTHERS)]))
    return rankings


def measure(name: str, rankings: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    folder = find_cache() / name
    model = why.open(load(name).open_model(folder), tokenizer=AutoTokenizer.from_pretrained(folder))
    rows = []
    for question, documents in rankings:
        found = why.explain_ranking(model, question, documents, target=TARGETS.get(name))
        check = found.checks[0]
        rows.append(
            {
                "question": question, "right_first": found.order[0] == 0, "words": check.words, "gap": check.gap,
                "hidden_gap": check.hidden_gap, "turned": check.turned, "turned_at_random": check.turned_at_random,
                "random_gap": sum(check.random_gaps) / len(check.random_gaps),
            }
        )  # fmt: skip
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "rankings": len(rows),
        "right_first": sum(row["right_first"] for row in rows),
        "turned": sum(row["turned"] for row in rows),
        "turned_at_random": sum(row["turned_at_random"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("squad", type=Path, help="paragraphs: a list of {title, context, qas}")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    options = parser.parse_args()
    rankings = draw_rankings(json.loads(options.squad.read_text()))[: options.questions]
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.names:
        rows = measure(name, rankings)
        stored[name] = {"summary": summarise(rows), "method": "default", "rows": rows}
        print(name, stored[name]["summary"], flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
