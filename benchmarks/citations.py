"""Do the scores of cite predict ablations? Beside ContextCite, leave-one-out, attention, word overlap and chance.

    python benchmarks/citation_outcomes.py scores ... --out FILE.jsonl     first: what the models answer
    python benchmarks/citations.py FILE.jsonl ... --json docs/data/citations.json
    python benchmarks/citations.py --json docs/data/citations.json --write        the tables, into docs/cite.md

Held-out questions of demo/reader whose answer is what it finds likeliest, token by token. *one*: one passage states the
answer; *either*: another says the same in other words; *together*: sources are sentences, one names what the next calls
"it". *reworded*: questions of whyformer.demo.sources (with demo/sources) whose answer is not in the words of the
passage. The last norm is multiplied by the sharpness. Ours are the scores of effort="checked". Measured on 128 random
ablations that no method has seen:

* LDS: the rank correlation of summed scores with the log-odds of the answer;
* within: the same inside the ablations that agree in the sources that decide, 0 for equal scores;
* false citations: of the sources that an answer is called supported by, those that do not decide.

Forwards: a relevance pass is counted as 3, an ablation of ours by the share of the tokens that it reads; the ablations
of the others as 1 each. `one-hot`: 1 on the source with the highest relevance. `shuffled`: ours, with the relevance of
the sources permuted. Means, with the 95 % bootstrap interval of the difference in LDS to ContextCite with 64 ablations.
Settings were chosen on seeds 41, 61 and 101; the tables are of seed 111.
"""

import argparse
import copy
import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_table import DOCS, insert_table
from stored_citations import StoredAblations, find_stored_evidence, judge_stored_claim, read_entries, read_set

import whyformer as why
from whyformer._cite.ablations import Ablations
from whyformer._cite.calibration import CHECKED, FAST, judge_support
from whyformer._plain.statistics import bootstrap
from whyformer.demo import reader, sources
from whyformer.demo.reader_words import CITIES, NAMES, RELATIONS, SUBJECTS, TOPICS, VALUES
from whyformer.methods._players import Players
from whyformer.methods.context_cite import fit_lasso
from whyformer.metrics.datamodelling import correlate_defined_ranks
from whyformer.results.citations import SUPPORTED

SAMPLES = 64
ROWS = 256  # ablations in one forward
PENALTY = 0.01
FORWARDS = {
    "ContextCite, 12": "12", "ContextCite, 32": "32", "ContextCite, 64": "64", "leave-one-out": "sources + 1",
    "one relevance pass": "3", "one-hot": "3", "last-layer attention": "1", "word overlap": "0", "shuffled": "12",
    "random": "0",
}  # fmt: skip
KINDS = ("one", "either", "together", "reworded")
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


