"""ImageNet-Segmentation as one file, `gtsegs_ijcv.mat`: images with the outline of their object.

Guillaumin, Küttel & Ferrari, ImageNet Auto-Annotation with Segmentation Propagation, IJCV 2014. The file is MATLAB 7.3,
which is HDF5, so reading it needs h5py. Its layout, as the evaluation of Chefer, Gur & Wolf (CVPR 2021) reads it:

    /value/img [image 1]    references to arrays [channel column row] of bytes
    /value/gt  [image 1]    references to cells, whose entry [0 0] refers to an array [column row] of 0 and 1

Images are read when they are needed. The file has no classes.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from whyformer.data.example import Data, DataError, Example, LazyContent, Problem, collect_examples, fingerprint_file

if TYPE_CHECKING:
    import h5py

HDF5_MARK = b"\x89HDF\r\n\x1a\n"
MATLAB_HEADER = 512  # bytes before the mark


def read_segmentation_file(path: Path) -> Data:
    """Every image of the file, with its mask."""
    check_hdf5(path)
    with open_hdf5(path) as file:
        try:
            count, masks = len(file["/value/img"]), len(file["/value/gt"])
        except KeyError:
            raise DataError(
                f"{path.name!r} has no /value/img and /value/gt, as gtsegs_ijcv.mat of ImageNet-Segmentation has."
            ) from None
    mark = fingerprint_file(path)
    return collect_examples(path.name, (make_segmented_example(path, i, masks, mark) for i in range(count)))


def make_segmented_example(path: Path, number: int, masks: int, mark: str) -> Example | Problem:
    if number >= masks:
        return Problem(f"image {number}", "there is no mask for it")
    image = LazyContent(partial(load_image, path, number), f"{mark}/img/{number}")
    mask = LazyContent(partial(load_mask, path, number), f"{mark}/gt/{number}")
    return Example(f"image {number}", image, mask=mask)


def load_image(path: Path, number: int) -> Image.Image:
    with open_hdf5(path) as file:
        values = np.asarray(file[file["/value/img"][number, 0]])
    values = values.transpose(2, 1, 0) if values.ndim == 3 else values.T
    return Image.fromarray(np.ascontiguousarray(values)).convert("RGB")


def load_mask(path: Path, number: int) -> np.ndarray:
    with open_hdf5(path) as file:
        cell = file[file["/value/gt"][number, 0]]
        return np.ascontiguousarray(np.asarray(file[cell[0, 0]]).T.astype(np.int64))


def open_hdf5(path: Path) -> "h5py.File":
    try:
        import h5py
    except ModuleNotFoundError:
        raise DataError(
            f"Reading {path.name!r} needs h5py, which is not installed: pip install 'whyformer[mat]' or pip install "
            "h5py."
        ) from None
    return h5py.File(path, "r")


def check_hdf5(path: Path) -> None:
    """Refuse files that are not HDF5, such as MATLAB files of older versions."""
    with path.open("rb") as file:
        start = file.read(MATLAB_HEADER + len(HDF5_MARK))
    if HDF5_MARK not in (start[: len(HDF5_MARK)], start[MATLAB_HEADER:]):
        raise DataError(
            f"{path.name!r} is not a MATLAB 7.3 file. Of .mat files, only gtsegs_ijcv.mat of ImageNet-Segmentation can "
            "be read."
        )
