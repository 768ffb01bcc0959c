"""Data that users hold: DataFrames, columns, `datasets` objects, torch Datasets and DataLoaders."""

import pickle

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import whyformer as why
from whyformer.data import Data, LazyContent, read
from whyformer.errors import InputError

TEXTS = ["a fine film", "a dull film", "not bad at all"]
LABELS = ["positive", "negative", "positive"]
NUMBERS = [1, 0, 1]
PAIRS = list(zip(TEXTS, LABELS, strict=True))
FRAME = pd.DataFrame({"text": TEXTS, "label": LABELS})
CLASS_LABEL = datasets.ClassLabel(names=["negative", "positive"])
HUGGING_FACE = datasets.Dataset.from_pandas(FRAME).cast_column("label", CLASS_LABEL)


class Reviews(Dataset):
    """(text, number of its class)."""

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, number):
        return TEXTS[number], NUMBERS[number]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PAIRS)


class Images(Dataset):
    classes = ("ring", "square")  # as torchvision names them

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 2

    def __getitem__(self, number):
        self.read += 1
        return Image.new("RGB", (8, 6), (number, 0, 0)), torch.tensor(1 - number)


def contents(data: Data) -> list[tuple]:
    return [(example.content, example.label) for example in data.examples]


def names(data: Data) -> list[str]:
    return [example.name for example in data.examples]


# --- whole data sets --------------------------------------------------------------------------------------------------

WITH_NAMES = {
    "DataFrame": FRAME,
    "capitals": FRAME.rename(columns={"text": "Text", "label": " Label "}),
    "categories": FRAME.astype({"label": "category"}),
    "pyarrow table": pyarrow.Table.from_pandas(FRAME),
    "pyarrow batch": pyarrow.RecordBatch.from_pandas(FRAME),
    "Dataset": HUGGING_FACE,
    "Dataset as frames": HUGGING_FACE.with_format("pandas"),
    "Dataset as tensors": HUGGING_FACE.with_format("torch"),
    "stream": HUGGING_FACE.to_iterable_dataset(),
    "split": datasets.DatasetDict({"train": HUGGING_FACE.select([0]), "test": HUGGING_FACE}),
    "named tuples": list(FRAME.itertuples()),
    "rows": [row for _, row in FRAME.iterrows()],
    "dictionaries": FRAME.to_dict("records"),
    "zip": zip(TEXTS, LABELS, strict=True),
    "items": dict(PAIRS).items(),
    "IterableDataset": Stream(),
    "DataLoader of dictionaries": DataLoader(FRAME.to_dict("records"), batch_size=2),
    "DataLoader of texts and names": DataLoader(PAIRS, batch_size=2),
    "DataLoader with its own batches": DataLoader(PAIRS, batch_size=2, collate_fn=list),
    "DataLoader without batches": DataLoader(PAIRS, batch_size=None),
}


@pytest.mark.parametrize("kind", WITH_NAMES)
def test_examples_with_named_classes(kind):
    assert contents(read(WITH_NAMES[kind])) == PAIRS


@pytest.mark.parametrize("source", [Reviews(), DataLoader(Reviews(), batch_size=2)], ids=["Dataset", "DataLoader"])
def test_examples_with_numbered_classes(source):
    assert contents(read(source)) == list(zip(TEXTS, NUMBERS, strict=True))
    assert contents(read(source, classes=["negative", "positive"])) == PAIRS
    assert contents(read(source, classes={0: "negative", 1: "positive"})) == PAIRS


