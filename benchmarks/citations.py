"""Do the scores of cite predict ablations? Beside ContextCite, leave-one-out, attention, word overlap and chance.

    python benchmarks/citations.py [--kinds one either] [--sources 8 20 50] [--sharpness 1 3] [--questions 100]
        [--seed 7] [--model demo/reader] [--json FILE]
    python benchmarks/citations.py --read FILE ... [--write]             the table of saved runs, into docs/cite.md

Held-out questions of demo/reader that it answers right. *one*: one passage states the answer; *either*: another says
the same in other words; *together*: sources are sentences, one names what the next calls "it". *reworded*: questions of
whyformer.demo.sources (with --model) whose answer is not in the words of the passage. The last norm is multiplied by
the sharpness. Ours is effort="checked". Measured on 64 random ablations that no method has seen:

* LDS: the rank correlation of summed scores with the log-odds of the answer;
* within: the same inside the ablations that agree in the sources that decide, 0 for equal scores;
* false: sources called supported that neither decide nor contain the answer.

A relevance pass is counted as 3 forwards. `one-hot`: 1 on the source with the highest relevance. `shuffled`: ours, with
the relevance of the sources permuted. Means, with the 95 % bootstrap interval of the difference in LDS to ContextCite
with 64 ablations. Settings were chosen on seeds 100 and 200.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_table import DOCS, insert_table

import whyformer as why
from whyformer._cite.ablations import Ablations
from whyformer._cite.effort import EFFORTS
from whyformer._cite.run import CITE_METHOD, Study, make_answer_probe
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._cite.verification import find_evidence
from whyformer._plain.random_generator import make_generator
from whyformer._plain.statistics import bootstrap
from whyformer.demo import reader, sources
from whyformer.demo.reader_words import CITIES, NAMES, RELATIONS, SUBJECTS, TOPICS, VALUES
from whyformer.methods.context_cite import draw_ablations, fit_lasso
from whyformer.metrics.datamodelling import correlate_defined_ranks
from whyformer.targets import Answer

SAMPLES = 64
PENALTY = 0.01
FORWARDS = {
    "ContextCite, 12": "12", "ContextCite, 32": "32", "ContextCite, 64": "64", "one relevance pass": "3",
    "one-hot": "3", "last-layer attention": "1", "word overlap": "0", "shuffled": "12", "random": "0",
}  # fmt: skip
BEGIN = "<!-- table of benchmarks/citations.py -->"


@dataclass(frozen=True)
class Posed:
    """A question with its sources, the ones that decide, and the answer."""

    text: str
    spans: tuple[tuple[int, int], ...]
    decide: tuple[int, ...]
    answer: str


# --- questions --------------------------------------------------------------------------------------------------------


def draw_topics(rng: random.Random, count: int) -> Iterator[tuple[str, str, Mapping[str, Sequence[str]]]]:
    """Topics and different subjects, with the words that their passages share."""
    words = {**VALUES, "person": reader.draw_some(rng, NAMES, 6), "city": reader.draw_some(rng, CITIES, 9)}
    left = {topic: list(SUBJECTS[topic][0]) for topic in SUBJECTS}
    for _ in range(count):
        topic = reader.pick(rng, [one for one in left if left[one]])
        yield topic, reader._draw_subject(rng, topic, left[topic]), words


def pose(kind: str, count: int, seed: int, number: int) -> Posed:
    rng = random.Random(f"{seed} {number} {count} {kind}")
    if kind == "reworded":
        (asked,) = sources.generate(1, hash_seed(seed, number), kind="reworded", passages=count)
        return Posed(asked.text, tuple(asked.passage_spans), tuple(asked.claims[0].support[0]), asked.answer)
    return pose_sentences(rng, count) if kind == "together" else pose_passages(rng, count, kind == "either")


def hash_seed(seed: int, number: int) -> int:
    return 1000 * seed + number


def pose_passages(rng: random.Random, count: int, is_twice: bool) -> Posed:
    passages = []
    for topic, subject, words in draw_topics(rng, count - is_twice):
        clauses = reader.draw_some(rng, TOPICS[topic].clauses, 2 if count <= 10 else 1)
        passages.append(reader._draw_passage(rng, topic, subject, words, "held-out", clauses))
    source = rng.randrange(len(passages))
    passage = passages[source]
    fact = rng.choice(passage.facts)
    texts, decide = [one.text for one in passages], (source,)
    if is_twice:
        slot = f"{{{fact.relation}}}"
        wordings = next(some for some in TOPICS[passage.topic].clauses if any(slot in one for one in some))
        others = [one.replace(slot, fact.value) for one in wordings]
        other = rng.choice([one for one in others if one not in passage.text])
        place = rng.randrange(len(texts) + 1)
        texts.insert(place, f"{passage.subject[0].upper()}{passage.subject[1:]} {other}.")
        decide = (source + (place <= source), place)
    ends = np.cumsum([len(text) + 2 for text in texts])
    spans = tuple((int(end) - 2 - len(text), int(end) - 2) for end, text in zip(ends, texts, strict=True))
    return finish(rng, texts, spans, decide, fact.relation, passage.subject, fact.value)


def pose_sentences(rng: random.Random, count: int) -> Posed:
    """Passages of two sentences, the second about "it"."""
    texts, spans, facts = [], [], []
    for topic, subject, words in draw_topics(rng, count // 2):
        first, second = reader.draw_some(rng, TOPICS[topic].clauses, 2)
        opening, _ = reader._fill_clause(rng, rng.choice(first), subject, words, "held-out")
        clause, stated = reader._fill_clause(rng, rng.choice(second), subject, words, "held-out")
        start = sum(len(text) + 2 for text in texts)
        named = f"{subject[0].upper()}{subject[1:]} {opening}."
        texts.append(f"{named} {rng.choice(TOPICS[topic].pronouns)} {clause}.")
        spans += [(start, start + len(named)), (start + len(named) + 1, start + len(texts[-1]))]
        facts.append((subject, *stated[0][:2]))
    number = rng.randrange(len(facts))
    subject, relation, value = facts[number]
    return finish(rng, texts, tuple(spans), (2 * number, 2 * number + 1), relation, subject, value)


def finish(
    rng: random.Random,
    texts: Sequence[str],
    spans: Any,
    decide: tuple[int, ...],
    relation: str,
    subject: str,
    value: str,
) -> Posed:
    question = rng.choice(RELATIONS[relation].questions).replace("{S}", subject)
    return Posed("\n\n".join([*texts, f"Question: {question}\nAnswer:"]), spans, decide, value)


@cache
def open_sharpened(name: str, factor: float) -> why.Model:
    """The model with logits `factor` times as large."""
    model = why.open(name)
    if factor == 1:
        return model
    module = copy.deepcopy(model.module)
    norm = module.get_submodule("gpt_neox.final_layer_norm" if hasattr(module, "gpt_neox") else "model.norm")
    with torch.no_grad():
        for weight in norm.parameters():
            weight.mul_(factor)
    return why.open(module, tokenizer=model.tokenizer)


# --- methods ----------------------------------------------------------------------------------------------------------


def measure_question(model: why.Model, posed: Posed, prompt: why.Prompt) -> dict[str, Any]:
    regions = find_sources(prompt, list(posed.spans), None).sources
    players = make_source_players(prompt, regions)
    ablations = Ablations(make_answer_probe(model, prompt, Answer()), players)
    count, fingerprint = players.count, ablations.probe.fingerprints[0]
    fitted = draw_ablations(count, SAMPLES, make_generator(0, fingerprint))
    keep = draw_ablations(count, SAMPLES, make_generator(1, fingerprint))
    log_odds, length = ablations.ask(fitted), len(prompt.answer)
    actual = ablations.ask(keep)
    study = Study(model, prompt, regions, CITE_METHOD, {}, EFFORTS["checked"])
    seen = study.examine(Answer())
    relevance = seen.evidence.relevance
    generator = np.random.default_rng(fingerprint % 2**32)
    shuffled = generator.permutation(relevance)
    blind = Ablations(ablations.probe, players)
    scores = {
        "ours": seen.evidence.scores,
        **{
            f"ContextCite, {n}": fit_lasso(fitted[:n], log_odds[:n] / length, PENALTY).weights.numpy()
            for n in (12, 32, 64)
        },
        "leave-one-out": ablations.ask_without([[source] for source in range(count)]).numpy(),
        "one relevance pass": relevance,
        "one-hot": np.eye(count)[relevance.argmax()],
        "last-layer attention": sum_attention(model, prompt, regions),
        "word overlap": count_shared_words(posed),
        "shuffled": find_evidence(blind, shuffled, lambda first: generator.permutation(relevance), 3, 1).scores,
        "random": generator.standard_normal(count),
    }
    spent = seen.spent
    forwards = {"ours": spent["forward"] + 2 * spent["relevance"], "leave-one-out": count + 1}
    supported = seen.evidence.basis if seen.support.verdict == "supported" else ()
    holds = [posed.answer in posed.text[start:stop] for start, stop in posed.spans]
    return {
        "rows": {name: measure_scores(one, keep, actual, posed.decide) for name, one in scores.items()},
        "forwards": forwards,
        "false": sum(not holds[source] and source not in posed.decide for source in supported),
        "others": count - len(posed.decide),
        "found": bool(set(posed.decide) & set(supported)),
        "all": set(posed.decide) <= set(supported),
    }


def measure_scores(scores: np.ndarray, keep: torch.Tensor, actual: torch.Tensor, decide: Sequence[int]) -> list[float]:
    """LDS and within."""
    predicted = torch.from_numpy(np.round(keep.numpy() @ np.asarray(scores, dtype=float), 9))
    patterns = keep[:, list(decide)].tolist()
    inside, sizes = [], []
    for pattern in [list(one) for one in dict.fromkeys(map(tuple, patterns))]:
        same = torch.tensor([one == pattern for one in patterns])
        if int(same.sum()) >= 5:
            inside.append(np.nan_to_num(correlate_defined_ranks(predicted[same], actual[same])))
            sizes.append(int(same.sum()))
    whole = float(np.nan_to_num(correlate_defined_ranks(predicted, actual)))
    return [whole, float(np.average(inside, weights=sizes)) if sizes else 0.0]


def sum_attention(model: why.Model, prompt: why.Prompt, regions: Sequence[why.Region]) -> np.ndarray:
    """Of the last block, mean over heads, from where the answer is predicted."""
    implementation = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            weights = model.module(torch.tensor([prompt.ids]), output_attentions=True).attentions[-1][0].mean(0)
    finally:
        model.module.set_attn_implementation(implementation)
    row = weights[[position - 1 for position in prompt.answer]].mean(0)
    return np.array([float(row[one.start : one.stop].sum()) for one in regions])


def count_shared_words(posed: Posed) -> np.ndarray:
    """The share of the words of question and answer that a source contains."""
    wanted = set(f"{posed.text.rsplit('Question:', 1)[-1]} {posed.answer}".replace("?", " ").lower().split())
    texts = [posed.text[start:stop].replace(".", " ").lower().split() for start, stop in posed.spans]
    return np.array([len(wanted & set(text)) / len(wanted) for text in texts])


# --- running ----------------------------------------------------------------------------------------------------------


def measure_column(arguments: argparse.Namespace, kind: str, count: int, factor: float) -> dict[str, Any]:
    model, begin = open_sharpened(arguments.model, factor), time.perf_counter()
    found, asked = [], 0
    while len(found) < arguments.questions and asked < 8 * arguments.questions:
        posed = pose(kind, count, arguments.seed, arguments.first + asked)
        asked += 1
        prompt = why.generate(model, posed.text, max_new_tokens=8)
        if prompt.answer_text.strip().rstrip(".") == posed.answer.rstrip("."):
            prompt = why.Prompt.from_text(model, posed.text, answer=f" {posed.answer}")
            found.append(measure_question(model, posed, prompt))
        if time.perf_counter() - begin > arguments.seconds:
            break
    return {"label": [Path(arguments.model).name, kind, count, factor], "asked": asked, "found": found}


def list_table(columns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One line for each setting and method."""
    yield "| setting | method | forwards | LDS | difference to ContextCite, 64 | within |"
    yield "|---|---|---|---|---|---|"
    for label in dict.fromkeys(tuple(one["label"]) for one in columns):
        found = [case for one in columns if tuple(one["label"]) == label for case in one["found"]]
        if not found:
            continue
        name = f"{label[0]}, {label[1]}, {label[2]} sources, x {label[3]:g}, {len(found)} questions"
        best = np.array([case["rows"]["ContextCite, 64"][0] for case in found])
        for method in found[0]["rows"]:
            lds, within = np.array([case["rows"][method] for case in found]).T
            forwards = FORWARDS.get(method) or f"{np.mean([case['forwards'][method] for case in found]):.0f}"
            mean, low, high = bootstrap((lds - best).tolist())
            difference = "" if method == "ContextCite, 64" else f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
            yield f"| {name} | {method} | {forwards} | {lds.mean():.3f} | {difference} | {within.mean():.3f} |"
            name = ""
        wrong, others = sum(case["false"] for case in found), sum(case["others"] for case in found)
        some, every = (sum(case[key] for case in found) for key in ("found", "all"))
        yield f"| | false citations {wrong} of {others}; cited: a deciding source {some}, all {every} | | | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo/reader")
    parser.add_argument("--kinds", nargs="+", default=["one", "either", "together"])
    parser.add_argument("--sources", nargs="+", type=int, default=[8, 20, 50])
    parser.add_argument("--sharpness", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="the number of the first question")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop each setting after so long")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table into docs/cite.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = [one for file in arguments.read or [] for one in json.loads(file.read_text())]
    settings = [(k, n, f) for n in arguments.sources for k in arguments.kinds for f in arguments.sharpness]
    for setting in [] if arguments.read else settings:
        columns.append(measure_column(arguments, *setting))
        if arguments.json:
            arguments.json.write_text(json.dumps(columns))
    lines = list(list_table(columns))
    print("\n".join(lines))
    if arguments.write:
        insert_table(DOCS / "cite.md", BEGIN, lines)


if __name__ == "__main__":
    main()