def score_question(entry: Mapping[str, Any], ours: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of every method, from stored outcomes."""
    count, relevance = len(entry["relevance"]), np.array(entry["relevance"])
    fitted = torch.tensor([read_set(one, count) for one in entry["fitted"]])
    log_odds = torch.tensor([entry["known"][one] for one in entry["fitted"]], dtype=torch.float64) / entry["answer"]
    alone = StoredAblations(entry, entry["tokens"], entry["spans"]).ask_without([[j] for j in range(count)])
    generator = np.random.default_rng(zlib.crc32(json.dumps(entry["label"]).encode()) + entry["number"])
    return {
        "ours": ours,
        **{f"ContextCite, {n}": fit_lasso(fitted[:n], log_odds[:n], PENALTY).weights.numpy() for n in (12, 32, 64)},
        "leave-one-out": alone.numpy(),
        "one relevance pass": relevance,
        "one-hot": np.eye(count)[relevance.argmax()],
        "last-layer attention": np.array(entry["attention"]),
        "word overlap": np.array(entry["overlap"]),
        "shuffled": find_stored_evidence(shuffle_relevance(entry), "checked")[0].scores,
        "random": generator.standard_normal(count),
    }


def shuffle_relevance(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The question with the relevance of its sources permuted; the outcomes are the same ones."""
    return {**entry, "relevance": [entry["relevance"][source] for source in entry["shuffled"]]}


def measure_question(entry: Mapping[str, Any]) -> dict[str, Any]:
    """LDS and within of every method, and what fast and checked cite."""
    count = len(entry["relevance"])
    keep = torch.tensor([read_set(one, count) for one in entry["measured"]])
    actual = torch.tensor([entry["known"][one] for one in entry["measured"]], dtype=torch.float64)
    found, forwards = find_stored_evidence(entry, "checked")
    scores = score_question(entry, found.scores)
    rows = {name: measure_scores(one, keep, actual, entry["decide"]) for name, one in scores.items()}
    return {
        "rows": rows,
        "forwards": forwards,
        "cited": {effort: list_cited(entry, effort) for effort in ("checked", "fast")},
        "decide": entry["decide"],
    }


def list_cited(entry: Mapping[str, Any], effort: str) -> list[int]:
    """The sources that the answer is called supported by."""
    case = judge_stored_claim(entry, effort)
    support = (FAST if effort == "fast" else CHECKED).estimate_support(case["features"])
    return list(case["basis"]) if judge_support(support, bool(case["opposed"])) == SUPPORTED else []


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


# --- the tables -------------------------------------------------------------------------------------------------------


def sum_up(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of one setting."""
    found = [measure_question(entry) for entry in entries]
    values = {name: np.array([case["rows"][name] for case in found]) for name in found[0]["rows"]}
    difference = bootstrap((values["ours"][:, 0] - values["ContextCite, 64"][:, 0]).tolist())
    return {
        "questions": len(found), "forwards": round(max(case["forwards"] for case in found), 2),
        "lds": {name: round(float(one[:, 0].mean()), 4) for name, one in values.items()},
        "within": {name: round(float(one[:, 1].mean()), 4) for name, one in values.items()},
        "difference": [round(one, 4) for one in difference],
        "cited": {effort: count_cited(found, effort) for effort in ("checked", "fast")},
    }  # fmt: skip


def count_cited(found: Sequence[Mapping[str, Any]], effort: str) -> list[int]:
    """False citations, all citations, and answers for which a deciding source, or all of them, are cited."""
    pairs = [(set(case["cited"][effort]), set(case["decide"])) for case in found]
    wrong, cited = sum(len(one - own) for one, own in pairs), sum(len(one) for one, _ in pairs)
    return [wrong, cited, sum(bool(one & own) for one, own in pairs), sum(own <= one for one, own in pairs)]


def list_tables(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """LDS, within and false citations: one row for each setting."""
    methods = list(next(iter(settings.values()))["lds"])
    forwards = [f"{max(one['forwards'] for one in settings.values()):g}", *(FORWARDS[name] for name in methods[1:])]
    for title, key in (("LDS", "lds"), ("within", "within")):
        more = ["ours minus ContextCite, 64"] if key == "lds" else []
        yield "| " + " | ".join([title, "questions", *methods, *more]) + " |"
        yield "|---" * (len(methods) + 2 + len(more)) + "|"
        yield "| " + " | ".join(["forwards", "", *forwards, *[""] * len(more)]) + " |"
        for name, one in settings.items():
            last = ["{:+.3f} ({:+.3f} to {:+.3f})".format(*one["difference"])] if more else []
            yield (
                "| " + " | ".join([name, str(one["questions"]), *(f"{x:.3f}" for x in one[key].values()), *last]) + " |"
            )
        yield ""
    yield "| citations | false, checked | a deciding source cited | all | false, fast | a deciding source cited | all |"
    yield "|---|---|---|---|---|---|---|"
    total = {effort: np.sum([one["cited"][effort] for one in settings.values()], 0) for effort in ("checked", "fast")}
    asked = sum(one["questions"] for one in settings.values())
    for name, cited, questions in [
        *((name, one["cited"], one["questions"]) for name, one in settings.items()), ("all", total, asked),
    ]:  # fmt: skip
        cells = [cell for effort in ("checked", "fast") for cell in format_cited(*cited[effort], questions)]
        yield "| " + " | ".join([name, *cells]) + " |"


def format_cited(wrong: int, cited: int, some: int, every: int, questions: int) -> list[str]:
    share = f" ({100 * wrong / cited:.1f} %)" if cited else ""
    return [f"{wrong} of {cited}{share}", f"{some} of {questions}", str(every)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="outcomes of the seed")
    parser.add_argument("--seed", type=int, default=111)
    parser.add_argument("--questions", type=int, default=300, help="of each setting, the first ones")
    parser.add_argument("--json", type=Path, required=True, help="the figures: written, or read if there are no files")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/cite.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in read_entries(arguments.files):
        if entry["seed"] == arguments.seed:
            kind, count, factor = entry["label"]
            groups.setdefault(f"{kind}, {count} sources, x {factor:g}", []).append(entry)
    if groups:
        for some in groups.values():
            some.sort(key=lambda entry: entry["number"])
            del some[arguments.questions :]
        order = sorted(groups, key=lambda name: (KINDS.index(name.split(",")[0]), int(name.split()[1]), name))
        arguments.json.write_text(json.dumps({name: sum_up(groups[name]) for name in order}, indent=0) + "\n")
    lines = list(list_tables(json.loads(arguments.json.read_text())))
    print("\n".join(lines))
    if arguments.write:
        insert_table(DOCS / "cite.md", BEGIN, lines)


if __name__ == "__main__":
    main()