COLUMNS = {
    "Series": FRAME["text"],
    "array of pandas": FRAME["text"].array,
    "objects": FRAME["text"].to_numpy(object),
    "numpy": np.array(TEXTS),
    "pyarrow": pyarrow.array(TEXTS),
    "chunks": pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "column of datasets": HUGGING_FACE["text"],
    "column of another name": HUGGING_FACE.rename_column("text", "said")["said"],
    "column of a stream": HUGGING_FACE.to_iterable_dataset()["text"],
    "DataLoader of texts": DataLoader(TEXTS, batch_size=2),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_is_a_list_of_inputs(kind):
    assert contents(read(COLUMNS[kind])) == [(text, None) for text in TEXTS]


def test_files_written_by_pandas_and_datasets_give_the_same(tmp_path):
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    FRAME.to_parquet(tmp_path / "test.parquet")
    HUGGING_FACE.save_to_disk(tmp_path / "saved")
    assert contents(read(tmp_path / "a.csv")) == contents(read(tmp_path, split="test")) == PAIRS
    assert contents(read(datasets.load_from_disk(tmp_path / "saved"))) == PAIRS
    with pytest.raises(InputError, match=r"Pass datasets\.load_from_disk\("):
        read(tmp_path / "saved")
    with pytest.raises(InputError, match="no split 'tset'"):
        read(tmp_path, split="tset")


# --- rows -------------------------------------------------------------------------------------------------------------


def test_rows_are_called_as_pandas_calls_them():
    assert names(read(FRAME[FRAME["label"] == "positive"])) == ["row 0", "row 2"]
    assert names(read(FRAME["text"].iloc[1:])) == ["row 1", "row 2"]
    assert names(read(FRAME.set_index(pd.Index(["x", "y", "z"])))) == ["x", "y", "z"]
    keyed = read(FRAME.set_index(pd.Index([7, 8, 9], name="key")))
    assert names(keyed) == ["7", "8", "9"] and keyed.notes == ()
    assert names(read(FRAME.assign(id=["p", "q", "r"]))) == ["p", "q", "r"]
    assert names(read(FRAME.set_index(pd.MultiIndex.from_product([["x"], [1, 2, 3]])))) == ["x/1", "x/2", "x/3"]


def test_a_repeated_index_numbers_the_rows():
    data = read(pd.concat([FRAME, FRAME]))
    assert names(data) == [f"row {number}" for number in range(6)]
    assert data.notes == ("The index has repeated or missing values, so rows are numbered from 0.",)


def test_missing_values_of_pandas():
    frame = pd.DataFrame({"text": ["a", None, np.nan, "", pd.NA, "b"], "label": [1, 0, 0, 0, 0, np.nan]})
    data = read(frame)
    assert contents(data) == [("a", 1), ("b", None)]
    assert [str(problem) for problem in data.problems] == [f"row {number}: text is empty" for number in (1, 2, 3, 4)]


def test_lists_in_cells_come_back_from_parquet_as_arrays(tmp_path):
    frame = pd.DataFrame({"tokens": [["so", "very", "dull"]], "rationale": [[0, 0, 1]]})
    frame.to_parquet(tmp_path / "a.parquet")
    again = pd.read_parquet(tmp_path / "a.parquet")
    assert isinstance(again["tokens"][0], np.ndarray)
    (one,) = read(again).examples
    assert (one.content, one.rationale) == ("so very dull", ((8, 12),))


def test_images_in_cells(tmp_path):
    image = Image.new("RGB", (8, 6))
    image.save(tmp_path / "a.png")
    cells = [image, np.zeros((6, 8, 3), np.uint8), tmp_path / "a.png", str(tmp_path / "a.png")]
    data = read(pd.DataFrame({"image": cells, "mask": [np.ones((6, 8))] * 4}))
    assert [type(example.content) for example in data.examples] == [type(cell) for cell in cells]
    assert all(example.mask.shape == (6, 8) for example in data.examples)


def test_pairs_of_texts():
    (one,) = read(pd.DataFrame({"premise": ["a cat sits"], "hypothesis": ["a cat"], "label": [0]})).examples
    assert tuple(one.content) == ("a cat sits", "a cat") and one.label == 0


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_without_a_role_are_named_once():
    note = ("Columns not used: stars, url.",)
    frame = FRAME.assign(stars=1, url="u")
    assert read(frame).notes == read(frame.to_dict("records")).notes == note
    assert read(datasets.Dataset.from_pandas(frame)).notes == note
    assert read(DataLoader(frame.to_dict("records"), batch_size=2)).notes == note
    many = frame.assign(**{f"c{number}": 0 for number in range(20)})
    assert read(many).notes[0].endswith("c8, c9 and 10 more.")


def test_columns_of_any_name(tmp_path):
    frame = pd.DataFrame({0: TEXTS, 1: LABELS})
    assert contents(read(frame, columns={"input": 0, "label": 1})) == PAIRS
    with pytest.raises(InputError, match=r"Pass columns=.*Available: 0, 1"):
        read(frame)
    with pytest.raises(InputError, match="two columns named 'text'"):
        read(pd.DataFrame([["a", "b"]], columns=["text", "text"]))


NAMELESS = {"Series": FRAME["text"], "column": HUGGING_FACE["text"], "list": TEXTS, "world": "demo/shapes"}


@pytest.mark.parametrize("source", NAMELESS.values(), ids=NAMELESS)
def test_columns_are_refused_where_there_are_none(source):
    with pytest.raises(InputError, match=r"no named columns\. Leave columns= out"):
        read(source, columns={"input": "text"})


@pytest.mark.parametrize("source", [FRAME, TEXTS, "demo/shapes"], ids=["DataFrame", "list", "world"])
def test_splits_are_refused_where_there_are_none(source):
    with pytest.raises(InputError, match=r"no splits\. Leave split= out"):
        read(source, split="test")


def test_data_that_was_read_is_not_read_again():
    with pytest.raises(InputError, match=r"read already\. Pass columns= and split= to data\.read"):
        read(read(FRAME), columns={"input": "text"})


def test_a_label_that_is_nowhere_is_noted():
    data = read(FRAME, classes={"positive": "good", "Negative": "bad"})
    assert [example.label for example in data.examples] == ["good", "negative", "good"]
    assert data.notes == ("No label is 'Negative', which classes= names.",)


@pytest.mark.parametrize("classes", ["positive", 3, [0, 1]])
def test_classes_are_a_mapping_or_a_list_of_names(classes):
    with pytest.raises(InputError, match="classes must be a mapping from labels to classes, or a list of names"):
        read(FRAME, classes=classes)


# --- torch ------------------------------------------------------------------------------------------------------------


def test_images_of_a_dataset_are_read_when_needed_and_have_its_classes():
    source = Images()
    data = read(Subset(source, [1, 0]))
    assert [example.label for example in data.examples] == ["ring", "square"]
    assert all(isinstance(example.content, LazyContent) for example in data.examples)
    before = source.read
    assert data.examples[0].load().getpixel((0, 0)) == (1, 0, 0) and source.read == before + 1
    assert data.fingerprint() == read(Subset(source, [1, 0])).fingerprint() != read(source).fingerprint()


def test_another_process_gets_the_image_and_not_the_dataset():
    class Local(Images):  # pickle cannot find this class
        pass

    (first, _) = read(Local()).examples
    content = pickle.loads(pickle.dumps(first.content))
    assert content.mark == first.content.mark and content.load().tobytes() == first.load().tobytes()


def test_batches_of_tensors():
    pixels, labels = torch.rand(3, 3, 4, 4), torch.tensor([2, 0, 1])
    for source in (TensorDataset(pixels, labels), DataLoader(TensorDataset(pixels, labels), batch_size=2)):
        data = read(source)
        assert [example.label for example in data.examples] == [2, 0, 1]
        assert all(torch.equal(example.load(), row) for example, row in zip(data.examples, pixels, strict=True))
    assert [example.label for example in read(DataLoader(TensorDataset(pixels))).examples] == [None] * 3


def test_a_label_among_tensors_is_not_an_input():
    rows = [{"input_ids": torch.tensor([1, 2]), "labels": torch.tensor(n)} for n in (1, 0)]
    for source in (rows, DataLoader(rows, batch_size=2)):
        assert [(list(one.content), one.label) for one in read(source).examples] == [
            (["input_ids"], 1),
            (["input_ids"], 0),
        ]


def test_an_item_that_cannot_be_read_is_a_problem():
    class Damaged(Reviews):
        def __getitem__(self, number):
            if number == 1:
                raise OSError("the file is damaged")
            return super().__getitem__(number)

    data = read(Damaged())
    assert names(data) == ["example 0", "example 2"]
    assert [str(problem) for problem in data.problems] == ["example 1: OSError: the file is damaged"]
    with pytest.raises(InputError, match=r"Reading from the DataLoader failed: OSError: the file is damaged\."):
        read(DataLoader(Damaged(), batch_size=2))


def test_an_image_and_a_label_are_a_row_even_if_both_are_tensors():
    rows = [{"image": torch.rand(3, 4, 4), "label": torch.tensor(n)} for n in (1, 0)]
    for source in (rows, DataLoader(rows, batch_size=2)):
        assert [(one.content.shape, one.label) for one in read(source).examples] == [((3, 4, 4), 1), ((3, 4, 4), 0)]
    (one,) = read(
        [{"pixels": torch.rand(3, 4, 4), "y": torch.tensor(2)}], columns={"input": "pixels", "label": "y"}
    ).examples
    assert one.content.shape == (3, 4, 4) and one.label == 2


def test_a_loader_that_shuffles_is_noted():
    assert "cannot be resumed" in read(DataLoader(Reviews(), shuffle=True)).notes[0]
    assert read(DataLoader(Reviews())).notes == ()


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda batch: ([1], [2], [3]), "is a tuple of 3 parts"),
        (lambda batch: None, "is a NoneType"),
        (lambda batch: [torch.zeros(2, 5), torch.zeros(2, 1), torch.zeros(2, 1)], "is a list of 3 parts"),
        (lambda batch: ({"a": [1]}, torch.zeros(2)), r"different lengths: \[1, 2\]"),
    ],
)
def test_batches_of_another_form_are_refused(collate, message):
    with pytest.raises(InputError, match=message):
        read(DataLoader(Reviews(), batch_size=2, collate_fn=collate))


