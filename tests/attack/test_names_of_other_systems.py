"""Names that are paths on another system, in a saved result: they are shown as names, and nothing is written there."""

import json
from pathlib import Path

import pytest
from PIL import Image

import whyformer as why
from whyformer.errors import WhyformerError

NAMES = [
    r"..\..\evil.txt", r"C:\Windows\win.ini", r"\\server\share\x", r"C:evil", "CON", "NUL.png", "AUX .", "a:stream",
    "x\x00.png", r"\\?\C:\x", "file:///C:/x", "..%5c..%5cx", "../../evil.txt", "/etc/evil", "~/evil", "LPT1.txt",
    r"photos\cat.png", " .. ", "..",
]  # fmt: skip
ENDINGS = (".html", ".json", ".csv", ".svg", ".txt", ".png", ".safetensors", ".parquet")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An explanation of two images, as a file of JSON."""
    image = Image.effect_noise((40, 30), 50).convert("RGB")
    path = tmp_path_factory.mktemp("saved") / "image.json"
    why.explain("demo/untrained-vit", [image, image], "rollout").save(path)
    return path


def replace_texts(value, name, fields):
    """The same JSON with another text in each of these fields, wherever they are."""
    if isinstance(value, dict):
        return {
            key: name_all(one, name) if key in fields else replace_texts(one, name, fields)
            for key, one in value.items()
        }
    return [replace_texts(one, name, fields) for one in value] if isinstance(value, list) else value


def name_all(value, name):
    if isinstance(value, str):
        return name
    return [name_all(one, name) for one in value] if isinstance(value, list) else value


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_path_of_another_system_in_a_saved_result_is_only_a_name(saved, tmp_path, monkeypatch, name):
    held = json.loads(saved.read_text())
    changed = replace_texts(held, name, ("names", "name", "model", "source", "file"))
    assert changed != held
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    Path("in.json").write_text(json.dumps(changed))
    try:
        loaded = why.load("in.json")
    except WhyformerError as error:
        assert error.code == "E_ARCHIVE"  # noqa: PT017
        return
    wanted = {"in.json"}
    for ending in ENDINGS:
        if ending in loaded.formats:
            loaded.save(f"out{ending}")
            wanted.add(f"out{ending}")
    assert set(list_files(tmp_path)) == {"a", "a/b", *(f"a/b/{one}" for one in wanted)}
