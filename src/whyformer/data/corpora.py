"""Text data sets with human rationales, in the layouts in which they are published.

ERASER (DeYoung et al., ACL 2020): docs/NAME is a text; SPLIT.jsonl has its class and the evidence as ranges of tokens,
which are separated by white space. HateXplain (Mathew et al., AAAI 2021): words with one mark each, by three annotators
in the original file. SST trees (Socher et al., EMNLP 2013): every word and phrase has a label from 0 (very negative) to
4; the rationale of a sentence is the words with the same sentiment as the sentence.
"""

import json
import re
from pathlib import Path

from whyformer.data.example import (
    Cells,
    Data,
    DataError,
    Example,
    Problem,
    collect_examples,
    join_marked_spans,
    join_words_with_spans,
)
from whyformer.data.records import split_word_spans
from whyformer.data.tables import open_text, read_json_lines

SPLITS = ("test", "val", "train")
NEUTRAL_LABEL = 2
LEAF_PATTERN = re.compile(r"\((\d) ([^()]+)\)")


# --- ERASER -----------------------------------------------------------------------------------------------------------


def is_eraser(folder: Path) -> bool:
    return (folder / "docs").is_dir() and any((folder / f"{split}.jsonl").is_file() for split in SPLITS)


def read_eraser(folder: Path, split: str | None) -> Data:
    split = split or "test"
    file = folder / f"{split}.jsonl"
    if not file.is_file():
        splits = [name for name in SPLITS if (folder / f"{name}.jsonl").is_file()]
        raise DataError(f"There is no {split}.jsonl in {str(folder)!r}. Available: {', '.join(splits)}.")
    return collect_examples(folder.name, (parse_eraser_row(folder, *record) for record in read_json_lines(file)))


def parse_eraser_row(folder: Path, place: str, row: Cells | Problem) -> Example | Problem:
    if isinstance(row, Problem):
        return row
    try:
        name, label = str(row["annotation_id"]), str(row["classification"])
        evidence = [piece for group in row["evidences"] for piece in group]
        documents = sorted({str(piece["docid"]) for piece in evidence} | set(row["docids"] or ())) or [name]
        if len(documents) != 1:
            return Problem(place, f"the evidence is in {len(documents)} documents; only one is supported")
        text = read_document(folder / "docs", documents[0])
        spans = split_word_spans(text)
        marks = [False] * len(spans)
        for piece in evidence:
            start, end = int(piece["start_token"]), int(piece["end_token"])
            if not 0 <= start <= end <= len(spans):  # the published files have empty ranges
                return Problem(place, f"the evidence {start} to {end} is outside the text of {len(spans)} words")
            marks[start:end] = [True] * (end - start)
    except (KeyError, TypeError, ValueError) as error:
        return Problem(place, f"not an ERASER row ({type(error).__name__}: {str(error)[:60]})")
    except OSError as error:
        return Problem(place, f"the document cannot be read ({error.strerror})")
    return Example(name, text, label, rationale=join_marked_spans(spans, marks))


def read_document(folder: Path, name: str) -> str:
    """The text of a document. A name that leads out of the folder is refused."""
    path = folder / name
    if path.parent != folder:
        raise ValueError(f"{name!r} is not the name of a document")
    if path.exists() and not path.is_file():  # reading a pipe would block for ever
        raise ValueError(f"{name!r} is not a regular file")
    return path.read_text(encoding="utf-8")


# --- HateXplain -------------------------------------------------------------------------------------------------------


def is_hatexplain(path: Path) -> bool:
    """Whether this is the original dataset.json: one object, posts by id."""
    with open_text(path) as file:
        return path.suffix == ".json" and '"post_tokens"' in file.read(20_000)


def read_hatexplain(path: Path) -> Data:
    """The original file: the label of most annotators, and the words that at least half of the rationales mark."""
    with open_text(path) as file:
        try:
            posts = json.load(file)
        except (ValueError, RecursionError):
            raise DataError(f"{path} is not valid JSON.") from None
    if not isinstance(posts, dict):
        raise DataError(f"{path} is not a JSON object of posts by id, as HateXplain's dataset.json is.")
    return collect_examples("hatexplain", (parse_hatexplain_post(name, post) for name, post in posts.items()))


def parse_hatexplain_post(name: str, post: Cells) -> Example | Problem:
    try:
        words = [str(word) for word in post["post_tokens"]]
        labels = [annotator["label"] for annotator in post["annotators"]]
        marked = [marks for marks in post["rationales"] if len(marks) == len(words)]
        label = max(sorted(set(labels)), key=labels.count, default=None)
        votes = [sum(marks[i] for marks in marked) * 2 >= len(marked) for i in range(len(words))] if marked else []
    except (KeyError, TypeError) as error:
        return Problem(name, f"not a HateXplain post ({type(error).__name__}: {error})")
    if label is None or labels.count(label) * 2 <= len(labels):
        return Problem(name, "there is no majority for a label")
    text, spans = join_words_with_spans(words)
    return Example(name, text, label, rationale=join_marked_spans(spans, votes) if marked else ())


# --- SST trees --------------------------------------------------------------------------------------------------------


def is_trees(path: Path) -> bool:
    with open_text(path) as file:
        return re.match(r"\(\d \(", file.readline()) is not None


def read_trees(path: Path) -> Data:
    with open_text(path) as file:
        trees = ((f"{path.name}:{number}", line.strip()) for number, line in enumerate(file, 1))
        return collect_examples(path.name, (parse_tree(place, tree) for place, tree in trees if tree))


def parse_tree(place: str, line: str) -> Example | Problem:
    leaves = LEAF_PATTERN.findall(line)
    if not re.match(r"\([0-4] ", line) or not leaves or line.count("(") != line.count(")"):
        return Problem(place, "not a tree")
    whole = int(line[1])
    text, spans = join_words_with_spans([word.replace("-LRB-", "(").replace("-RRB-", ")") for _, word in leaves])
    if whole == NEUTRAL_LABEL:
        return Example(place, text)
    same_side = [(int(label) - NEUTRAL_LABEL) * (whole - NEUTRAL_LABEL) > 0 for label, _ in leaves]
    return Example(place, text, int(whole > NEUTRAL_LABEL), rationale=join_marked_spans(spans, same_side))
