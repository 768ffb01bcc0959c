"""Real models and data: a folder named by WHYFORMER_DATA. They are not in the repository; without them tests skip."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import whyformer as why
from whyformer.data import Data, read


def find(name: str) -> Path:
    """A file or folder of the real data; skips the test where it is not at hand."""
    root = os.environ.get("WHYFORMER_DATA")
    if not root or not (Path(root) / name).exists():
        pytest.skip(f"{name} is not at hand: set WHYFORMER_DATA to the folder that has it")
    return Path(root) / name


def open_model(name: str) -> why.Model:
    return why.open(str(find(name)), dtype=torch.float32)


def marked_posts(first: int, count: int) -> Data:
    """Posts of HateXplain with marked words."""
    classes = {"hatespeech": "toxic", "offensive": "toxic", "normal": "not-toxic"}
    data = read(find("hatexplain/test.jsonl.gz"), classes=classes)
    marked = [example for example in data.examples if example.rationale]
    return replace(data, examples=tuple(marked[first : first + count]))


def pronoun_sentences(count: int) -> list[str]:
    """Each has two pronouns, either of which is enough to tell."""
    names, things = ["the doctor", "my friend", "the teacher", "a pilot"], ["book", "car", "coat"]
    words = [("she", "her"), ("he", "his")]
    made = [f"{name} said {she} lost {her} {thing} ." for name in names for thing in things for she, her in words]
    return made[:count]
