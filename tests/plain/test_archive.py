"""Saved results load bit for bit, also stored ones, and anything else is refused."""

import json
import math
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from whyformer._engine.targets.target import Target
from whyformer._plain import archive
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError, OutputError, ResourceError
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation, load

SUFFIXES = (".safetensors", ".json")
both_formats = pytest.mark.parametrize("suffix", SUFFIXES)


def make_explanation(scores, tokens, *, name="cat.png", label="tabby", **changes) -> Explanation:
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


def make_image_explanation(dtype=torch.float64, **changes) -> Explanation:
    torch.manual_seed(0)
    scores = torch.randn(2, 6, dtype=dtype) * 1e-7
    parts = dict(pixels=torch.randn(2, 4, 6, dtype=dtype), special=torch.randn(2, 1, dtype=dtype))
    return make_explanation(scores, Grid(2, 3), **parts | changes)


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
def test_loads_bit_for_bit(tmp_path, suffix, dtype):
    e = make_image_explanation(dtype)
    e.save(tmp_path / f"e{suffix}")
    assert_same(e, load(tmp_path / f"e{suffix}"))
    assert_same(e, Explanation.load(str(tmp_path / f"e{suffix}")))


@both_formats
def test_loads_extreme_numbers(tmp_path, suffix):
    scores = torch.tensor([[-0.0, 5e-324, sys.float_info.max, 0.1, 1 / 3, -1e-300]], dtype=torch.double)
    e = make_explanation(scores, Grid(2, 3))
    e.save(tmp_path / f"e{suffix}")
    assert_same(e, load(tmp_path / f"e{suffix}"))


@both_formats
@given(data=st.data())
def test_loads_any_string(tmp_path_factory, suffix, data):
    """Control characters, lone surrogates (file names that are not UTF-8), anything."""
    anything = st.text(alphabet=st.characters(), max_size=8)
    text, name, label = data.draw(anything), data.draw(anything), data.draw(anything)
    pieces = Pieces((text, "b"), (False, True), (False, True), ((0, len(text)), None), text)
    e = make_explanation(torch.ones(1, 2), pieces, name=name, label=label)
    path = tmp_path_factory.mktemp("any") / f"e{suffix}"
    e.save(path)
    assert_same(e, load(path))


@both_formats
def test_loads_a_slice_and_an_empty_slice_of_a_batch(tmp_path, suffix):
    for part in (make_image_explanation()[1:], make_image_explanation()[2:]):
        part.save(tmp_path / f"e{suffix}")
        assert_same(part, load(tmp_path / f"e{suffix}"))


def test_json_is_standard_json(tmp_path):
    """NaN and Infinity are not valid JSON; other languages refuse them."""
    make_image_explanation().save(tmp_path / "e.json")

    def refuse(word):
        raise AssertionError(word)

    saved = json.loads((tmp_path / "e.json").read_bytes().decode("ascii"), parse_constant=refuse)
    assert saved["kind"] == "explanation"
    assert saved["targets"][0]["label"] == "tabby"
    assert saved["tokens"][0] == {"rows": 2, "columns": 3}
    assert saved["scores"]["shape"] == [2, 6]


def test_settings_without_a_json_type_are_stored_as_their_repr():
    assert archive.as_json_value({"start": (1, 2), "f": print, 3: torch.float32}) == {
        "start": [1, 2],
        "f": "<built-in function print>",
        "3": "torch.float32",
    }


