"""What models answer to every ablation that a citation may rest on, stored once: estimators are then tried for free.

    python benchmarks/citation_outcomes.py scores --model demo/reader --kinds one --sources 8 --seed 40 --out FILE.jsonl
    python benchmarks/citation_outcomes.py claims --model demo/sources --world harbour --seed 40 --out FILE.jsonl

A line is one question (`scores`, those of citations.py) or one claim (`claims`, those of citation_verdicts.py): the
relevance of its sources, and the log-odds of the answer without any set of sources that was asked for. A set is written
as a hexadecimal number whose bit i says that source i is kept.

* fitted and measured: random ablations, each drawn apart from the other;
* coded: the words of the code (estimate.py), by the relevance and by the same shuffled;
* each source alone, and each one together with the first;
* what the search for the sources that decide asks for besides (verification.py).
"""

import argparse
import json
import random
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from citations import (
    BatchedAblations,
    count_shared_words,
    open_sharpened,
    pose,
    shuffle_relevance,
    sum_attention,
)
from stored_citations import find_stored_evidence, round_outcome, write_set

import whyformer as why
from whyformer._cite.estimate import code_ablations
from whyformer._cite.likelihood import measure_likelihood
from whyformer._cite.mention import find_asked_words, is_mentioned
from whyformer._cite.run import CITE_METHOD, explain_sources, sum_regions
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._plain.random_generator import make_generator
from whyformer.demo import sources
from whyformer.methods.context_cite import draw_ablations
from whyformer.targets import Answer

FITTED, MEASURED = 64, 128
KINDS = ("one", "reworded", "either", "both", "contradicted", "unanswerable", "sentences")


