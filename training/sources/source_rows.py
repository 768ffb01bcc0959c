"""Training rows of the readers of sources: passages, then up to eight questions of all kinds with their answers.

Workers write them into a folder, part by part, while the models learn from the parts that are there.
"""

import multiprocessing
import os
import random
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "reader"))
from rows import FORMS, Segments, arrange, join_rows, make_tokenizer

from whyformer_papers.worlds import sources
from whyformer_papers.worlds.sources_words import SOURCE_WORLDS

PART_SIZE = 2000
ALIKE = 0.5  # share of the rows with passages that mostly their subjects tell apart
CHAINED = 0.6  # share of the rows without a chain that are drawn again
MOST_QUESTIONS = 8
COUNTS = {(2, 4): 0.3, (5, 12): 0.5, (13, 26): 0.14, (27, 50): 0.06}  # of passages
KINDS: dict[sources.SourceKind, float] = {
    "one": 2, "reworded": 1, "either": 1, "both": 3.5, "contradicted": 0.7, "unanswerable": 2, "sentences": 1.5,
}  # fmt: skip


def make_source_tokenizer() -> Tokenizer:
    return make_tokenizer(sources.SOURCE_VOCABULARY)


def write_source_row(rng: random.Random) -> Segments:
    """Questions about the same passages, none of which states a fact that is held out."""
    world = SOURCE_WORLDS[rng.choice(list(SOURCE_WORLDS))]
    fewest, most = rng.choices(list(COUNTS), list(COUNTS.values()))[0]
    passages = sources.draw_sources(rng, world, rng.randint(fewest, most), "training", alike=rng.random() < ALIKE)
    queries = sources.list_queries(rng, world, passages, "training")
    if not queries["both"] and rng.random() < CHAINED:
        return write_source_row(rng)
    asked = []
    for kind in rng.choices(list(KINDS), list(KINDS.values()), k=rng.randint(2, MOST_QUESTIONS)):
        if kind == "sentences":
            asked.append(sources.ask_in_sentences(rng, world, passages, queries))
        elif queries[kind]:
            asked.append(sources.ask(rng, world, passages, kind, rng.choice(queries[kind])))
    questions = [one for one in {one.question: one for one in asked if one}.values()]
    form = rng.choices(list(FORMS), list(FORMS.values()))[0]
    return arrange(rng, questions, form) if questions else write_source_row(rng)


def write_part(file: Path, seed: int, count: int, longest: int) -> None:
    """One part of the rows; it has its name only when it is whole."""
    rng = random.Random(f"source rows {seed}")
    made = join_rows(make_source_tokenizer(), [write_source_row(rng) for _ in range(count)], longest)
    np.savez(file.with_suffix(".tmp.npz"), **dict(zip(("ids", "answers", "lengths"), made, strict=True)))
    file.with_suffix(".tmp.npz").rename(file)


def start_writing(folder: Path, config: dict) -> "multiprocessing.pool.Pool":
    """Processes that write parts into the folder until all rows are there or they are ended."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads of each would be in the way of the others
    count = min(PART_SIZE, config["rows"])
    jobs = [
        (folder / f"{i:05}.npz", 1_000_000 * config["seed"] + i, count, config["longest"])
        for i in range(config["rows"] // count)
    ]
    pool = multiprocessing.get_context("fork").Pool(config["workers"])
    pool.starmap_async(write_part, jobs, chunksize=1)
    return pool
