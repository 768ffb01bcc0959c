"""Do the scores of cite predict ablations? Beside ContextCite, leave-one-out, attention, word overlap and chance.

    python benchmarks/citations.py [--kinds one either] [--sources 8 20 50] [--sharpness 1 3] [--questions 100]
        [--judged 100] [--seed 7] [--model demo/reader] [--device cuda] [--json FILE]
    python benchmarks/citations.py --read FILE ... [--write]             the tables of saved runs, into docs/cite.md

Held-out questions of demo/reader whose answer is what it finds likeliest, token by token. *one*: one passage states the
answer; *either*: another says the same in other words; *together*: sources are sentences, one names what the next calls
"it". *reworded*: questions of whyformer.demo.sources (with --model) whose answer is not in the words of the passage.
The last norm is multiplied by the sharpness. Ours are the scores of effort="checked". Measured on 64 random ablations
that no method has seen:

* LDS: the rank correlation of summed scores with the log-odds of the answer;
* within: the same inside the ablations that agree in the sources that decide, 0 for equal scores;
* false citations: of the sources that an answer is called supported by, those that do not decide.

A relevance pass is counted as 3 forwards. `one-hot`: 1 on the source with the highest relevance. `shuffled`: ours, with
the relevance of the sources permuted. Means, with the 95 % bootstrap interval of the difference in LDS to ContextCite
with 64 ablations. Settings were chosen on seeds 100 to 300.
"""

import argparse
import copy
import json
import random
import time
import zlib
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
from whyformer._cite.effort import EFFORTS, PER_RELEVANCE
from whyformer._cite.estimate import code_ablations, estimate_weights
from whyformer._cite.run import CITE_METHOD, Examined, Study, explain_sources, sum_regions
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._plain.random_generator import make_generator
from whyformer._plain.statistics import bootstrap
from whyformer.demo import reader, sources
from whyformer.demo.reader_words import CITIES, NAMES, RELATIONS, SUBJECTS, TOPICS, VALUES
from whyformer.methods._players import Players
from whyformer.methods.context_cite import draw_ablations, fit_lasso
from whyformer.metrics.datamodelling import correlate_defined_ranks
from whyformer.targets import Answer

SAMPLES = 64
ROWS = 256  # ablations in one forward
PENALTY = 0.01
FORWARDS = {
    "ContextCite, 12": "12", "ContextCite, 32": "32", "ContextCite, 64": "64", "leave-one-out": "sources + 1",
    "one relevance pass": "3", "one-hot": "3", "last-layer attention": "1", "word overlap": "0", "shuffled": "12",
    "random": "0",
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
def open_sharpened(name: str, factor: float, device: str = "cpu") -> why.Model:
    """The model with logits `factor` times as large."""
    model = why.open(name, device=device)
    if factor == 1:
        return model
    module = copy.deepcopy(model.module)
    norm = module.get_submodule("gpt_neox.final_layer_norm" if hasattr(module, "gpt_neox") else "model.norm")
    with torch.no_grad():
        for weight in norm.parameters():
            weight.mul_(factor)
    return why.open(module, tokenizer=model.tokenizer)


# --- methods ----------------------------------------------------------------------------------------------------------


class BatchedAblations(Ablations):
    """The same log-odds, read off the logits of a few hundred ablations at once."""

    def __init__(self, model: why.Model, prompt: why.Prompt, players: Players) -> None:
        self.model, self.players, self.known = model, players, {}
        self.ids, self.length, self.is_own_answer = torch.tensor(prompt.ids), len(prompt.answer), False
        self.full = float(self.ask(torch.ones(1, players.count))[0])

    def ask(self, keep: torch.Tensor) -> torch.Tensor:
        rows = [tuple(row) for row in keep.bool().tolist()]
        new = sorted({row for row in rows if row not in self.known}, key=sum)
        for start in range(0, len(new), ROWS):
            some = new[start : start + ROWS]
            self.known |= dict(zip(some, self.run(torch.tensor(some)), strict=True))
        return torch.tensor([self.known[row] for row in rows], dtype=torch.float64)

    @torch.inference_mode()
    def run(self, keep: torch.Tensor) -> list[float]:
        texts = [self.ids[kept] for kept in self.players.keep(keep)]
        padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).to(self.model.device)  # later tokens: unseen
        states = self.model.module.base_model(padded, attention_mask=torch.ones_like(padded)).last_hidden_state
        before = [state[len(text) - self.length - 1 : len(text) - 1] for state, text in zip(states, texts, strict=True)]
        logits = self.model.module.get_output_embeddings()(torch.stack(before)).double().cpu()
        answer = self.ids[-self.length :][None, :, None].expand(len(texts), -1, 1)
        if keep.all():
            self.is_own_answer = bool((logits[0].argmax(-1) == self.ids[-self.length :]).all())
        others = logits.scatter(-1, answer, -torch.inf).logsumexp(-1)
        return self.combine_tokens(logits.gather(-1, answer)[..., 0] - others).tolist()

    def combine_tokens(self, log_odds: torch.Tensor) -> torch.Tensor:
        """[n] from [n token]."""
        return log_odds.sum(1)


