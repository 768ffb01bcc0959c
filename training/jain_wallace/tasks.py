"""How the models of Jain & Wallace are trained here, and their real data: SST-2 and IMDB, read from a folder.

Settings as in the authors' code where the data allow it: 8 epochs for classifiers, punctuation removed, and only texts
of more than five words.
"""

import gzip
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

from whyformer.errors import InputError
from whyformer_papers.jain_wallace_models import split_words
from whyformer_papers.jain_wallace_tasks import PARTS, SIZES, TaskExample, generate_task
from whyformer_papers.worlds.reading import READING_TASKS

LONGEST_REVIEW = 200  # words; the longer half of the reviews is left out, for the time that leave-one-out takes
SPLIT_SEED = 1378


@dataclass(frozen=True)
class JainWallaceTask:
    """One task, and how its models are trained."""

    name: str
    labels: tuple[str, ...]
    is_generated: bool = False
    sizes: tuple[int, int, int] = (0, 0, 0)  # of generated parts
    epochs: int = 8
    batch: int = 32
    given: int = 300  # the width of word vectors
    hidden: int = 128  # of an encoder; a BiLSTM has two of these
    least: int = 1  # how often a word must occur in the training set

    def find_width(self, encoder: str) -> int:
        """The width of the states of this encoder, as in the authors' configurations."""
        return 2 * self.hidden if encoder == "bilstm" else self.hidden


REVIEW_LABELS = ("negative", "positive")
JAIN_WALLACE_TASKS = {
    task.name: task
    for task in (
        JainWallaceTask("sst2", REVIEW_LABELS),
        JainWallaceTask("imdb", REVIEW_LABELS, least=3),
        *(
            JainWallaceTask(
                name, task.answers, is_generated=True, sizes=SIZES, epochs=30 if name.startswith("babi") else 25,
                batch=100, given=50, hidden=32,
            )
            for name, task in READING_TASKS.items()
        ),
    )
}  # fmt: skip


def read_task(
    wanted: str | JainWallaceTask, data: str | os.PathLike[str] | None = None
) -> dict[str, list[TaskExample]]:
    """Train, dev and test. data: the folder with sst2/ and imdb/; generated tasks need none."""
    task = JAIN_WALLACE_TASKS[wanted] if isinstance(wanted, str) else wanted
    if task.is_generated:
        return generate_task(task.name, task.sizes)
    if data is None:
        raise InputError(f"The task {task.name} needs data: a folder that contains {task.name}/.", code="E_DATA")
    parts = (read_sst2 if task.name == "sst2" else read_imdb)(Path(data))
    return {part: [one for one in examples if is_long_enough(one[0])] for part, examples in parts.items()}


def is_long_enough(text: str | tuple[str, str]) -> bool:
    """More than five words, as in the authors' code."""
    return isinstance(text, tuple) or len(split_words(text, letters_only=True)) > 5


def read_sst2(data: Path) -> dict[str, list[TaskExample]]:
    """sst2/train.tsv, dev.tsv and test.tsv: a sentence, a tab, 0 or 1."""
    parts: dict[str, list[TaskExample]] = {}
    for part in PARTS:
        rows = (line.rsplit("\t", 1) for line in open_data_file(data / "sst2" / f"{part}.tsv").splitlines())
        parts[part] = [(text, REVIEW_LABELS[int(label)]) for text, label in rows]
    return parts


def read_imdb(data: Path) -> dict[str, list[TaskExample]]:
    """The reviews of imdb/imdb_2000.jsonl.gz that are not too long: 70 % train, 10 % dev, 20 % test."""
    rows = [json.loads(line) for line in open_data_file(data / "imdb" / "imdb_2000.jsonl.gz").splitlines()]
    reviews = [(row["text"].replace("<br />", " "), REVIEW_LABELS[int(row["label"])]) for row in rows]
    reviews = [one for one in reviews if len(split_words(one[0], letters_only=True)) <= LONGEST_REVIEW]
    random.Random(SPLIT_SEED).shuffle(reviews)
    first, second = round(0.7 * len(reviews)), round(0.8 * len(reviews))
    return {"train": list(reviews[:first]), "dev": list(reviews[first:second]), "test": list(reviews[second:])}


def open_data_file(file: Path) -> str:
    if not file.is_file():
        raise InputError(f"There is no {file.name} in {file.parent}.", code="E_DATA")
    raw = file.read_bytes()
    return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
