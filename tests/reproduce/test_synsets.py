"""ImageNet's folder names as class numbers: all of them, some of them, and where the list comes from."""

import pytest
from conftest import animal
from PIL import Image

import whyformer as why
from whyformer.data import Data, Example
from whyformer.errors import InputError
from whyformer_papers import synsets
from whyformer_papers.synsets import number_synset_labels

NAMES = ("n00000004", "n00000001", "n00000003", "n00000002")


@pytest.fixture(scope="module")
def model():
    """A model of four classes."""
    found = why.open(animal("vit").module)
    assert len(found.labels) == len(NAMES)
    return found


@pytest.fixture(autouse=True)
def without_timm(monkeypatch):
    monkeypatch.setattr(synsets, "find_spec", lambda name: None)


def label(folder, names):
    """A folder of images named by synset, read by the project's own reader."""
    for name in names:
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / name / "one.png")
    return why.data.read(folder)


def test_all_folders_are_classes_in_the_order_of_their_names(model):
    data = Data("imagenet", tuple(Example(name, None, name) for name in NAMES))
    assert [one.label for one in number_synset_labels(data, model).examples] == [3, 0, 2, 1]


def test_some_folders_beside_the_mapping(model, tmp_path):
    data = label(tmp_path / "ILSVRC" / "val", NAMES[:2])
    (tmp_path / synsets.MAPPING).write_text("".join(f"{name} a name, another\n" for name in sorted(NAMES)))
    found = {example.name.split("/")[0]: example.label for example in number_synset_labels(data, model).examples}
    assert found == {"n00000004": 3, "n00000001": 0}


def test_some_folders_with_timm(model, tmp_path, monkeypatch):
    package = tmp_path / "timm"
    (package / "data" / "_info").mkdir(parents=True)
    (package / "data" / "_info" / "imagenet_synsets.txt").write_text("\n".join(sorted(NAMES)))
    spec = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(synsets, "find_spec", lambda name: spec if name == "timm" else None)
    data = label(tmp_path / "val", NAMES[2:])
    assert [example.label for example in number_synset_labels(data, model).examples] == [1, 2]


@pytest.mark.parametrize("lines", [None, "n00000004 a\nn00000001 b\n"], ids=["no list", "a list of too few"])
def test_some_folders_without_a_list_are_refused(model, tmp_path, lines):
    data = label(tmp_path / "val", NAMES[:2])
    if lines:
        (tmp_path / synsets.MAPPING).write_text(lines)
    with pytest.raises(InputError, match=r"2 of ImageNet's synsets and the model 4 classes.*LOC_synset_mapping\.txt"):
        number_synset_labels(data, model)


def test_other_labels_are_left_alone(model):
    data = Data("pets", (Example("a", None, "cat"), Example("b", None, None)))
    assert number_synset_labels(data, model) is data
