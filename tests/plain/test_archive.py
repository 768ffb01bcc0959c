"""Files: what comes back is bit for bit what went in, and nothing else is let in."""

import json
import math
import pickle
import stat
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from whyformer._engine.target import Target
from whyformer._plain import archive
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation, load

SUFFIXES = (".safetensors", ".json")
both_formats = pytest.mark.parametrize("suffix", SUFFIXES)


def an_explanation(scores, tokens, *, name="cat.png", label="tabby", **changes) -> Explanation:
    facts = dict(
        targets=(Target(3, label, 1 / 3, 0.1, False, 4, "dog", 7),) * len(scores),
        names=(name,) * len(scores),
        method="lrp",
        settings={"own": "keep", "start": None, "floor": -math.inf, "layers": [1, 2], "on": True, "nested": {"a": 0.1}},
        model="tiny",
        versions={"torch": "2.13"},
        class_specific=True,
        signed=False,
        notes=("one", "two"),
    )
    return Explanation(scores, (tokens,) * len(scores), **facts | changes)


def a_picture(dtype=torch.float64, **changes) -> Explanation:
    torch.manual_seed(0)
    random = torch.randn(2, 6, dtype=dtype) * 1e-7
    parts = dict(pixels=torch.randn(2, 4, 6, dtype=dtype), special=torch.randn(2, 1, dtype=dtype))
    return an_explanation(random, Grid(2, 3), **parts | changes)


def assert_same(one: Explanation, other: Explanation) -> None:
    for name, value in vars(one).items():
        twin = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert value.dtype == twin.dtype, name
            assert value.shape == twin.shape, name
            assert value.contiguous().view(torch.uint8).tolist() == twin.view(torch.uint8).tolist(), name
        else:
            assert value == twin, name
            assert type(value) is type(twin), name


@both_formats
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_bit_comes_back(tmp_path, suffix, dtype):
    e = a_picture(dtype)
    e.save(tmp_path / f"e{suffix}")
    assert_same(e, load(tmp_path / f"e{suffix}"))
    assert_same(e, Explanation.load(str(tmp_path / f"e{suffix}")))


@both_formats
def test_extreme_numbers_come_back(tmp_path, suffix):
    scores = torch.tensor([[-0.0, 5e-324, sys.float_info.max, 0.1, 1 / 3, -1e-300]], dtype=torch.double)
    e = an_explanation(scores, Grid(2, 3))
    e.save(tmp_path / f"e{suffix}")
    assert_same(e, load(tmp_path / f"e{suffix}"))


@both_formats
@given(data=st.data())
def test_any_string_comes_back(tmp_path_factory, suffix, data):
    """Control characters, lone surrogates (file names that are not UTF-8), anything."""
    anything = st.text(alphabet=st.characters(), max_size=8)
    text, name, label = data.draw(anything), data.draw(anything), data.draw(anything)
    pieces = Pieces((text, "b"), (False, True), (False, True), ((0, len(text)), None), text)
    e = an_explanation(torch.ones(1, 2), pieces, name=name, label=label)
    path = tmp_path_factory.mktemp("any") / f"e{suffix}"
    e.save(path)
    assert_same(e, load(path))


@both_formats
def test_a_part_of_a_batch_and_none_of_it_come_back(tmp_path, suffix):
    for part in (a_picture()[1:], a_picture()[2:]):
        part.save(tmp_path / f"e{suffix}")
        assert_same(part, load(tmp_path / f"e{suffix}"))


def test_json_is_json_for_everybody(tmp_path):
    """Bare NaN and Infinity are no JSON; other languages refuse them."""
    a_picture().save(tmp_path / "e.json")

    def refuse(word):
        raise AssertionError(word)

    held = json.loads((tmp_path / "e.json").read_bytes().decode("ascii"), parse_constant=refuse)
    assert held["kind"] == "explanation"
    assert held["targets"][0]["label"] == "tabby"
    assert held["tokens"][0] == {"rows": 2, "columns": 3}
    assert held["scores"]["shape"] == [2, 6]


