"""The published data sets, where they are next to the checkout: numbers of examples, labels and rationales."""

import tarfile
from collections import Counter
from pathlib import Path

import pytest

from whyformer.data import read

SHARED = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data sets are not next to the checkout")


@pytest.mark.parametrize(
    ("file", "labels", "marked"),
    [
        ("hatexplain/test.jsonl.gz", {"normal": 782, "hatespeech": 519, "offensive": 476}, 995),
        ("sst2/dev.tsv", {0: 428, 1: 444}, 0),
        ("sst_trees/dev.txt.gz", {0: 428, 1: 444, None: 229}, 738),
        ("imdb/imdb_2000.jsonl.gz", {0: 1000, 1: 1000}, 0),
    ],
)
def test_every_row_is_read(file, labels, marked):
    data = read(SHARED / file)
    assert not data.problems
    assert Counter(one.label for one in data.examples) == labels
    assert sum(bool(one.rationale) for one in data.examples) == marked


def test_eraser_movies(tmp_path):
    """The file also quotes the evidence: the marked words are the quoted ones."""
    with tarfile.open(SHARED / "eraser_movies" / "movies.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    data = read(tmp_path / "movies")
    assert Counter(one.label for one in data.examples) == {"NEG": 100, "POS": 99} and not data.problems
    first = data.examples[0]
    quoted = " ".join(first.content[start:end] for start, end in first.rationale).split()
    assert first.name == "negR_900.txt" and quoted[:3] == ["i", "even", "giggled"]
