"""Images that note in which process they are read; a module of its own, so that a loader process can import it."""

import os
import signal
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from whyformer.data import LazyContent


class SmallProcessor:
    """Pixels as they are, scaled to 0 to 1."""

    def __call__(self, images, return_tensors):
        arrays = [np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255 for image in images]
        return {"pixel_values": torch.from_numpy(np.stack(arrays))}


class ReadImage:
    """Reads an image of noise, and appends the process to a file."""

    def __init__(self, folder: Path, number: int, *, deadly: bool = False) -> None:
        self.folder, self.number, self.deadly, self.parent = folder, number, deadly, os.getpid()

    def __call__(self) -> Image.Image:
        with open(self.folder / f"{self.number:03}", "a") as file:
            file.write(f"{os.getpid()}\n")
        if self.deadly and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.number % 7 == 3:
            raise ValueError("this image is broken")
        noise = np.random.default_rng(self.number).integers(0, 255, (8 + 4 * (self.number % 3), 8, 3), dtype=np.uint8)
        return Image.fromarray(noise)


def make_traced(folder: Path, number: int, **options) -> LazyContent:
    return LazyContent(ReadImage(folder, number, **options), str(number))


def read_processes(folder: Path) -> set[int]:
    """All processes that read an image."""
    return {int(line) for path in folder.iterdir() for line in path.read_text().splitlines()}
