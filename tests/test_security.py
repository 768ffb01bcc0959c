"""Every sentence that SECURITY.md promises has its tests; one that is new or changed has none until it is named here.

security.csv has a row for each sentence and each of its tests.
"""

import ast
import csv
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SECTIONS = ("What we promise", "What is bounded")
NO_PROMISE = ("Of a model folder:", "Of the page", "Not bounded:")
ROWS = [tuple(row) for row in csv.reader((TESTS / "security.csv").read_text(encoding="utf-8").splitlines())]


def list_sentences():
    """What the two sections say, without the titles of their points."""
    text = (TESTS.parent / "SECURITY.md").read_text(encoding="utf-8")
    for title in SECTIONS:
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        for point in re.split(r"\n(?=\* )|\n\n", section):
            words = re.sub(r"^(\* )?(\*\*.*?\*\*)?", "", " ".join(point.split())).strip()
            yield from filter(None, re.split(r"(?<=\.) (?=[A-Z`]|whyformer )", words))


@cache
def list_tests(file):
    return {node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_sentence_has_a_test_and_every_test_a_sentence():
    said = {one for one in list_sentences() if not one.startswith(NO_PROMISE)}
    assert len(said) > 30
    assert said == {sentence for sentence, _, _ in ROWS}


@pytest.mark.parametrize(("sentence", "file", "test"), ROWS, ids=[test for _, _, test in ROWS])
def test_the_tests_that_are_named_exist(sentence, file, test):
    assert test in list_tests(file), sentence