def measure_question(model: why.Model, posed: Posed, prompt: why.Prompt, *, judged: bool) -> dict[str, Any]:
    """The measures of every method; nothing if it is not what the model answers. judged: what fast and checked cite."""
    regions = find_sources(prompt, list(posed.spans), None).sources
    players = make_source_players(prompt, regions)
    ablations = BatchedAblations(model, prompt, players)
    if not ablations.is_own_answer:
        return {}
    count, number, length = players.count, zlib.crc32(posed.text.encode()), len(prompt.answer)
    fitted, keep = (draw_ablations(count, SAMPLES, make_generator(seed, number)) for seed in (0, 1))
    explanation = explain_sources(model, prompt, CITE_METHOD, {}, Answer(), players)
    relevance = sum_regions(explanation.scores[0].double().cpu(), regions).numpy()
    generator = np.random.default_rng(number)
    shuffled = generator.permutation(relevance)
    alone = ablations.leave_out([[source] for source in range(count)])
    coded = [torch.from_numpy(code_ablations(one, int(one.argmax()))) for one in (relevance, shuffled)]
    ablations.ask(torch.cat([fitted, keep, alone, *coded]))  # all in a few forwards
    log_odds, actual = ablations.ask(fitted), ablations.ask(keep)
    scores = {
        "ours": weigh(ablations, coded[0], relevance),
        **{
            f"ContextCite, {n}": fit_lasso(fitted[:n], log_odds[:n] / length, PENALTY).weights.numpy()
            for n in (12, 32, 64)
        },
        "leave-one-out": (ablations.full - ablations.ask(alone)).numpy(),
        "one relevance pass": relevance,
        "one-hot": np.eye(count)[relevance.argmax()],
        "last-layer attention": sum_attention(model, prompt, regions),
        "word overlap": count_shared_words(posed),
        "shuffled": weigh(ablations, coded[1], shuffled),
        "random": generator.standard_normal(count),
    }
    efforts = ("fast", "checked") if judged else ()
    studies = {effort: Study(model, prompt, regions, CITE_METHOD, {}, EFFORTS[effort]) for effort in efforts}
    return {
        "rows": {name: measure_scores(one, keep, actual, posed.decide) for name, one in scores.items()},
        "forwards": PER_RELEVANCE + len(coded[0]) - 1,  # the log-odds with all sources are those of the relevance pass
        "cited": {effort: list_cited(study.examine(Answer())) for effort, study in studies.items()},
        "decide": posed.decide,
    }


def weigh(ablations: BatchedAblations, keep: torch.Tensor, relevance: np.ndarray) -> np.ndarray:
    """The scores of effort="checked"."""
    return estimate_weights(keep.numpy(), ablations.ask(keep).numpy(), relevance, int(relevance.argmax()))


