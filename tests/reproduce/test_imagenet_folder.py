"""Chefer's Tables 1 to 3 by one command, on a small copy of the folder: validation images and ImageNet-Segmentation."""

import csv
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer.data.segmentation_file import HDF5_MARK
from whyformer.errors import InputError
from whyformer_papers.imagenet_folder import split_imagenet_folder
from whyformer_papers.paper_tables import PAPER_TABLES

SYNSETS = [f"n0000000{i}" for i in range(5)]  # demo/untrained-vit has five classes


class FakeHdf5:
    """Two images with an outline, as h5py gives them: [channel column row], references are keys."""

    def __init__(self, *_):
        pixels = np.random.default_rng(0).integers(0, 255, (2, 3, 32, 32), dtype=np.uint8)
        outline = np.zeros((32, 32))
        outline[8:24, 4:20] = 1
        references = lambda *names: np.array([[name] for name in names], dtype=object)  # noqa: E731
        self.held = {
            "/value/img": references("a", "b"), "/value/gt": references("cell", "cell"), "a": pixels[0], "b": pixels[1],
            "cell": references("mask"), "mask": outline,
        }  # fmt: skip

    def __enter__(self):
        return self.held

    def __exit__(self, *_):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=FakeHdf5))
    (tmp_path / "gtsegs_ijcv.mat").write_bytes(b"MATLAB 7.3".ljust(512) + HDF5_MARK)
    (tmp_path / "LOC_synset_mapping.txt").write_text("".join(f"{name} a name\n" for name in SYNSETS))
    for number, name in enumerate(SYNSETS[:2]):
        (tmp_path / "ILSVRC2012_val" / name).mkdir(parents=True)
        noise = Image.effect_noise((32, 32), 60 + number).convert("RGB")
        noise.save(tmp_path / "ILSVRC2012_val" / name / f"ILSVRC2012_val_0000000{number}.JPEG")
    return tmp_path


@pytest.mark.slow
def test_tables_1_to_3_by_one_command(folder, tmp_path):
    out = tmp_path / ".out"
    result = CliRunner().invoke(app, ["reproduce", "chefer", str(folder), "-M", "demo/untrained-vit", "-o", str(out)])
    assert result.exit_code == 0, result.output
    found = {}
    for file in out.glob("*.csv"):
        with file.open(newline="") as opened:
            found[file.stem] = {(row["method"], row["column"]): row for row in csv.DictReader(opened)}
    ablation = found.pop("chefer-ablation") | found.pop("chefer-ablation-perturbation")
    assert set(found) == {"chefer-perturbation", "chefer-segmentation", "chefer-fragmentation"}
    for name, cells in {**found, "chefer-ablation": ablation}.items():
        table = PAPER_TABLES[name]
        assert set(cells) == {(row, column.name) for row in table.methods for column in table.columns}
        assert all(math.isfinite(float(cell["measured"])) for cell in cells.values())
        for row, numbers in table.published.items():
            published = [cells[row, column.name]["published"] for column in table.columns]
            assert published == ["" if number is None else f"{number:g}" for number in numbers]
    shown = " ".join(result.output.split())
    assert "Table 1" in shown and "Table 2" in shown and shown.count("Table 3") == 2


def test_another_folder_is_read_as_before_and_two_are_refused(folder, tmp_path):
    assert split_imagenet_folder(folder / "ILSVRC2012_val") is None
    assert split_imagenet_folder(folder) == (folder / "ILSVRC2012_val", folder / "gtsegs_ijcv.mat")
    (folder / "train").mkdir()
    with pytest.raises(InputError, match=r"one folder of validation images beside it.*ILSVRC2012_val, train"):
        split_imagenet_folder(folder)
