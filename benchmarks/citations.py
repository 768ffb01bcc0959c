"""Do citations name the passage that answers, and do their scores predict ablations? Beside ContextCite and chance.

    python benchmarks/citations.py [--model demo/reader] [--questions 200] [--methods ...] [--json FILE]

Held-out direct questions of demo/reader, as many as it takes for `--questions` right answers; each answer is the
model's own. For every method: how often the passage that states the answer has the highest score; the linear
datamodelling score over 64 random ablations that no method has seen; and the drop of the log-odds without the top
passage and the top three. Means with 95 % bootstrap intervals over questions, and the share of questions on which the
default of cite beats ContextCite. The forwards of a relevance method are counted as 3: a forward and a relevance pass
of about twice its cost. `context_cite` is given 3, 8, 32 and 64 forwards. `random` is a normal draw per passage; for
the top passage being right, chance is one over the number of passages.

All seeds are 0: of the questions, of ContextCite's ablations, and (1) of those that measure.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch

import whyformer as why
from whyformer._cite.ablations import Ablations
from whyformer._cite.run import CITE_METHOD, explain_sources, make_answer_probe
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._cite.verification import choose_top
from whyformer._plain.random_generator import make_generator
from whyformer._plain.statistics import bootstrap, paired_test
from whyformer.demo import reader
from whyformer.methods import context_cite
from whyformer.methods.context_cite import draw_ablations
from whyformer.metrics.datamodelling import correlate_ranks
from whyformer.targets import Answer

METHODS = ("libragrad", "attnlrp", "cp_lrp", "gradient_x_input", "leave_one_out")
BUDGETS = (3, 8, 32, 64)
PER_RELEVANCE = 3  # forwards
SAMPLES = 64


def find_right_answers(
    model: why.Model, wanted: int, first: int
) -> tuple[list[tuple[reader.PassageQuestion, why.Prompt]], int]:
    """Questions that the model answers right, each with its answer, and how many were asked."""
    right, asked = [], 0
    while len(right) < wanted and asked < 20 * wanted:
        for question in reader.generate(50, first + asked):
            prompt = why.generate(model, question.text, max_new_tokens=12)
            asked += 1
            if prompt.answer_text.strip().rstrip(".") == question.answer.rstrip("."):
                right.append((question, prompt))
            if len(right) == wanted:
                break
    return right, asked


def list_methods(names: list[str], budgets: list[int]) -> dict[str, tuple[object, str]]:
    """What is measured: label -> method and the score that it explains."""
    chosen: dict[str, tuple[object, str]] = {}
    for name in names:
        chosen[name] = (name, "logit")
        if why.METHODS[name].recipe or name == "gradient_x_input":
            chosen[f"{name} of log-odds"] = (name, "log_odds")
    return chosen | {f"context_cite, {n}": (partial(context_cite, budget=n), "log_odds") for n in budgets}


def measure_question(model: why.Model, question: reader.PassageQuestion, prompt: why.Prompt, methods: dict) -> dict:
    sources = find_sources(prompt, list(question.passage_spans), None).sources
    players = make_source_players(prompt, sources)
    ablations = Ablations(make_answer_probe(model, prompt, Answer()), players)
    fingerprint = ablations.probe.fingerprints[0]
    keep = draw_ablations(len(sources), SAMPLES, make_generator(1, fingerprint))
    actual = ablations.ask(keep)
    generator = make_generator(2, fingerprint)
    rows = {}
    for label, (method, score) in {**methods, "random": (None, "")}.items():
        if method is None:
            scores = torch.randn(len(sources), generator=generator, dtype=torch.float64)
            spent = 0.0
        else:
            e = explain_sources(model, prompt, method, {}, Answer(), players, score)
            scores = torch.stack([e.scores[0, one.start : one.stop].double().sum() for one in sources])
            backwards = e.spent.get("relevance", 0) + e.spent.get("backward", 0)
            spent = e.spent.get("forward", 0) + (PER_RELEVANCE - 1) * backwards
        rows[label] = {
            "first": float(int(scores.argmax()) == question.source),
            "lds": correlate_ranks(keep.double() @ scores, actual),
            "top 1": float(ablations.ask_without([choose_top(scores, 1)])[0]),
            "top 3": float(ablations.ask_without([choose_top(scores, 3)])[0]),
            "forwards": float(spent),
        }
    return rows


def format_estimate(values: list[float]) -> str:
    mean, low, high = bootstrap(values)
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo/reader")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--budgets", nargs="*", type=int, default=list(BUDGETS), help="of ContextCite, in forwards")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first questions")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = why.open(arguments.model)
    start = time.perf_counter()
    right, asked = find_right_answers(model, arguments.questions, arguments.first)
    methods = list_methods(arguments.methods, arguments.budgets)
    rows = [measure_question(model, question, prompt, methods) for question, prompt in right]
    by_chance = sum(1 / len(question.passages) for question, _ in right) / len(right)
    print(f"{len(right)} right answers of {asked} held-out direct questions; {time.perf_counter() - start:.0f} s")
    print(f"planted passage first by chance: {by_chance:.3f}\n")
    head = ("method", "forwards", "planted passage first", "LDS", "log-odds drop, top 1", "log-odds drop, top 3")
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    for label in rows[0]:
        cells = [format_estimate([row[label][name] for row in rows]) for name in ("first", "lds", "top 1", "top 3")]
        forwards = sum(row[label]["forwards"] for row in rows) / len(rows)
        print(f"| {label} | {forwards:.0f} | " + " | ".join(cells) + " |")
    default = next(label for label in (f"{CITE_METHOD} of log-odds", *methods) if label in rows[0])
    print()
    for budget in arguments.budgets:
        own, other = ([row[label]["lds"] for row in rows] for label in (default, f"context_cite, {budget}"))
        better = sum(a > b for a, b in zip(own, other, strict=True)) / len(rows)
        print(f"LDS of {default} above ContextCite with {budget} forwards on {better:.0%} of questions, "
              f"p = {paired_test(own, other):.4f}")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps({"asked": asked, "chance": by_chance, "rows": rows}))


if __name__ == "__main__":
    main()