def test_settings_that_json_has_no_word_for_are_kept_by_their_repr():
    assert archive.as_json_value({"start": (1, 2), "f": print, 3: torch.float32}) == {
        "start": [1, 2],
        "f": "<built-in function print>",
        "3": "torch.float32",
    }


def test_a_file_replaces_another_whole_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "e.json"
    path.write_text("old")
    a_picture().save(path)
    assert_same(a_picture(), load(path))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "ordinary").touch()
    a_picture().save(tmp_path / "e.json")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "e.json")}
    assert len(modes) == 1


def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "e.json"
    a_picture().save(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    with pytest.raises(InputError, match=r"Cannot write .*e\.json: No space left on device"):
        a_picture(torch.float32).save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert_same(a_picture(), load(path))


def test_places_that_cannot_be_written_to(tmp_path):
    with pytest.raises(InputError, match=r"Cannot write .*No such file or directory"):
        a_picture().save(tmp_path / "nowhere" / "e.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=r"Cannot write .*Is a directory"):
        a_picture().save(tmp_path / "folder.json")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.json"]


@pytest.mark.parametrize("name", ["e.pickle", "e.pt", "e", ".json", ""])
def test_endings_nobody_knows(tmp_path, name):
    with pytest.raises(InputError, match=r"Cannot tell the format of .*\.safetensors, \.json, \.html, .* work"):
        a_picture().save(name)
    with pytest.raises(InputError, match=r"Cannot tell the format of .*\.safetensors, \.json work"):
        load(name)


def test_a_file_that_is_not_there(tmp_path):
    for suffix in SUFFIXES:
        with pytest.raises(InputError, match=r"Cannot read .*gone.*No such file"):
            load(tmp_path / f"gone{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        with pytest.raises(InputError):
            load(tmp_path / f"folder{suffix}")


STRANGE = [
    b"",
    b"hello",
    b"[]",
    b"3",
    b"{}",
    b'{"kind": "explanation", "version": 1}',
    b"\xff\xfe",
    b"[" * 100_000,
    b"null",
]


@both_formats
@pytest.mark.parametrize("contents", [*STRANGE, pickle.dumps({"scores": [1]})], ids=lambda c: repr(c[:12]))
def test_files_that_are_not_ours_are_refused(tmp_path, suffix, contents):
    (tmp_path / f"e{suffix}").write_bytes(contents)
    with pytest.raises(InputError, match="is no explanation saved by whyformer, or it is damaged"):
        load(tmp_path / f"e{suffix}")


def test_safetensors_of_somebody_else_are_refused(tmp_path):
    save_file({"scores": torch.ones(1, 2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="is no explanation saved by whyformer"):
        load(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: held.pop("scores"),
        lambda held: held.update(extra=1),
        lambda held: held["scores"].update(dtype="int64"),
        lambda held: held["scores"].update(shape=[7]),
        lambda held: held["scores"].update(shape=[1, 12]),
        lambda held: held.update(targets=[]),
        lambda held: held.update(targets=[{"index": 1}] * 2),
        lambda held: held.update(tokens=[{"rows": 9, "columns": 9}] * 2),
        lambda held: held.update(tokens=[{"pieces": ["a"]}] * 2),
        lambda held: held.update(names=[1, 2]),
        lambda held: held.update(version="x"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage):
    path = tmp_path / "e.json"
    a_picture().save(path)
    held = json.loads(path.read_text())
    damage(held)
    path.write_text(json.dumps(held))
    with pytest.raises(InputError, match="or it is damaged"):
        load(path)


@both_formats
def test_a_file_that_ends_early_is_refused(tmp_path, suffix):
    path = tmp_path / f"e{suffix}"
    a_picture().save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="or it is damaged"):
        load(path)


def test_a_file_from_the_future_says_so(tmp_path):
    path = tmp_path / "e.json"
    a_picture().save(path)
    held = json.loads(path.read_text()) | {"version": 2}
    path.write_text(json.dumps(held))
    with pytest.raises(InputError, match=r"written by a newer whyformer \(layout 2, not 1\)"):
        load(path)


def test_a_file_of_another_kind_says_so(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(archive.to_json_text("comparison", {}))
    with pytest.raises(InputError, match="holds a saved comparison, no explanation"):
        load(path)