def list_cited(examined: Examined) -> list[int]:
    """The sources that the answer is called supported by."""
    return list(examined.evidence.likely_basis) if examined.support.verdict == "supported" else []


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
            ids = torch.tensor([prompt.ids], device=model.device)
            weights = model.module(ids, output_attentions=True).attentions[-1][0].mean(0).cpu()
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
    model, begin = open_sharpened(arguments.model, factor, arguments.device), time.perf_counter()
    found, asked = [], 0
    while len(found) < arguments.questions and asked < 8 * arguments.questions:
        posed = pose(kind, count, arguments.seed, arguments.first + asked)
        asked += 1
        prompt = why.Prompt.from_text(model, posed.text, answer=f" {posed.answer}")
        found += filter(None, [measure_question(model, posed, prompt, judged=len(found) < arguments.judged)])
        if time.perf_counter() - begin > arguments.seconds:
            break
    return {"label": [kind, count, factor], "asked": asked, "found": found}


def list_tables(columns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """LDS, within and false citations: one row for each setting."""
    settings: dict[str, list[dict[str, Any]]] = {}
    for one in columns:
        kind, count, factor = one["label"]
        settings.setdefault(f"{kind}, {count} sources, x {factor:g}", []).extend(one["found"])
    settings = {name: found for name, found in settings.items() if found}
    methods = list(next(iter(settings.values()))[0]["rows"])
    shown = [FORWARDS.get(name, "") for name in methods]
    for number, title in enumerate(("LDS", "within")):
        difference = " | ours minus ContextCite, 64" if number == 0 else ""
        yield f"| {title} | questions | " + " | ".join(methods) + difference + " |"
        yield "|---" * (len(methods) + 2 + (number == 0)) + "|"
        yield "| forwards | | " + " | ".join([count_forwards(settings), *shown[1:]]) + (" | |" if number == 0 else " |")
        for name, found in settings.items():
            values = {method: np.array([case["rows"][method][number] for case in found]) for method in methods}
            cells = [name, str(len(found)), *(f"{values[method].mean():.3f}" for method in methods)]
            if number == 0:
                cells.append("{:+.3f} ({:+.3f} to {:+.3f})".format(
                    *bootstrap((values["ours"] - values["ContextCite, 64"]).tolist())
                ))  # fmt: skip
            yield "| " + " | ".join(cells) + " |"
        yield ""
    judged = {name: [case for case in found if case["cited"]] for name, found in settings.items()}
    judged = {name: found for name, found in judged.items() if found}
    if not judged:
        return
    yield "| citations | false, checked | a deciding source cited | all | false, fast | a deciding source cited | all |"
    yield "|---|---|---|---|---|---|---|"
    for name, found in {**judged, "all": [case for some in judged.values() for case in some]}.items():
        cells = [cell for effort in ("checked", "fast") for cell in count_cited(found, effort)]
        yield "| " + " | ".join([name, *cells]) + " |"


def count_forwards(settings: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    return f"{max(case['forwards'] for found in settings.values() for case in found):.0f}"


def count_cited(found: Sequence[Mapping[str, Any]], effort: str) -> list[str]:
    """False citations of all, and answers for which a deciding source, or all of them, are cited."""
    pairs = [(set(case["cited"][effort]), set(case["decide"])) for case in found]
    wrong, cited = sum(len(one - own) for one, own in pairs), sum(len(one) for one, _ in pairs)
    some, every = sum(bool(one & own) for one, own in pairs), sum(own <= one for one, own in pairs)
    share = f" ({100 * wrong / cited:.1f} %)" if cited else ""
    return [f"{wrong} of {cited}{share}", f"{some} of {len(pairs)}", str(every)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo/reader")
    parser.add_argument("--kinds", nargs="+", default=["one", "either", "together"])
    parser.add_argument("--sources", nargs="+", type=int, default=[8, 20, 50])
    parser.add_argument("--sharpness", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--judged", type=int, default=100, help="questions of each setting whose citations are counted")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cpu")
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
    lines = list(list_tables(columns))
    print("\n".join(lines))
    if arguments.write:
        insert_table(DOCS / "cite.md", BEGIN, lines)


if __name__ == "__main__":
    main()