def test_replaces_a_file_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "e.json"
    path.write_text("old")
    make_image_explanation().save(path)
    assert_same(make_image_explanation(), load(path))
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_file_has_the_default_permissions(tmp_path):
    (tmp_path / "ordinary").touch()
    make_image_explanation().save(tmp_path / "e.json")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "e.json")}
    assert len(modes) == 1


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "e.json"
    make_image_explanation().save(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    with pytest.raises(ResourceError, match=r"Cannot write .*e\.json: No space left on device"):
        make_image_explanation(torch.float32).save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert_same(make_image_explanation(), load(path))


def test_paths_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"Cannot write .*nowhere/e\.json: there is no folder '.*nowhere'\. Make it"):
        make_image_explanation().save(tmp_path / "nowhere" / "e.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OutputError, match=r"Cannot write .*Is a directory"):
        make_image_explanation().save(tmp_path / "folder.json")
    for name in ("nul\0.json", "x" * 300 + ".json"):
        with pytest.raises(OutputError, match="Cannot write") as raised:
            make_image_explanation().save(tmp_path / name)
        assert (raised.value.code, raised.value.exit_code) == ("E_OUT_PATH", 4)
    for wrong in (5, None, b"e.json"):
        with pytest.raises(InputError, match=r"The name of a file must be a string or a path") as raised:
            make_image_explanation().save(wrong)
        assert raised.value.code == "E_OPTION"
    assert [p.name for p in tmp_path.iterdir()] == ["folder.json"]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(small_disk):
    path = small_disk / "e.json"
    archive.write_file(path, b"old")
    with pytest.raises(
        ResourceError, match=r"No space left on device\. 200,000 bytes are needed\. Free some"
    ) as raised:
        archive.write_file(path, bytes(200_000))
    assert (raised.value.code, raised.value.exit_code) == ("E_DISK_FULL", 5)
    assert path.read_bytes() == b"old" and list(small_disk.iterdir()) == [path]


@pytest.mark.parametrize("name", ["e.pickle", "e.pt", "e", ".json", ""])
def test_unknown_suffixes(tmp_path, name):
    with pytest.raises(InputError, match=r"Unknown file format: .*\.safetensors, \.json, \.html, "):
        make_image_explanation().save(name)
    with pytest.raises(InputError, match=r"Unknown file format: .*\.safetensors, \.json\."):
        load(name)


def test_a_missing_file(tmp_path):
    for suffix in SUFFIXES:
        with pytest.raises(InputError, match=r"Cannot read .*gone.*No such file"):
            load(tmp_path / f"gone{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        with pytest.raises(InputError):
            load(tmp_path / f"folder{suffix}")


NOT_ARCHIVES = [
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
@pytest.mark.parametrize("contents", [*NOT_ARCHIVES, pickle.dumps({"scores": [1]})], ids=lambda c: repr(c[:12]))
def test_other_files_are_refused(tmp_path, suffix, contents):
    (tmp_path / f"e{suffix}").write_bytes(contents)
    with pytest.raises(InputError, match="is not a saved explanation, or the file is damaged"):
        load(tmp_path / f"e{suffix}")


def test_other_safetensors_are_refused(tmp_path):
    save_file({"scores": torch.ones(1, 2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="is not a saved explanation"):
        load(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved.pop("scores"),
        lambda saved: saved.update(extra=1),
        lambda saved: saved["scores"].update(dtype="int64"),
        lambda saved: saved["scores"].update(shape=[7]),
        lambda saved: saved["scores"].update(shape=[1, 12]),
        lambda saved: saved.update(targets=[]),
        lambda saved: saved.update(targets=[{"index": 1}] * 2),
        lambda saved: saved.update(tokens=[{"rows": 9, "columns": 9}] * 2),
        lambda saved: saved.update(tokens=[{"pieces": ["a"]}] * 2),
        lambda saved: saved.update(names=[1, 2]),
        lambda saved: saved.update(version="x"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage):
    path = tmp_path / "e.json"
    make_image_explanation().save(path)
    saved = json.loads(path.read_text())
    damage(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="or the file is damaged"):
        load(path)


@both_formats
def test_truncated_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"e{suffix}"
    make_image_explanation().save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="or the file is damaged"):
        load(path)


def test_a_file_of_a_newer_version_says_so(tmp_path):
    path = tmp_path / "e.json"
    make_image_explanation().save(path)
    saved = json.loads(path.read_text()) | {"version": 3}
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match=r"written by a newer version .*layout 3; this version reads up to 2"):
        load(path)


def test_a_file_of_another_kind_says_so(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(archive.to_json_text("comparison", {}))
    with pytest.raises(InputError, match="contains a saved comparison, not a saved explanation"):
        load(path)


# --- stored files -----------------------------------------------------------------------------------------------------

STORED = Path(__file__).parent / "stored"


def read_plainly(name: str) -> dict:
    """A stored JSON file, read without whyformer."""
    return json.loads((STORED / name).read_text())


def assert_same_scores(explanation: Explanation, saved: dict) -> None:
    assert explanation.scores.dtype == torch.float32
    assert explanation.scores.tolist() == saved["scores"]["data"]
    assert explanation.names == tuple(saved["names"])
    assert explanation.targets[0] == Target(**saved["targets"][0])


@both_formats
@pytest.mark.parametrize("name", ["image", "text"])
def test_stored_explanations_load_with_the_same_numbers(name, suffix):
    saved, explanation = read_plainly(f"{name}.json"), load(STORED / f"{name}{suffix}")
    assert_same_scores(explanation, saved)
    assert explanation.method == saved["method"]
    assert len(explanation.images) == len(saved["images"])


@both_formats
def test_a_stored_image_can_be_drawn_on(suffix):
    (image,) = load(STORED / f"image{suffix}").images
    assert image.image.size == (32, 24)
    assert image.image.getpixel((31, 23)) == (254, 254, 255)
    assert vars(image.view) == read_plainly("image.json")["images"][0]["view"]


def test_both_stored_formats_load_as_the_same_explanation():
    for name in ("image", "text"):
        assert_same(*(load(STORED / f"{name}{suffix}") for suffix in SUFFIXES))


def test_a_stored_comparison_loads_with_the_same_numbers():
    saved, comparison = read_plainly("comparison.json"), Comparison.load(STORED / "comparison.json")
    assert comparison.labels == ("rollout", "raw_attention") == tuple(saved["explanations"])
    for label in comparison.labels:
        assert_same_scores(comparison[label], saved["explanations"][label])


# --- files that somebody changed --------------------------------------------------------------------------------------


def change_saved(path: Path, change) -> Path:
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    return path


def set_field(*names_and_value):
    *names, last, value = names_and_value

    def change(saved):
        for name in names:
            saved = saved[name]
        saved[last] = value

    return change


TENSOR = {"dtype": "float64", "shape": [2], "data": [1.0, 2.0]}
NAN_SCORES = {"dtype": "float64", "shape": [2, 6], "data": [[{"float": "nan"}] * 6] * 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_field("method", 7), "the explanation method is a int"),
        (set_field("settings", [1]), "the explanation settings is a list, not an object"),
        (set_field("versions", "torch", 2), "versions 'torch' is a int"),
        (set_field("signed", 1), "the explanation signed is a int"),
        (set_field("names", 0, None), r"names\[0\] is None"),
        (set_field("names", ["one"]), ""),
        (set_field("targets", 0, "label", 3), r"targets\[0\] label is a int"),
        (set_field("targets", 0, "score", {"float": "nan"}), r"targets\[0\] score is nan"),
        (set_field("targets", 0, "index", 10**400), "an integer of 401 digits"),
        (set_field("targets", 0, "index", 2**63), r"targets\[0\] index is a int"),
        (set_field("targets", 0, "versus", None), "a versus without a label"),
        (set_field("targets", 0, "probability", 7.5), "the probability 7.5"),
        (set_field("tokens", 0, "rows", 5), "a grid of 5 x 3 patches has 6 scores"),
        (set_field("tokens", 0, "rows", -2), "a grid of -2 x 3 patches"),
        (set_field("scores", NAN_SCORES), "scores contains NaN or infinity"),
        (set_field("scores", TENSOR), r"scores has the shape \[2\]"),
        (set_field("scores", [[1.0]]), "scores is a list"),
        (set_field("pixels", TENSOR), r"pixels has the shape \[2\]"),
        (set_field("special", {"dtype": "float64", "shape": [1, 1], "data": [[1.0]]}), "there are 2 examples"),
        (set_field("details", {"x": {"dtype": "float64", "shape": [], "data": 1.0}}), "there are 2 examples"),
        (set_field("details", {"health sent": TENSOR}), "the conservation check has no relevance"),
        (set_field("details", {"per_layer": TENSOR}), r"per_layer has the shape \[2\]"),
        (set_field("spent", {"forward": "much"}), "spent 'forward' is a str"),
        (set_field("images", [{"view": None, "data": "AAAA"}] * 2), ""),
        (set_field("images", [{"view": 7, "data": "AAAA"}] * 2), r"images\[0\] view"),
        (set_field("version", True), "the file version is True"),
        (set_field("version", "2"), "the file version is a str"),
        (set_field("kind", ["explanation"]), "the file kind is a list"),
        (set_field("extra", 1), ""),
    ],
)
def test_a_changed_field_is_refused_by_name(tmp_path, change, reason):
    make_image_explanation().save(tmp_path / "e.json")
    with pytest.raises(InputError, match=rf"is not a saved explanation, or the file is damaged.*{reason}") as raised:
        load(change_saved(tmp_path / "e.json", change))
    assert raised.value.code == "E_ARCHIVE"


@pytest.mark.parametrize("name", ["pipe.json", "folder.json", "device.json", "pipe.safetensors"])
def test_special_files_are_refused_without_blocking(tmp_path, name):
    path = tmp_path / name
    if "pipe" in name:
        os.mkfifo(path)
    elif "folder" in name:
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"Cannot read .*: it is not a regular file") as raised:
        load(path)
    assert raised.value.code == "E_ARCHIVE"
