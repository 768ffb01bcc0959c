"""The input list: unique ids, problems in their place, and a fingerprint that notices changes."""

import os
import pickle
import unicodedata

import numpy as np
import pytest
from PIL import Image

from whyformer import data
from whyformer._bulk.items import ItemList, mark_content, stamp_content
from whyformer.data import Example
from whyformer.errors import InputError

TEXTS = ["one", "two", "three", "four", "five"]


def read_table(folder, text: str, name: str = "texts.jsonl"):
    path = folder / name
    path.write_text(text, "utf-8")
    return data.read(path)


def test_a_row_that_cannot_be_used_keeps_its_place(tmp_path):
    table = read_table(tmp_path, '{"text": "a"}\nbroken\n{"text": ""}\n{"text": "b"}\n7\n')
    items = ItemList(table)
    assert [item.position for item in items] == [0, 1, 2, 3, 4]
    assert [item.content for item in items] == ["a", None, None, "b", None]
    assert [item.problem is None for item in items] == [True, False, False, True, False]
    assert [item.id for item in items] == [f"texts.jsonl:{n}" for n in range(1, 6)]
    assert items[1].problem.startswith("not valid JSON") and items[2].problem == "text is empty"
    assert [item.id for item in list(items)[3:]] == ["texts.jsonl:4", "texts.jsonl:5"]


def test_a_missing_mask_is_no_item(tmp_path):
    for name in ("images/a.png", "images/b.png", "masks/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / name)
    items = ItemList(data.read(tmp_path))
    assert [item.id for item in items] == ["a.png", "b.png"] and len(items.data.problems) == 1


def test_a_sample_keeps_the_positions_of_the_input():
    whole, sample = ItemList(data.read(TEXTS)), ItemList(data.read(TEXTS), limit=3)
    assert len(sample) == 3
    assert all(whole[item.position] == item for item in sample)
    assert [item.position for item in ItemList(data.read(TEXTS), limit=9)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "names",
    [("a", "b", "a"), (unicodedata.normalize("NFC", "é"), "b", unicodedata.normalize("NFD", "é"))],
    ids=["equal", "normal forms"],
)
def test_ids_that_occur_twice_are_refused(names):
    items = ItemList(data.read([Example(name, "text") for name in names]))
    with pytest.raises(InputError, match="these occur more than once") as refused:
        items.check_ids()
    assert refused.value.code == "E_DATA"


def test_at_most_five_repeated_ids_are_named():
    names = [f"id{number}" for number in range(8)] * 2
    with pytest.raises(InputError, match=r"'id0', 'id1', 'id2', 'id3', 'id4' and 3 more") as refused:
        ItemList(data.read([Example(name, "text") for name in names])).check_ids()
    assert "id5" not in str(refused.value)


def test_an_empty_id_is_refused():
    with pytest.raises(InputError, match="position 1 has an empty id"):
        ItemList(data.read([Example("a", "text"), Example(" ", "text")])).check_ids()


@pytest.mark.parametrize("name", ["x" * 10_000, "a\nb", "../..", "\udcff.png"])
def test_odd_ids_are_kept(name):
    items = ItemList(data.read([Example(name, "text"), Example("other", "text")]))
    items.check_ids()
    assert items[0].id.encode() and len(items[0].id) >= len(name)


def test_the_same_base_name_in_two_folders_is_two_ids(tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / folder / "1.png")
    items = ItemList(data.read(tmp_path))
    items.check_ids()
    assert [item.id for item in items] == [os.path.join("cat", "1.png"), os.path.join("dog", "1.png")]


def test_the_fingerprint_notices_every_change(tmp_path):
    def fingerprint(examples):
        return ItemList(data.read(examples)).fingerprint("text")

    base = [Example("a", "one", 1), Example("b", "two", 0)]
    assert fingerprint(base) == fingerprint(list(base))
    others = [
        [Example("a", "one", 1), Example("c", "two", 0)],
        [Example("a", "one", 1), Example("b", "two!", 0)],
        [Example("a", "one", 1), Example("b", "two", 1)],
        base[::-1],
        base[:1],
    ]
    assert len({fingerprint(examples) for examples in [base, *others]}) == 6


def test_a_file_is_known_by_its_contents_and_cheaply_by_its_size_and_time(tmp_path):
    """Not by its path; the plan has only its id, since its row has the rest."""
    path, other = tmp_path / "a.png", tmp_path / "b.png"
    Image.new("L", (8, 8)).save(path)
    other.write_bytes(path.read_bytes())
    assert mark_content(path, "image") == mark_content(str(other), "image") and len(mark_content(path, "image")) == 32
    plan, mark, stamp = (
        ItemList(data.read([path])).fingerprint("image"),
        mark_content(path, "image"),
        stamp_content(path, "image"),
    )
    os.utime(path, ns=(0, 0))
    assert (mark_content(path, "image"), stamp_content(path, "image") == stamp) == (mark, False)
    Image.new("L", (8, 8), 255).save(path)
    assert mark_content(path, "image") != mark
    path.unlink()
    assert stamp_content(path, "image") == "unreadable" and mark_content(path, "image") != mark
    assert ItemList(data.read([path])).fingerprint("image") == plan
    assert stamp_content(str(other), "text") is None and mark_content(str(other), "text") != mark


def test_items_can_be_sent_to_another_process(tmp_path):
    """Also images inside a Parquet file, which are loaded when they are needed."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.png"
    Image.fromarray(np.full((4, 4, 3), 7, np.uint8)).save(path)
    parquet.write_table(pa.table({"image": [{"bytes": path.read_bytes(), "path": "a.png"}]}), tmp_path / "a.parquet")
    item = pickle.loads(pickle.dumps(ItemList(data.read(tmp_path / "a.parquet"))[0]))
    assert item.content.load().getpixel((0, 0)) == (7, 7, 7)
