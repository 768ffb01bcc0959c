"""Readers: every layout, and problems with the place of the row."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from whyformer.data import Data, Example, LazyContent, Problem, read
from whyformer.data.example import fingerprint_file
from whyformer.data.masks import read_mask
from whyformer.errors import InputError


def save_image(path, size=(8, 6), colour=(200, 30, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def problems(data: Data) -> list[str]:
    return [str(problem) for problem in data.problems]


def words_marked(example: Example) -> list[str]:
    return [example.content[start:end] for start, end in example.rationale]


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_for_each_class(tmp_path):
    save_image(tmp_path / "dog" / "b.png")
    save_image(tmp_path / "cat" / "a.jpg")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    data = read(tmp_path)
    assert [(one.name, one.label) for one in data.examples] == [("cat/a.jpg", "cat"), ("dog/b.png", "dog")]


def test_images_without_classes(tmp_path):
    save_image(tmp_path / "a.jpg")
    save_image(tmp_path / ".hidden" / "b.jpg")
    assert [(one.name, one.label) for one in read(tmp_path).examples] == [("a.jpg", None)]


def test_masks_beside_the_images(tmp_path):
    save_image(tmp_path / "images" / "cat" / "a.jpg")
    save_image(tmp_path / "images" / "cat" / "b.jpg")
    mask = save_image(tmp_path / "masks" / "cat" / "a.png")
    data = read(tmp_path)
    assert [one.mask for one in data.examples] == [mask, None]
    assert problems(data) == ["cat/b.jpg: there is no mask with this name; the image is used without a mask"]


def test_masks_in_a_folder_of_their_own_are_found_by_bare_name(tmp_path):
    save_image(tmp_path / "photos" / "cat" / "a.jpg")
    mask = save_image(tmp_path / "outlines" / "a.png")
    assert read(tmp_path / "photos", masks=tmp_path / "outlines").examples[0].mask == mask
    with pytest.raises(InputError, match="no mask folder"):
        read(tmp_path / "photos", masks=tmp_path / "nothing")


def test_a_split_is_a_folder(tmp_path):
    save_image(tmp_path / "test" / "cat" / "a.jpg")
    save_image(tmp_path / "train" / "cat" / "b.jpg")
    assert [one.name for one in read(tmp_path, split="test").examples] == ["cat/a.jpg"]


def test_a_folder_without_images(tmp_path):
    with pytest.raises(InputError, match="has no images"):
        read(tmp_path)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_csv_with_wrong_rows(tmp_path):
    file = tmp_path / "reviews.csv"
    file.write_bytes(
        b"\xef\xbb\xbfid,text,label\n"
        b"one,a good film,1\n"
        b"two,a bad film\n"  # too few cells
        b'three,"a film, with a comma",0\n'
        b"four,,0\n"
        b"five,caf\xe9,1\n"  # Latin-1
        b"six,no label,\n"
        b"seven,half a label,0.5x\n"
    )
    data = read(file)
    assert [(one.name, one.content, one.label) for one in data.examples] == [
        ("one", "a good film", 1),
        ("three", "a film, with a comma", 0),
        ("six", "no label", None),
        ("seven", "half a label", "0.5x"),
    ]
    assert problems(data) == [
        "reviews.csv:3: 2 cells under 3 columns",
        "reviews.csv:5: text is empty",
        "reviews.csv:6: not valid UTF-8",
    ]


def test_an_unclosed_quote_does_not_stop_the_run(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('text,label\nfirst,1\n"second,0\nthird,1\n')
    data = read(file)
    assert [one.content for one in data.examples] == ["first"]
    assert "cannot be read" in problems(data)[0]


def test_columns_are_found_or_named(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("what,truth\ngood,1\n")
    with pytest.raises(InputError, match=r"No column of a\.csv has a usual name for inputs\..* Available: what, truth"):
        read(file)
    data = read(file, columns={"input": "what", "label": "truth"})
    assert [(one.content, one.label) for one in data.examples] == [("good", 1)]
    with pytest.raises(InputError, match="There is no column 'wat'"):
        read(file, columns={"input": "wat"})
    with pytest.raises(InputError, match="'inputs' is not a role"):
        read(file, columns={"inputs": "what"})


def test_two_columns_of_one_name(tmp_path):
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    with pytest.raises(InputError, match="two columns named 'text'"):
        read(tmp_path / "a.csv")


def test_tab_separated_without_a_header_as_sst2_comes(tmp_path):
    (tmp_path / "dev.tsv").write_text('it "works , 10 times\t1\nit does not\t0\n')
    data = read(tmp_path / "dev.tsv")
    assert [(one.content, one.label) for one in data.examples] == [('it "works , 10 times', 1), ("it does not", 0)]


def test_json_lines_gzipped_with_wrong_rows(tmp_path):
    rows = ['{"text": "good", "label": true}', "{broken", "[1, 2]", '{"text": "bad", "label": -1}', "", '{"label": 1}']
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    data = read(tmp_path / "a.jsonl.gz")
    assert [(one.content, one.label) for one in data.examples] == [("good", 1), ("bad", None)]
    assert [p.place for p in data.problems] == ["a.jsonl.gz:2", "a.jsonl.gz:3", "a.jsonl.gz:6"]


def test_fields_that_the_first_row_lacks_are_found(tmp_path):
    rows = [{"text": "fine"}, {"text": "not good", "label": "neg", "rationale": [1, 0]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first, second = read(tmp_path / "a.jsonl").examples
    assert (first.label, first.rationale) == (None, None)
    assert (second.label, words_marked(second)) == ("neg", ["not"])


@pytest.mark.parametrize("label", ["--5", "²", "٣", "1" * 30])
def test_a_label_that_only_looks_like_a_number_is_a_name(label):
    assert read([("fine", label)]).examples[0].label == label


@pytest.mark.parametrize("wrong", [[["a", "b"]], ["ab"], [[0, None]], [[0, float("nan")]]])
def test_a_rationale_without_numbers_is_a_problem(wrong):
    data = read([{"text": "so fine", "rationale": wrong}, "fine"])
    assert problems(data) == ["example 0: the rationale is neither a list of marks nor a list of spans"]


def test_marks_of_words_become_spans(tmp_path):
    rows = [
        {"tokens": ["not", "good", "at", "all"], "label": "neg", "rationale": [1, 1, 0, 1]},
        {"tokens": ["fine"], "label": "pos", "rationale": [0, 1]},
        {"tokens": ["fine"], "label": "pos", "rationale": [0]},
        {"tokens": ["fine"], "label": "pos", "rationale": [[0, 9]]},
        {"tokens": ["fine"], "label": "pos", "rationale": [[1, 3]]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = read(tmp_path / "a.jsonl", classes={"neg": "negative"})
    assert words_marked(data.examples[0]) == ["not good", "all"]
    assert [one.rationale for one in data.examples[1:]] == [(), ((1, 3),)]
    assert [one.label for one in data.examples] == ["negative", "pos", "pos"]
    assert "2 marks for 1 words" in problems(data)[0]
    assert "outside the text of 4 characters" in problems(data)[1]


def test_parquet_with_images(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    raw = save_image(tmp_path / "a.png").read_bytes()
    table = pyarrow.table({"image": [{"bytes": raw, "path": "a.png"}], "label": [3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (one,) = read(tmp_path / "a.parquet").examples
    assert one.label == 3 and one.load().size == (8, 6)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="not a Parquet file, or it is damaged"):
        read(tmp_path / "b.parquet")


def test_paths_of_images_are_relative_to_the_table(tmp_path):
    path = save_image(tmp_path / "photos" / "a.png")
    (tmp_path / "a.csv").write_text("file,label\nphotos/a.png,cat\n")
    assert read(tmp_path / "a.csv").examples[0].content == path


# --- Hugging Face -----------------------------------------------------------------------------------------------------


class Rows:
    """What an object of `datasets` looks like from outside."""

    def __init__(self, features, rows):
        self.features, self.rows = features, rows
        self.column_names = list(features)
        self._fingerprint = "f00"

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]


ClassLabel = SimpleNamespace


def test_a_data_set_object_of_texts_with_named_classes():
    data = read(
        Rows(
            {"text": None, "label": ClassLabel(names=["neg", "pos"])},
            [{"text": "a", "label": 1}, {"text": "", "label": 0}],
        )
    )
    assert [(one.content, one.label) for one in data.examples] == [("a", "pos")]
    assert problems(data) == ["row 1: text is empty"]


def test_images_of_a_data_set_object_are_loaded_lazily():
    class Image:  # recognised by its class name
        pass

    rows = Rows({"image": Image(), "label": None}, [{"image": "pixels", "label": 2}])
    (one,) = read({"train": None, "test": rows}).examples
    assert isinstance(one.content, LazyContent) and one.load() == "pixels" and one.label == 2
    with pytest.raises(InputError, match=r"Pass split=\. Available: train, other"):
        read({"train": rows, "other": rows})
    with pytest.raises(InputError, match=r"There is no split 'val'\. Available: train"):
        read({"train": rows}, split="val")


# --- data sets with rationales ----------------------------------------------------------------------------------------


def eraser(folder, rows):
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("a truly\nawful film , awful")
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def evidence(start, end, document="a.txt"):
    return {"docid": document, "start_token": start, "end_token": end}


def eraser_row(*pieces, **more):
    return {"annotation_id": "a.txt", "classification": "NEG", "docids": None, "evidences": [list(pieces)]} | more


def test_eraser(tmp_path):
    data = read(eraser(tmp_path, [eraser_row(evidence(1, 3), evidence(5, 6), evidence(2, 2))]))
    (one,) = data.examples
    assert (one.name, one.label, words_marked(one)) == ("a.txt", "NEG", ["truly\nawful", "awful"])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (eraser_row(evidence(4, 9)), "evidence 4 to 9 is outside the text of 6 words"),
        (eraser_row(evidence(0, 1), evidence(0, 1, "b.txt")), "the evidence is in 2 documents"),
        (eraser_row(evidence(0, 1, "b.txt")), "the document cannot be read"),
        (eraser_row(evidence(0, 1, "../test.jsonl")), "not an ERASER row"),
        ({"annotation_id": "a.txt"}, "not an ERASER row"),
    ],
)
def test_wrong_rows_of_eraser(tmp_path, row, reason):
    data = read(eraser(tmp_path, [eraser_row(evidence(0, 1)), row]))
    assert len(data) == 1
    assert reason in problems(data)[0] and problems(data)[0].startswith("test.jsonl:2")


def test_eraser_says_which_splits_there_are(tmp_path):
    with pytest.raises(InputError, match=r"no val\.jsonl .* Available: test"):
        read(eraser(tmp_path, []), split="val")


def test_hatexplain_as_published(tmp_path):
    people = [{"label": "offensive"}, {"label": "offensive"}, {"label": "normal"}]
    posts = {
        "1": {"post_tokens": ["you", "dull", "brick"], "annotators": people, "rationales": [[0, 1, 1], [0, 1, 0]]},
        "2": {"post_tokens": ["hello"], "annotators": [{"label": x} for x in "abc"], "rationales": []},
        "3": {"post_tokens": ["hello"]},
    }
    (tmp_path / "dataset.json").write_text(json.dumps(posts))
    data = read(tmp_path / "dataset.json")
    (one,) = data.examples
    assert (one.content, one.label, words_marked(one)) == ("you dull brick", "offensive", ["dull brick"])
    assert "no majority" in problems(data)[0] and "not a HateXplain post" in problems(data)[1]


def test_sst_trees(tmp_path):
    """The rationale of a positive sentence is its positive words; a neutral sentence has no label."""
    lines = ["(4 (3 (2 a) (4 fine)) (2 (1 sad) (2 film)))", "(2 (2 a) (2 film))", "(3 broken"]
    (tmp_path / "dev.txt").write_text("\n".join(lines))
    data = read(tmp_path / "dev.txt")
    assert [(one.content, one.label) for one in data.examples] == [("a fine sad film", 1), ("a film", None)]
    assert words_marked(data.examples[0]) == ["fine"]
    assert problems(data) == ["dev.txt:3: not a tree"]


# --- lists, and what is not data --------------------------------------------------------------------------------------


def test_lists():
    image = Image.new("RGB", (4, 4))
    data = read([("good", 1), "bare", image, {"text": "named", "label": "pos"}, torch.zeros(3, 4, 4), 7, ("x", [1])])
    assert [(one.content, one.label) for one in data.examples[:2]] == [("good", 1), ("bare", None)]
    assert data.examples[2].content is image and data.examples[3].label == "pos"
    assert problems(data) == [
        "example 5: int is not a supported input",
        "example 6: the label is of type list, not a class",
    ]


@pytest.mark.parametrize("source", [[], {}, iter(())])
def test_empty_data(source):
    with pytest.raises(InputError, match=r"no example in|Pass split="):
        read(source)


def test_data_in_which_every_row_is_wrong(tmp_path):
    (tmp_path / "a.jsonl").write_text("nothing\nnothing\n")
    with pytest.raises(InputError, match=r"no example in a.jsonl. 2 rows could not be used: a.jsonl:1: not valid JSON"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing.csv", "no such file"), ("a.docx", "Cannot tell the format"), ("short.csv.gz", "Cannot read")],
)
def test_files_that_cannot_be_read(tmp_path, name, message):
    (tmp_path / "a.docx").write_text("x")
    (tmp_path / "short.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_a_number_is_not_data():
    with pytest.raises(InputError, match="Cannot read examples from int"):
        read(7)


# --- data as a whole --------------------------------------------------------------------------------------------------


def test_a_sample_is_drawn_and_keeps_its_order():
    data = read([(f"text {i}", i % 2) for i in range(100)])
    first, again, other = data.sample(10, 1), data.sample(10, 1), data.sample(10, 2)
    names = [one.name for one in first.examples]
    assert names == [one.name for one in again.examples] != [one.name for one in other.examples]
    assert names == sorted(names, key=lambda name: int(name.split()[1])) and len(names) == 10
    assert data.sample(1000) is data
    with pytest.raises(InputError, match="number of examples must be >= 1, got 0"):
        data.sample(0)


def test_the_fingerprint_changes_with_every_part(tmp_path):
    path = save_image(tmp_path / "a.png")
    one = Example("a", path, 1, np.zeros((2, 2)), ((0, 1),))
    marks = {Data("x", (one,)).fingerprint()}
    for other in (
        Example("b", path, 1, np.zeros((2, 2)), ((0, 1),)),
        Example("a", path, 2, np.zeros((2, 2)), ((0, 1),)),
        Example("a", path, 1, np.ones((2, 2)), ((0, 1),)),
        Example("a", path, 1, np.zeros((2, 2)), ()),
        Example("a", "text", 1, np.zeros((2, 2)), ((0, 1),)),
        Example("a", torch.zeros(2), 1, np.zeros((2, 2)), ((0, 1),)),
        Example("a", Image.new("L", (2, 2)), 1, np.zeros((2, 2)), ((0, 1),)),
        Example("a", {"ids": torch.ones(2)}, 1, np.zeros((2, 2)), ((0, 1),)),
        Example("a", LazyContent(lambda: 1, "later"), 1, np.zeros((2, 2)), ((0, 1),)),
    ):
        marks.add(Data("x", (other,)).fingerprint())
    assert len(marks) == 10
    before = Data("x", (one,)).fingerprint()
    save_image(path, colour=(0, 0, 0))
    assert Data("x", (one,)).fingerprint() != before


def test_a_problem_reads_as_place_and_reason():
    assert str(Problem("a.csv:3", "no text")) == "a.csv:3: no text"


# --- files that are no files ------------------------------------------------------------------------------------------


@pytest.fixture
def odd_folder(tmp_path):
    """A folder with one image, and a pipe, a socket, a folder and a link to a device that have the name of one."""
    save_image(tmp_path / "cat" / "good.png")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "cat" / "folder.png").mkdir()
    (tmp_path / "cat" / "device.png").symlink_to("/dev/zero")
    (tmp_path / "cat" / "loop.png").symlink_to("loop.png")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(tmp_path / "cat"):
        server.bind("socket.png")
    return tmp_path


def test_pipes_sockets_and_devices_named_like_images_do_not_block(odd_folder):
    data = read(odd_folder)
    assert [one.name for one in data.examples] == ["cat/good.png"]
    names = ("device", "folder", "loop", "pipe", "socket")
    assert problems(data) == [f"cat/{name}.png: not a regular file" for name in names]
    assert len(data.fingerprint()) == 64


def test_a_folder_of_nothing_but_pipes(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"no example in .*a\.png: not a regular file") as raised:
        read(tmp_path)
    assert raised.value.code == "E_DATA"


def test_pipes_as_masks_rows_and_documents_do_not_block(odd_folder, tmp_path):
    pipe = odd_folder / "cat" / "pipe.png"
    assert read([("x", 1)]).fingerprint() and Data("x", (Example("a", pipe, 1, pipe),)).fingerprint()
    data = read(odd_folder, masks=odd_folder)
    assert [one.mask for one in data.examples] == [odd_folder / "cat" / "good.png"]
    for suffix in (".csv", ".jsonl", ".parquet", ".json", ".txt"):
        os.mkfifo(tmp_path / f"rows{suffix}")
        with pytest.raises(InputError, match="it is not a regular file"):
            read(tmp_path / f"rows{suffix}")
    (tmp_path / "eraser").mkdir()
    folder = eraser(tmp_path / "eraser", [eraser_row(evidence(0, 1)), eraser_row(evidence(0, 1, "pipe"))])
    os.mkfifo(folder / "docs" / "pipe")
    assert "'pipe' is not a regular file" in problems(read(folder))[0]


@pytest.mark.parametrize("source", ["", " ", "\n\t", "\u3000"])
def test_an_empty_path_is_not_the_current_folder(source, tmp_path, monkeypatch):
    save_image(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"The path of the data is empty.* Write '\.' for the current folder"
    ) as raised:
        read(source)
    assert raised.value.code == "E_DATA"
    with pytest.raises(InputError, match="The path of the mask folder is empty"):
        read(tmp_path, masks=source)
    assert len(read(".")) == 1


@pytest.mark.parametrize("source", ["a\0b", "x" * 5000, "/dev/zero", "/dev/stdin"])
def test_paths_that_cannot_be_opened(source):
    with pytest.raises(InputError) as raised:
        read(source)
    assert raised.value.code == "E_DATA"


@pytest.mark.parametrize(
    "options",
    [dict(columns=5), dict(classes=[1]), dict(split=5), dict(split=""), dict(seed=[1]), dict(mask_values="odd"),
     dict(limit="many"), dict(limit=1.5), dict(limit=True), dict(limit=0), dict(masks=5), dict(mask_values=7)],
)  # fmt: skip
def test_wrong_options(options):
    with pytest.raises(InputError) as raised:
        read([("a", 1), ("b", 0)], **options)
    assert raised.value.code == "E_OPTION"


def test_the_fingerprint_covers_the_whole_file(tmp_path):
    """A change after the first MiB is another data set; a run must not be resumed with it."""
    path = tmp_path / "large.bin"
    marks = set()
    for last in (b"\0", b"\1"):
        path.write_bytes(bytes(3 << 20) + last)
        marks.add(Data("x", (Example("a", path),)).fingerprint())
    assert len(marks) == 2


def test_small_files_have_the_fingerprint_of_version_0_1(tmp_path):
    """So that runs of version 0.1 can be resumed: it hashed the first MiB."""
    path = tmp_path / "small.bin"
    for size in (0, 7, 1 << 20):
        path.write_bytes(b"x" * size)
        assert fingerprint_file(path) == f"{size}:{hashlib.sha256(b'x' * size).hexdigest()}"


def test_a_damaged_gzip_file(tmp_path):
    whole = gzip.compress(b"text,label\n" + b"good,1\n" * 1000)
    for damaged in (whole[:-20], whole[:40], whole[:15] + b"\xff" * 20 + whole[35:], b"\x1f\x8b"):
        (tmp_path / "a.csv.gz").write_bytes(damaged)
        with pytest.raises(InputError) as raised:
            read(tmp_path / "a.csv.gz")
        assert raised.value.code == "E_DATA"


def test_images_in_a_table_are_checked_like_files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    short = save_image(tmp_path / "a.png").read_bytes()[:50]
    contents = [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"text", short]
    table = pyarrow.table({"image": [{"bytes": raw, "path": "a.png"} for raw in contents], "label": [3, 3, 3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    codes = []
    for one in read(tmp_path / "a.parquet").examples:
        with pytest.raises(InputError) as raised:
            one.load()
        codes.append(raised.value.code)
    assert codes == ["E_IMG_FORMAT", "E_IMG_FORMAT", "E_IMG_BROKEN"]


def test_masks_in_a_table_keep_the_numbers_of_their_palette(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = io.BytesIO()
    palette = Image.fromarray(np.array([[0, 1], [255, 1]], dtype=np.uint8), "L").convert("P")
    palette.putdata([0, 1, 255, 1])
    palette.save(file, "PNG")
    raw = save_image(tmp_path / "a.png").read_bytes()
    table = pyarrow.table({"image": [{"bytes": raw}], "mask": [{"bytes": file.getvalue()}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (one,) = read(tmp_path / "a.parquet").examples
    assert read_mask(one.load_mask(), "voc").tolist() == [[0, 1], [-1, 1]]
