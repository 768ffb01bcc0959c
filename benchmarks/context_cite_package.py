"""ContextCite as its authors released it, beside our re-implementation: the same questions, the same measure.

    python benchmarks/context_cite_package.py [--kind one] [--sources 8] [--questions 100] [--seed 7] [--json FILE]

Needs `pip install context-cite`. The package draws its own ablations (the same masks for every question), writes each
prompt without the left-out sources and tokenises it again, and solves with its own lasso; it is given a partitioner,
one passage a source, and a chat template that adds the first token alone. Like it, ours takes the log-odds of the joint
probability of the answer here, on its masks and on our own draws. LDS and within on 64 fresh ablations, as in
benchmarks/citations.py; differences are those of ours minus the package, with 95 % bootstrap intervals over questions.
"""

import argparse
import contextlib
import io
import json
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from citations import PENALTY, SAMPLES, BatchedAblations, Posed, measure_scores, open_sharpened, pose
from context_cite import ContextCiter
from context_cite.context_partitioner import BaseContextPartitioner

import whyformer as why
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._plain.random_generator import make_generator
from whyformer._plain.statistics import bootstrap
from whyformer.methods.context_cite import draw_ablations, fit_lasso

BUDGETS = (12, 64)
Rows = dict[str, list[float]]  # LDS and within of each method


class Passages(BaseContextPartitioner):
    """Passages with blank lines between them, which stay if a passage is left out, as they do in cite()."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__("\n\n".join(texts))
        self.texts = texts

    @property
    def num_sources(self) -> int:
        return len(self.texts)

    def split_context(self) -> None:
        pass

    def get_source(self, index: int) -> str:
        return self.texts[index]

    def get_context(self, mask: np.ndarray | None = None) -> str:
        kept = [True] * len(self.texts) if mask is None else mask
        return "\n\n".join(text if keep else "" for text, keep in zip(self.texts, kept, strict=True))


class JointAblations(BatchedAblations):
    """The log-odds of the joint probability of the answer."""

    def combine_tokens(self, log_odds: torch.Tensor) -> torch.Tensor:
        joint = torch.nn.functional.logsigmoid(log_odds).sum(1)
        return joint - torch.log(-torch.expm1(joint))


def ask_package(model: why.Model, posed: Posed, length: int, budget: int) -> tuple[np.ndarray, torch.Tensor]:
    """The attributions of the package for what the model answers, and its masks."""
    texts = [posed.text[start:stop] for start, stop in posed.spans]
    query = posed.text[posed.spans[-1][1] :].lstrip("\n")
    model.tokenizer.chat_template = model.tokenizer.bos_token + "{{ messages[0]['content'] }}"
    citer = ContextCiter(
        model.module, model.tokenizer, "\n\n".join(texts), query, num_ablations=budget, partitioner=Passages(texts),
        generate_kwargs={"max_new_tokens": length, "do_sample": False}, prompt_template="{context}\n\n{query}",
    )  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):
        found = citer.get_attributions(verbose=False)
    assert citer.response.strip() == posed.answer, (citer.response, posed.answer)
    return np.asarray(found, dtype=float), torch.from_numpy(citer._masks)


def measure_question(model: why.Model, posed: Posed, prompt: why.Prompt) -> Rows:
    players = make_source_players(prompt, find_sources(prompt, list(posed.spans), None).sources)
    ablations, number = JointAblations(model, prompt, players), zlib.crc32(posed.text.encode())
    drawn, keep = (draw_ablations(players.count, SAMPLES, make_generator(seed, number)) for seed in (0, 1))
    actual, length, rows = ablations.ask(keep), len(prompt.answer), {}
    for budget in BUDGETS:
        theirs, masks = ask_package(model, posed, length, budget)
        scores = {"package": theirs}
        for name, fitted in {"ours, its masks": masks, "ours": drawn[:budget]}.items():
            scores[name] = fit_lasso(fitted, ablations.ask(fitted) / length, PENALTY).weights.numpy() * length
        for name, one in scores.items():
            rows[f"{name}, {budget}"] = measure_scores(one, keep, actual, posed.decide)
        apart = np.abs(scores["ours, its masks"] - theirs).max() / np.abs(theirs).max()
        rows[f"apart, {budget}"] = [float(apart)]
    return rows


def print_table(found: list[Rows]) -> None:
    print("| ablations | | LDS | minus the package | within | minus the package |\n" + "|---" * 6 + "|")
    for budget in BUDGETS:
        for name in ("package", "ours, its masks", "ours"):
            cells = [str(budget), name]
            for measure in (0, 1):
                own, theirs = ([rows[f"{one}, {budget}"][measure] for rows in found] for one in (name, "package"))
                difference = bootstrap([one - other for one, other in zip(own, theirs, strict=True)])
                shown = "" if name == "package" else "{:+.3f} ({:+.3f} to {:+.3f})".format(*difference)
                cells += [f"{np.mean(own):.3f}", shown]
            print("| " + " | ".join(cells) + " |")
        apart = [rows[f"apart, {budget}"][0] for rows in found]
        print(f"| {budget} | on its masks, scores differ by {100 * max(apart):.2g} % of the largest at most | | | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo/reader")
    parser.add_argument("--kind", default="one", choices=["one", "either"])
    parser.add_argument("--sources", type=int, default=8)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, found, begin = open_sharpened(arguments.model, 1.0), [], time.perf_counter()
    for number in range(2 * arguments.questions):
        posed = pose(arguments.kind, arguments.sources, arguments.seed, number)
        prompt = why.generate(model, posed.text, max_new_tokens=8)
        if prompt.answer_text.strip().rstrip(".") != posed.answer.rstrip("."):
            continue
        prompt = why.Prompt.from_text(model, posed.text, answer=f" {posed.answer}")
        found.append(measure_question(model, posed, prompt))
        if arguments.json:
            arguments.json.write_text(json.dumps(found))
        if len(found) == arguments.questions:
            break
    seconds = time.perf_counter() - begin
    print(f"{arguments.kind}, {arguments.sources} sources, {len(found)} questions, {seconds:.0f} s\n")
    print_table(found)


if __name__ == "__main__":
    main()
