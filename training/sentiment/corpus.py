"""The texts the sentiment model learns from, and those it must never see.

Labelled: the training sentences of SST-2 and every phrase of the training trees of SST (0 to 4). Unlabelled:
sentences and stretches of the IMDB reviews (but every fifth) and of the ERASER movie reviews of the training split. A
text that equals a sentence of SST-2 dev or test, letter for letter, is dropped wherever it stands, and a review that
quotes one is dropped whole.
"""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

WINDOW = 40  # letters in a row that count as a quotation


def sst2(data: Path, part: str) -> list[tuple[str, int]]:
    """Sentences of SST-2 with 0 for negative, 1 for positive."""
    rows = (line.rsplit("\t", 1) for line in (data / "sst2" / f"{part}.tsv").read_text("utf-8").splitlines())
    return [(text, int(label)) for text, label in rows]


def phrases(data: Path, part: str) -> dict[str, int]:
    """Every phrase of the trees, whole sentences included, with its label: 0 is very negative, 4 very positive."""
    with gzip.open(data / "sst_trees" / f"{part}.txt.gz", "rt", encoding="utf-8") as file:
        return {text: label for line in file for text, label in phrases_of(line)}


def phrases_of(tree: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    open_nodes: list[tuple[int, list[str]]] = []
    for part in re.findall(r"\(\d|\)|[^()\s]+", tree):
        if part.startswith("(") and len(part) == 2:
            open_nodes.append((int(part[1]), []))
        elif part == ")":
            label, words = open_nodes.pop()
            found.append((natural(words), label))
            if open_nodes:
                open_nodes[-1][1].extend(words)
        else:
            open_nodes[-1][1].append(part)
    return found


def natural(words: list[str]) -> str:
    """Words of a tree as somebody would write them."""
    text = (
        " ".join(words)
        .replace("-LRB-", "(")
        .replace("-RRB-", ")")
        .replace("\\/", "/")
        .replace("``", '"')
        .replace("''", '"')
    )
    return re.sub(r" (n't|'\w+|[.,!?;:)])", r"\1", text)


def imdb(data: Path, held_out: bool) -> list[tuple[str, int]]:
    """Every fifth review is held out."""
    with gzip.open(next((data / "imdb").glob("*.jsonl.gz")), "rt", encoding="utf-8") as file:
        reviews = [json.loads(line) for line in file]
    return [
        (re.sub(r"<br\s*/?>", " ", review["text"]), int(review["label"]))
        for i, review in enumerate(reviews)
        if (i % 5 == 0) == held_out
    ]


def eraser(data: Path) -> list[str]:
    """Movie reviews of the training split."""
    with tarfile.open(data / "eraser_movies" / "movies.tar.gz") as archive:
        texts = {
            Path(m.name).name: archive.extractfile(m).read().decode("utf-8", "replace") for m in archive if m.isfile()
        }  # type: ignore[union-attr]
    kept = {json.loads(line)["annotation_id"] for line in io.StringIO(texts["train.jsonl"])}
    return [texts[name] for name in sorted(kept) if name in texts]


def sentences_of(review: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", review):
        if 3 <= len(sentence.split()) <= 60:
            yield sentence.strip()


def letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


class Forbidden:
    """The sentences of SST-2 dev and test."""

    def __init__(self, data: Path) -> None:
        self.whole = {letters(text) for part in ("dev", "test") for text, _ in sst2(data, part)}
        self.beginnings = {text[:WINDOW] for text in self.whole if len(text) >= WINDOW}

    def is_one(self, text: str) -> bool:
        return letters(text) in self.whole

    def is_quoted_in(self, review: str) -> bool:
        run = letters(review)
        return any(run[i : i + WINDOW] in self.beginnings for i in range(len(run) - WINDOW + 1))
