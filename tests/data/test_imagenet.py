"""ImageNet: the file of ImageNet-Segmentation, and validation images in one folder with a label file."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from whyformer.data import read
from whyformer.errors import InputError

COLOURS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)  # row column channel
OUTLINE = np.array([[0, 1, 1], [0, 0, 1]], dtype=np.uint8)
HDF5 = b"\x89HDF\r\n\x1a\n"


class FakeHdf5:
    """The file of h5py that the reader needs: references are keys of the same mapping."""

    def __init__(self, path, mode):
        assert mode == "r" and path.exists()
        self.held = {
            "/value/img": np.array([["first"], ["second"]], dtype=object),
            "/value/gt": np.array([["cell"], ["cell"]], dtype=object),
            "first": COLOURS.transpose(2, 1, 0),
            "second": COLOURS.transpose(2, 1, 0)[:, ::-1],
            "cell": np.array([["mask"]], dtype=object),
            "mask": OUTLINE.T,
        }

    def __enter__(self):
        return self.held

    def __exit__(self, *_):
        pass


def check_segmentation(data):
    assert [example.name for example in data.examples] == ["image 0", "image 1"]
    first, second = data.examples
    assert np.array_equal(np.asarray(first.load()), COLOURS) and first.load().mode == "RGB"
    assert np.array_equal(np.asarray(second.load()), COLOURS[:, ::-1])
    assert np.array_equal(first.load_mask(), OUTLINE)
    assert data.fingerprint() != read([first]).fingerprint()


def test_images_and_masks_are_turned_upright(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=FakeHdf5))
    (tmp_path / "gtsegs.mat").write_bytes(b"MATLAB 7.3".ljust(512) + HDF5)
    check_segmentation(read(tmp_path / "gtsegs.mat"))


def test_a_real_file_of_the_same_layout(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is optional")
    with h5py.File(tmp_path / "gtsegs.mat", "w", userblock_size=512) as file:
        mask = file.create_dataset("#refs#/mask", data=OUTLINE.T)
        cell = file.create_dataset("#refs#/cell", data=np.array([[mask.ref]], dtype=h5py.ref_dtype))
        images = [
            file.create_dataset(f"#refs#/{i}", data=COLOURS.transpose(2, 1, 0)[:, :: 1 - 2 * i]) for i in range(2)
        ]
        file["/value/img"] = np.array([[image.ref] for image in images], dtype=h5py.ref_dtype)
        file["/value/gt"] = np.array([[cell.ref]] * 2, dtype=h5py.ref_dtype)
    check_segmentation(read(tmp_path / "gtsegs.mat"))


def test_without_h5py_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "gtsegs.mat").write_bytes(HDF5)
    with pytest.raises(InputError, match="needs h5py, which is not installed"):
        read(tmp_path / "gtsegs.mat")


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file", b"x" * 600])
def test_other_mat_files_are_refused(tmp_path, content):
    (tmp_path / "other.mat").write_bytes(content)
    with pytest.raises(InputError, match=r"not a MATLAB 7\.3 file"):
        read(tmp_path / "other.mat")


def test_hdf5_of_another_layout_is_refused(tmp_path, monkeypatch):
    class Empty(FakeHdf5):
        def __enter__(self):
            return {}

    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=Empty))
    (tmp_path / "other.mat").write_bytes(HDF5)
    with pytest.raises(InputError, match="has no /value/img"):
        read(tmp_path / "other.mat")


# --- validation images ------------------------------------------------------------------------------------------------


@pytest.fixture
def validation(tmp_path):
    folder = tmp_path / "val"
    folder.mkdir()
    for number in (1, 2, 3):
        Image.new("RGB", (8, 8)).save(folder / f"ILSVRC2012_val_0000000{number}.JPEG", "JPEG")
    return folder


def list_labels(folder):
    return [example.label for example in read(folder).examples]


def test_numbers_from_a_plain_label_file(validation):
    lines = "ILSVRC2012_val_00000002.JPEG 970\nILSVRC2012_val_00000001.JPEG 65\n\nILSVRC2012_val_00000003.JPEG 230\n"
    (validation.parent / "val.txt").write_text(lines)
    assert list_labels(validation) == [65, 970, 230]


def test_synsets_from_the_csv_of_kaggle_and_an_image_that_is_not_in_it(validation):
    rows = "ILSVRC2012_val_00000001,n01751748 85 1 499 272 \nILSVRC2012_val_00000003,n02105855 1 2 3 4 n01 5 6 7 8\n"
    (validation / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{rows}")
    data = read(validation)
    assert [example.label for example in data.examples] == ["n01751748", None, "n02105855"]
    assert [str(problem) for problem in data.problems] == [
        "ILSVRC2012_val_00000002.JPEG: it is not in LOC_val_solution.csv, so it has no class"
    ]


def test_the_ids_of_the_development_kit_are_refused(validation):
    (validation / "ILSVRC2012_validation_ground_truth.txt").write_text("490\n361\n171\n")
    with pytest.raises(InputError, match="in another order than the classes of models"):
        read(validation)
    (validation / "val.txt").write_text("ILSVRC2012_val_00000001.JPEG 65\n")  # the way out that the message names
    assert list_labels(validation) == [65, None, None]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("val.txt", "ILSVRC2012_val_00000001.JPEG tench\n", r"val\.txt:1: not 'name number'"),
        ("LOC_val_solution.csv", "a,b\n1,2\n", "no columns ImageId and PredictionString"),
    ],
)
def test_label_files_that_cannot_be_read(validation, name, text, message):
    (validation / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read(validation)


def test_other_images_do_not_care_about_a_file_of_that_name(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "cat.png")
    (tmp_path / "val.txt").write_text("anything at all\n")
    assert list_labels(tmp_path) == [None]


def test_folders_named_by_synset_keep_their_labels(tmp_path):
    for synset in ("n01440764", "n01443537"):
        (tmp_path / synset).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / synset / "ILSVRC2012_val_00000293.JPEG", "JPEG")
    (tmp_path / "val.txt").write_text("ILSVRC2012_val_00000293.JPEG 5\n")
    assert list_labels(tmp_path) == ["n01440764", "n01443537"]
