"""The packed photos, and a memory of views that the teacher has already spoken about."""

import io
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import views
from fold import is_cat
from PIL import Image
from torch import Tensor


class Photos:
    """All photos on the GPU as [n 3 side side] uint8, with their breeds, parted by the fold."""

    def __init__(self, archive: Path, device: str):
        with np.load(archive) as data:
            raw, ends = data["photos"].tobytes(), data["ends"].tolist()
            label, held_out, self.breeds = data["label"], data["held_out"], data["breeds"].tolist()
        pieces = [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        with ThreadPoolExecutor() as pool:
            pixels = torch.from_numpy(np.stack(list(pool.map(_decoded, pieces)))).permute(0, 3, 1, 2)
        labels = torch.from_numpy(label)
        self.train, self.train_label = (part[~held_out].contiguous().to(device) for part in (pixels, labels))
        self.test, self.test_label = (part[held_out].contiguous().to(device) for part in (pixels, labels))
        self.side, self.device = pixels.shape[-1], device

    def batches(self, size: int) -> Iterator[Tensor]:
        """Places of training photos, epoch after epoch, without end."""
        rest = torch.empty(0, dtype=torch.long, device=self.device)
        while True:
            while len(rest) < size:
                rest = torch.cat([rest, torch.randperm(len(self.train), device=self.device)])
            yield rest[:size]
            rest = rest[size:]

    @torch.no_grad()
    def accuracy(
        self, answer: Callable[[Tensor, Tensor], Tensor], camera: views.Camera, batch: int
    ) -> dict[str, float]:
        """Share of held-out photos, seen whole, whose breed (and whose species) is named right."""
        cat = torch.tensor([is_cat(breed) for breed in self.breeds], device=self.device)
        count, answers = len(self.test), []
        places = (
            torch.arange(math.ceil(count / batch) * batch, device=self.device) % count
        )  # full batches: compiled once
        for chosen in places.split(batch):
            small, large = camera(self.test[chosen], views.whole(batch, self.side, self.device))
            answers.append(answer(small, large).argmax(-1))
        named = torch.cat(answers)[:count]
        species = cat[named] == cat[self.test_label]
        return {
            "breeds": (named == self.test_label).double().mean().item(),
            "species": species.double().mean().item(),
        }


def _decoded(photo: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(photo)).convert("RGB"))


class Memory:
    """The last views with all the teacher said of them: to look once and learn twice halves the teacher's cost."""

    def __init__(self, batches: int):
        self.batches, self.written = batches, 0
        self.store: list[Tensor] = []

    def write(self, rows: list[Tensor]) -> None:
        if not self.store:
            self.store = [row.new_empty(self.batches, *row.shape) for row in rows]
        for kept, row in zip(self.store, rows, strict=True):
            kept[self.written % self.batches] = row
        self.written += 1

    def draw(self) -> list[Tensor]:
        """A batch of views picked from all that are remembered."""
        first = self.store[0]
        size = first.shape[1]
        places = torch.randint(min(self.written, self.batches) * size, (size,), device=first.device)
        return [kept.flatten(0, 1)[places] for kept in self.store]