class PartAblations(BatchedAblations):
    """The log-odds of some tokens of the answer."""

    def __init__(self, model: why.Model, prompt: why.Prompt, players: Any, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        super().__init__(model, prompt, players)

    def combine_tokens(self, log_odds: torch.Tensor) -> torch.Tensor:
        return log_odds[:, self.tokens].sum(1)


def ask_about(
    model: why.Model, prompt: why.Prompt, regions: Sequence[why.Region], aim: Answer, *, drawn: bool
) -> tuple[dict[str, Any], PartAblations]:
    """Relevance and ablations of a part of the answer, and whom to ask for more. drawn: random ablations too."""
    players = make_source_players(prompt, regions)
    ablations = PartAblations(model, prompt, players, aim.find_tokens(prompt))
    n, number = players.count, zlib.crc32(prompt.text.encode())
    explanation, _ = explain_sources(model, prompt, CITE_METHOD, {}, aim, players)
    relevance = sum_regions(explanation.scores[0].double().cpu(), regions).numpy()
    first = int(relevance.argmax())
    sets = [ablations.leave_out([[j] for j in range(n)]), ablations.leave_out([sorted({first, j}) for j in range(n)])]
    sets.append(torch.from_numpy(code_ablations(relevance, first)))
    entry: dict[str, Any] = {"relevance": [float(f"{one:.12g}") for one in relevance], "full": ablations.full}
    if drawn:
        shuffled = np.random.default_rng(number).permutation(n)
        moved = relevance[shuffled]
        sets.append(torch.from_numpy(code_ablations(moved, int(moved.argmax()))))
        random_sets = {
            name: draw_ablations(n, size, make_generator(seed, number))
            for seed, (name, size) in enumerate((("fitted", FITTED), ("measured", MEASURED)))
        }
        sets += random_sets.values()
        entry |= {name: [write_set(row) for row in one.tolist()] for name, one in random_sets.items()}
        entry["shuffled"] = shuffled.tolist()
    ablations.ask(torch.cat(sets))
    entry["known"] = {write_set(row): round_outcome(value) for row, value in ablations.known.items()}
    return entry, ablations


def describe(prompt: why.Prompt, regions: Sequence[why.Region]) -> dict[str, Any]:
    """Where the sources are, and which of them contain each word of what is no source."""
    words = {write_set(row) for row in find_asked_words(prompt, regions).tolist()} - {"0"}
    return {
        "tokens": len(prompt.ids), "spans": [[one.start, one.stop] for one in regions], "asked": sorted(words),
    }  # fmt: skip


def record_scores(arguments: argparse.Namespace, until: float) -> Iterator[dict[str, Any]]:
    for setting in product(arguments.kinds, arguments.sources, arguments.sharpness):
        found = 0
        for number in count(arguments.first):
            is_over = time.time() > until or number > arguments.first + 8 * arguments.questions
            if found >= arguments.questions or is_over:
                break
            entry = record_question(arguments.model, setting, arguments.seed, number, arguments.device)
            if entry is not None:
                found += 1
                yield entry


def record_question(
    name: str, setting: tuple[str, int, float], seed: int, number: int, device: str
) -> dict[str, Any] | None:
    """One question; None if the model answers it otherwise."""
    kind, n, factor = setting
    model, posed = open_sharpened(name, factor, device), pose(kind, n, seed, number)
    prompt = why.Prompt.from_text(model, posed.text, answer=f" {posed.answer}")
    regions = find_sources(prompt, list(posed.spans), None).sources
    if not BatchedAblations(model, prompt, make_source_players(prompt, regions)).is_own_answer:
        return None
    found, ablations = ask_about(model, prompt, regions, Answer(), drawn=True)
    likelihood = measure_likelihood(read_logits(model, prompt), prompt, range(len(prompt.answer)))
    entry = {
        "label": list(setting), "seed": seed, "number": number, "decide": list(posed.decide),
        **describe(prompt, regions), **found, "answer": len(prompt.answer),
        "least": likelihood.least_log_odds,
        "mentioned": is_mentioned(prompt, range(len(prompt.answer)), regions),
        "attention": [float(f"{one:.5g}") for one in sum_attention(model, prompt, regions)],
        "overlap": [float(f"{one:.4g}") for one in count_shared_words(posed)],
    }  # fmt: skip
    for own in (entry, shuffle_relevance(entry)):
        find_stored_evidence(own, "checked", ablations.ask)  # what it asks for is stored
    return entry


@torch.inference_mode()
def read_logits(model: why.Model, prompt: why.Prompt) -> torch.Tensor:
    """[token word]"""
    logits: torch.Tensor = model.module(torch.tensor([prompt.ids], device=model.device)).logits[0]
    return logits


def is_own(model: why.Model, prompt: why.Prompt) -> bool:
    """Whether the model answers so, and ends there."""
    best = read_logits(model, prompt).argmax(-1)[prompt.prompt_length - 1 :].tolist()
    ends = model.module.config.eos_token_id
    return best[:-1] == list(prompt.answer_ids) and best[-1] in (ends if isinstance(ends, list) else [ends])


def record_claims(arguments: argparse.Namespace, until: float) -> Iterator[dict[str, Any]]:
    model = why.open(arguments.model, device=arguments.device)
    wanted = list(product(arguments.sources, KINDS))
    drawn = {
        (n, kind): sources.generate(arguments.questions, arguments.seed, world=arguments.world, kind=kind, passages=n)
        for n, kind in wanted
    }
    for number in range(arguments.first, arguments.questions):
        for n, kind in wanted:
            for way, one in list_ways(drawn[n, kind][number], arguments.seed, number).items():
                if time.time() > until:
                    return
                if one is not None:
                    label = {"model": arguments.name, "world": arguments.world, "seed": arguments.seed, "passages": n}
                    for entry in record_ways(model, one, way):
                        yield {**label, "kind": kind, "number": number, "way": way, **entry}


def list_ways(asked: sources.SourceQuestion, seed: int, number: int) -> dict[str, sources.SourceQuestion | None]:
    """The question with its right answer and with wrong ones, where there are such."""
    rng = random.Random(f"{seed} {asked.kind} {number}")
    ways = (("stated elsewhere", True), ("absent", False))
    return {"own": asked} | {way: sources.answer_wrongly(asked, rng, is_stated=stated) for way, stated in ways}


def record_ways(model: why.Model, asked: sources.SourceQuestion, way: str) -> Iterator[dict[str, Any]]:
    prompt = why.Prompt.from_text(model, asked.text, answer=f" {asked.answer}")
    if way == "own" and not is_own(model, prompt):
        return
    regions = find_sources(prompt, list(asked.passage_spans), None).sources
    common = describe(prompt, regions)
    for claim, (start, stop) in zip(asked.claims, asked.claim_spans, strict=True):
        aim = Answer(None) if len(asked.claims) == 1 else Answer((start + 1, stop + 1), unit="character")
        tokens = aim.find_tokens(prompt)
        entry, ablations = ask_about(model, prompt, regions, aim, drawn=False)
        likelihood = measure_likelihood(read_logits(model, prompt), prompt, tokens)
        rival = None
        if likelihood.rival is not None:
            place, token = likelihood.rival
            before = list(prompt.ids[: prompt.prompt_length + place])
            other = why.Prompt.from_tokens(model, before, [token])
            rival, _ = ask_about(model, other, regions, Answer(None), drawn=False)
            rival["containing"] = [i for i, one in enumerate(regions) if token in prompt.ids[one.start : one.stop]]
        entry = {
            "support": [list(one) for one in claim.support], "against": [list(one) for one in claim.against],
            **common, **entry, "least": likelihood.least_log_odds,
            "mentioned": is_mentioned(prompt, tokens, regions), "rival": rival,
        }  # fmt: skip
        find_stored_evidence(entry, "checked", ablations.ask)  # what it asks for is stored
        yield entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("scores", "claims"))
    parser.add_argument("--model", default="demo/reader")
    parser.add_argument("--name", default="reader")
    parser.add_argument("--kinds", nargs="+", default=["one", "either", "together"])
    parser.add_argument("--sources", nargs="+", type=int, default=[8, 20, 50])
    parser.add_argument("--sharpness", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--world", default="harbour")
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--until", type=float, default=1e12, help="on the clock of time.time()")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    until = min(arguments.until, time.time() + arguments.seconds)
    record = record_scores if arguments.what == "scores" else record_claims
    with arguments.out.open("w", encoding="utf-8") as file:
        for entry in record(arguments, until):
            print(json.dumps(entry), file=file, flush=True)


if __name__ == "__main__":
    main()
