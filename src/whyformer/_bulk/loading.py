"""Load the items of a shard in threads: decode images, tokenize texts, and sort what is ready into batches.

Which items share a batch follows from the shard, the batch size and the inputs alone: items of one shape together,
texts by length, ties in the order of the input. So the rows are the same on every engine.
"""

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from whyformer._bulk.items import Item
from whyformer._judge.preparation import cut_to_fit, find_class_index
from whyformer._model.image import as_image
from whyformer._model.kept_image import KeptImage
from whyformer._model.model import EncodedBatch, Model
from whyformer._model.text import TextPair
from whyformer.data import Example, LazyContent
from whyformer.errors import InputError, TargetError

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LoadedItem:
    """An item as the model takes it, or the error that it caused."""

    item: Item
    content: Any = None  # a text, or tensors
    pixels: Tensor | None = None  # of an image: [1 channel height width] on the CPU
    shape: Shape = ()  # items of different shapes cannot share a batch, except texts
    length: int = 0  # tokens of a text
    is_long: bool = False  # a text that is explained in windows, in a batch of its own
    image: KeptImage | None = None
    error: Exception | None = None


class ItemLoader:
    """Loads items for one model, a shard ahead of the computation."""

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        truncate: bool,
        keeps_images: bool,
        needs_label: bool,
        windows: bool | int = False,
    ) -> None:
        # A fast tokenizer changes its state when it is called, so the threads have one of their own.
        self.model = replace(model, tokenizer=copy.deepcopy(model.tokenizer))
        self.truncate, self.keeps_images, self.needs_label = truncate, keeps_images, needs_label
        self.windows = windows
        self.pool = ThreadPoolExecutor(threads if model.kind == "image" else 1, thread_name_prefix="whyformer-loader")

    def start(self, items: Sequence[Item]) -> "list[Future[LoadedItem]]":
        """Begin to load items; returns at once."""
        return [self.pool.submit(self.load, item) for item in items]

    def load(self, item: Item) -> LoadedItem:
        try:
            if item.problem is not None:
                raise InputError(item.problem, code="E_DATA")
            if self.needs_label:
                find_label_index(self.model, item)
            content = item.content.load() if isinstance(item.content, LazyContent) else item.content
            if self.model.kind == "image" and not isinstance(content, Tensor | dict):
                return self.load_image(item, as_image(content))
            if self.model.kind == "text" and not isinstance(content, Tensor | dict):
                return self.load_text(item, content)
            return LoadedItem(item, content, shape=shape_of(content))
        except Exception as error:
            return LoadedItem(item, error=error)

    def load_image(self, item: Item, image: Image.Image) -> LoadedItem:
        pixels = self.model.process_images([image])
        kept = self.model.keep_image(image) if self.keeps_images else None
        return LoadedItem(item, pixels=pixels, shape=tuple(pixels.shape), image=kept)

    def load_text(self, item: Item, text: Any) -> LoadedItem:
        if self.truncate and isinstance(text, str | TextPair):
            text = cut_to_fit(self.model, text)
        if self.windows is not False:
            ((one, parts),) = self.model.tokenize_windows([text], self.windows)
            if len(parts) > 1:
                return LoadedItem(item, text, length=len(one), is_long=True)
        return LoadedItem(item, text, length=len(self.model.tokenize(text)))

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def shape_of(content: Any) -> Shape:
    """The sizes of all tensors of an example, so that equal shapes can share a batch."""
    tensors = content.values() if isinstance(content, dict) else [content]
    return tuple(size for tensor in tensors if isinstance(tensor, Tensor) for size in tensor.shape)


def make_batches(loaded: Sequence[LoadedItem], size: int) -> Iterator[list[LoadedItem]]:
    """The items that are ready, in batches: one shape each, texts sorted by length, ties by position."""
    ready = [one for one in loaded if one.error is None]

    def key_of(one: LoadedItem) -> tuple[bool, Shape]:
        return one.pixels is None, one.shape

    ready.sort(key=lambda one: (*key_of(one), one.length, one.item.position))
    for _, group in groupby(ready, key=key_of):
        same = list(group)
        longest = [one for one in same if one.is_long]
        same = same[: len(same) - len(longest)]  # texts are sorted by length
        yield from (same[start : start + size] for start in range(0, len(same), size))
        yield from ([one] for one in longest)


def encode_batch(model: Model, batch: Sequence[LoadedItem]) -> EncodedBatch:
    """One batch for the model, on its device."""
    pixels = [one.pixels for one in batch if one.pixels is not None]
    if not pixels:
        return model.encode([one.content for one in batch])
    encoded = model.encode({"pixel_values": torch.cat(pixels)})
    images = tuple(one.image for one in batch if one.image is not None)
    return replace(encoded, images=images) if len(images) == len(batch) else encoded


def find_label_index(model: Model, item: Item) -> int:
    """The true class of an item; TargetError if it has none that the model knows."""
    missing: dict[str, str] = {}
    index = find_class_index(model, Example(item.id, None, item.label), missing)
    if index < 0:
        raise TargetError(f"The target is the label, but {missing['label']}.")
    return index