# --- what is not a list of inputs -------------------------------------------------------------------------------------

ODD = {
    "columns": (
        {"text": TEXTS, "label": LABELS},
        r"from dict\. Its keys are 'text', 'label'\. .*pandas\.DataFrame\(data\)",
    ),
    "batch": ({"input_ids": torch.zeros(2, 3)}, r"Its tensors \('input_ids'\) are one batch"),
    "set": (set(TEXTS), r"from set\. It has no order\. Pass a list"),
    "keys": (FRAME.to_dict().keys(), r"from dict_keys\. Keys are names"),
    "index": (FRAME.columns, "from Index"),
    "groups": (FRAME.groupby("label"), r"from DataFrameGroupBy\. Pass one of its groups"),
    "iterrows": (FRAME.iterrows(), "int is not a supported input"),
    "values": (FRAME.values, "ndarray is not a supported input"),
    "numbers": (range(3), "int is not a supported input"),
    "bytes": (b"abc", "from bytes"),
    "one array": (np.array("a"), "from ndarray"),
    "triples": ([("a", 0, 1)], "a tuple of 3 is not a supported input"),
    "number": (5, "from int"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_not_a_list_of_inputs_is_refused_by_name(kind):
    source, message = ODD[kind]
    with pytest.raises(InputError, match=message):
        read(source)


def test_an_open_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    with (tmp_path / "a.csv").open() as file, pytest.raises(InputError, match=r"from TextIOWrapper\. Pass its path"):
        read(file)


def test_a_row_of_a_table_is_no_list_of_inputs():
    table = pd.DataFrame({"text": ["a fine film"], "label": ["positive"]})
    with pytest.raises(InputError, match="a row of a table, with text, label"):
        why.explain("demo/sentiment", table.iloc[0])
