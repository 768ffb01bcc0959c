"""Glob patterns, webdataset tars and standard input; large tables are read row by row."""

import io
import json
import os
import sys
import tarfile
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from whyformer.data import read
from whyformer.errors import InputError


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_tar(path, files) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


FILES = {
    "train/0001.png": png(1), "train/0001.cls": b"7",
    "train/0002.json": json.dumps({"label": "cat", "width": 4}).encode(), "train/0002.png": png(2),
    "train/0003.PNG": png(3), "train/0003.seg.png": png(9),
    "train/0004.txt": "a gorgeous film é".encode(), "train/0004.cls": b"positive\n",
}  # fmt: skip


# --- tars -------------------------------------------------------------------------------------------------------------


def test_a_webdataset_tar(tmp_path):
    write_tar(tmp_path / "a.tar", FILES)
    data = read(tmp_path / "a.tar")
    assert not data.problems
    assert [example.name for example in data.examples] == [f"a.tar/train/000{n}" for n in range(1, 5)]
    assert [example.label for example in data.examples] == [7, "cat", None, "positive"]
    assert [example.load().getpixel((0, 0))[0] for example in data.examples[:3]] == [1, 2, 3]
    assert data.examples[3].content == "a gorgeous film é"


def test_what_is_no_example_in_a_tar(tmp_path):
    write_tar(
        tmp_path / "a.tar",
        {
            "1.cls": b"7",
            "2.png": png(1), "2.json": b"{broken",
            "3.txt": b"\xff\xfe",
            "4.png": png(4), "4.cls": b"x" * 2**21,
            ".hidden.png": png(5),
            "5.png": png(5),
        },
    )  # fmt: skip
    data = read(tmp_path / "a.tar")
    assert [example.name for example in data.examples] == ["a.tar/5"]
    reasons = {problem.place: problem.reason for problem in data.problems}
    assert reasons["a.tar/1"] == "there is no image and no text among .cls"
    assert reasons["a.tar/2"].startswith("the label cannot be read")
    assert reasons["a.tar/3"] == "the text is not valid UTF-8"
    assert "the limit is 1,048,576" in reasons["a.tar/4"]
    assert [problem.position for problem in data.problems] == [0, 1, 2, 3]


@pytest.mark.parametrize("share", [0.3, 0.55, 0.8])
def test_a_tar_that_ends_early_is_noticed(tmp_path, share):
    """The library reads such a file without an error, up to the cut."""
    path = tmp_path / "a.tar"
    write_tar(path, {f"{n}.png": os.urandom(3000) for n in range(10)})
    whole = path.read_bytes()[: 10 * (512 + 3072) + 1024]
    path.write_bytes(whole[: int(len(whole) * share)])
    data = read(path)
    assert len(data) < 10 and "ends early" in data.problems[-1].reason


def test_a_compressed_tar_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with pytest.raises(InputError, match="is not a tar file, or it is compressed") as refused:
        read(tmp_path / "a.tar")
    assert refused.value.code == "E_DATA"


def test_the_fingerprint_changes_with_the_tar(tmp_path):
    write_tar(tmp_path / "a.tar", FILES)
    before = read(tmp_path / "a.tar").fingerprint()
    assert before == read(tmp_path / "a.tar").fingerprint()
    write_tar(tmp_path / "a.tar", FILES | {"train/0001.png": png(200)})
    assert before != read(tmp_path / "a.tar").fingerprint()


# --- patterns ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    for name in ("cat/1.png", "cat/2.jpg", "dog/1.png", "top.png", "notes.txt"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(png(5))
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("pattern", "names", "labels"),
    [
        ("*/*.png", ["cat/1.png", "dog/1.png"], ["cat", "dog"]),
        ("cat/*", ["1.png", "2.jpg"], [None, None]),
        ("**/*.png", ["cat/1.png", "dog/1.png", "top.png"], ["cat", "dog", None]),
        ("[ct]*/?.png", ["cat/1.png"], ["cat"]),
    ],
)
def test_a_pattern_of_images(photos, pattern, names, labels):
    data = read(photos / pattern)
    assert [example.name for example in data.examples] == names
    assert [example.label for example in data.examples] == labels
    assert all(os.path.isfile(example.content) for example in data.examples)


def test_a_pattern_relative_to_the_current_folder(photos, monkeypatch):
    monkeypatch.chdir(photos)
    assert [example.name for example in read("*.png").examples] == ["top.png"]


def test_a_pattern_that_matches_nothing_or_too_much(photos):
    with pytest.raises(InputError, match=r"No file matches .*\*\.webp"):
        read(photos / "*.webp")
    with pytest.raises(InputError, match=r"matches images and other files, such as .*notes\.txt"):
        read(photos / "*")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    (tmp_path / "a[1].csv").write_text("text,label\ngood,1\n")
    assert [example.content for example in read(tmp_path / "a[1].csv").examples] == ["good"]


def test_a_pattern_of_tables_joins_them_and_keeps_the_order_of_problems(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "1"}\nbroken\n{"text": "2"}\n')
    (tmp_path / "b.jsonl").write_text('broken\n{"text": "3"}\nbroken\n')
    data = read(tmp_path / "*.jsonl")
    assert [example.content for example in data.examples] == ["1", "2", "3"]
    assert [(problem.place, problem.position) for problem in data.problems] == [
        ("a.jsonl:2", 1),
        ("b.jsonl:1", 3),
        ("b.jsonl:3", 5),
    ]


def test_a_pattern_of_tars(tmp_path):
    write_tar(tmp_path / "a-0.tar", {"1.png": png(1)})
    write_tar(tmp_path / "a-1.tar", {"1.png": png(2)})
    assert [example.name for example in read(tmp_path / "a-*.tar").examples] == ["a-0.tar/1", "a-1.tar/1"]


# --- standard input ---------------------------------------------------------------------------------------------------


def give_input(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_paths_and_texts_on_standard_input(monkeypatch):
    give_input(monkeypatch, "a/1.png\n\nb/2.JPG\r\na good film\né\n".encode())
    data = read("-")
    assert [(example.name, example.content) for example in data.examples] == [
        ("a/1.png", "a/1.png"),
        ("b/2.JPG", "b/2.JPG"),
        ("line 4", "a good film"),
        ("line 5", "é"),
    ]


def test_paths_that_are_not_utf8_are_kept_and_such_texts_are_problems(monkeypatch):
    give_input(monkeypatch, b"\xff.png\n\xff is no text\n")
    data = read("-")
    assert [os.fsencode(example.content) for example in data.examples] == [b"\xff.png"]
    assert [str(problem) for problem in data.problems] == ["line 2: not valid UTF-8"]


def test_standard_input_that_is_empty_or_closed(monkeypatch):
    give_input(monkeypatch, b"\n")
    with pytest.raises(InputError, match="There is no example in standard input"):
        read("-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="Standard input is closed"):
        read("-")


# --- large tables -----------------------------------------------------------------------------------------------------


def test_a_large_table_is_not_held_in_memory_beside_its_examples(tmp_path):
    """20 columns that are not used, and one short text."""
    row = {f"column{n}": "x" * 50 for n in range(20)}
    path = tmp_path / "a.jsonl"
    with open(path, "w") as file:
        for n in range(3000):
            file.write(json.dumps({**row, "text": f"text {n}"}) + "\n")
    tracemalloc.start()
    try:
        data = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) == 3000
    assert peak < path.stat().st_size
