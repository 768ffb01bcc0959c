"""Load items: decode images, tokenize texts, and form batches of what is ready.

Which items share a batch follows from the shard, the batch size and the inputs alone: items of one shape together,
texts by length, ties in the order of the input. So the rows are the same on every engine.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from whyformer._bulk.items import Item, mark_content
from whyformer._model import EncodedBatch, KeptImage, Model, TextPair, as_image, read_arrays
from whyformer.data import Example, LazyContent
from whyformer.errors import InputError, TargetError

BatchShape = tuple[int, ...]
BatchKey = tuple[tuple[str, ...], bool, BatchShape]


@dataclass(frozen=True, eq=False)
class LoadedItem:
    """An item as the model takes it, or the error that it caused."""

    item: Item
    content: Any = None  # a text, or tensors
    pixels: Tensor | None = None  # of an image: [1 channel height width] on the CPU
    shape: BatchShape = ()  # items of different shapes cannot share a batch, except texts
    length: int = 0  # tokens of a text
    is_long: bool = False  # a text that is explained in windows, in a batch of its own
    image: KeptImage | None = None
    error: Exception | None = None


@dataclass
class ItemReader:
    """Loads single items for one model, in any thread."""

    model: Model
    truncate: bool = False
    keeps_images: bool = False
    needs_label: bool = False
    windows: bool | int = False

    def __post_init__(self) -> None:
        # A fast tokenizer changes its state when it is called, so whoever loads has one of their own.
        self.model = replace(self.model, tokenizer=copy.deepcopy(self.model.tokenizer))

    def without_weights(self) -> "ItemReader":
        """The same for images, small enough to be sent to another process."""
        return ItemReader(replace(self.model, module=nn.Module()), needs_label=self.needs_label)

    def load(self, item: Item) -> LoadedItem:
        try:
            if item.problem is not None:
                raise InputError(item.problem, code="E_DATA")
            if self.needs_label:
                find_label_index(self.model, item)
            content = item.content.load() if isinstance(item.content, LazyContent) else item.content
            marked = replace(item, mark=mark_content(content, self.model.kind))
            content = read_arrays(content, are_images=self.model.kind == "image")
            if self.model.kind == "image" and not isinstance(content, Tensor | dict):
                return self.load_image(marked, as_image(content))
            if self.model.kind == "text" and not isinstance(content, Tensor | dict):
                return self.load_text(marked, content)
            return LoadedItem(marked, content, shape=shape_of(content))
        except Exception as error:
            return LoadedItem(item, error=error)

    def load_image(self, item: Item, image: Image.Image) -> LoadedItem:
        pixels = self.model.process_images([image])
        kept = self.model.keep_image(image) if self.keeps_images else None
        return LoadedItem(item, pixels=pixels, shape=tuple(pixels.shape), image=kept)

    def load_text(self, item: Item, text: Any) -> LoadedItem:
        if self.truncate and isinstance(text, str | TextPair):
            from whyformer._runs.preparation import cut_to_fit

            text = cut_to_fit(self.model, text)
        if self.windows is not False:
            ((one, parts),) = self.model.tokenize_windows([text], self.windows)
            if len(parts) > 1:
                return LoadedItem(item, text, length=len(one), is_long=True)
        return LoadedItem(item, text, length=len(self.model.tokenize(text)))


def shape_of(content: Any) -> BatchShape:
    """The sizes of all tensors of an example, so that equal shapes can share a batch."""
    tensors = content.values() if isinstance(content, dict) else [content]
    return tuple(size for tensor in tensors if isinstance(tensor, Tensor) for size in tensor.shape)


def key_of_batch(one: LoadedItem) -> BatchKey:
    """Items with the same key can share a batch."""
    return one.item.methods, one.pixels is None, one.shape


def group_into_batches(loaded: Iterable[LoadedItem], size: int) -> Iterator[list[LoadedItem]]:
    """The items that are ready, in batches: one shape each, texts sorted by length, ties by position."""
    ready = [one for one in loaded if one.error is None]
    ready.sort(key=lambda one: (*key_of_batch(one), one.length, one.item.position))
    for _, group in groupby(ready, key=key_of_batch):
        same = list(group)
        longest = [one for one in same if one.is_long]
        same = same[: len(same) - len(longest)]  # texts are sorted by length
        yield from (same[start : start + size] for start in range(0, len(same), size))
        yield from ([one] for one in longest)


def form_batches(loaded: Iterable[LoadedItem], size: int) -> Iterator[list[LoadedItem]]:
    """The same batches, each as soon as it is full: `loaded` yields items in the order of the input as they arrive.

    Only texts have to wait for the last one, since a batch holds texts of similar length.
    """
    waiting: dict[BatchKey, list[LoadedItem]] = {}
    for one in loaded:
        if one.error is not None:
            continue
        group = waiting.setdefault(key_of_batch(one), [])
        group.append(one)
        if len(group) == size and not any(other.length for other in group):
            yield waiting.pop(key_of_batch(one))
    yield from group_into_batches((one for group in waiting.values() for one in group), size)


def encode_batch(model: Model, batch: Sequence[LoadedItem]) -> EncodedBatch:
    """One batch for the model, on its device, where its values are checked once."""
    pixels = [one.pixels for one in batch if one.pixels is not None]
    if pixels:
        encoded = model.encode({"pixel_values": join_on_device(pixels, model.device)})
        images = tuple(one.image for one in batch if one.image is not None)
        return replace(encoded, images=images) if len(images) == len(batch) else encoded
    contents = [one.content for one in batch]
    if model.kind != "text" and can_be_stacked(contents):
        return model.encode(join_on_device([content[None] for content in contents], model.device))
    return model.encode(contents)


def can_be_stacked(contents: Sequence[Any]) -> bool:
    """Whether these are pixel values of one shape, [channel height width], which need no padding."""
    first = contents[0]
    return (
        all(isinstance(one, Tensor) and one.layout is torch.strided and not one.is_quantized for one in contents)
        and first.dim() == 3
        and first.size(0) > 1
        and first.is_floating_point()
        and first.device.type != "meta"
        and all((one.shape, one.dtype, one.device) == (first.shape, first.dtype, first.device) for one in contents)
    )


def join_on_device(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors of one shape joined along the first axis; to a GPU by way of pinned memory, which it reads itself."""
    if device.type != "cuda" or parts[0].device.type != "cpu" or any(one.dtype != parts[0].dtype for one in parts):
        return torch.cat(list(parts))
    try:
        shape = (sum(one.size(0) for one in parts), *parts[0].shape[1:])
        staging = torch.empty(shape, dtype=parts[0].dtype, pin_memory=True)
    except RuntimeError:  # no memory can be pinned here
        return torch.cat(list(parts))
    with torch.no_grad():
        torch.cat(list(parts), out=staging)
    return staging.to(device, non_blocking=True)


def find_label_index(model: Model, item: Item) -> int:
    """The true class of an item; TargetError if it has none that the model knows."""
    from whyformer._runs.preparation import find_class_index  # here, because a loader process must start fast

    missing: dict[str, str] = {}
    index = find_class_index(model, Example(item.id, None, item.label), missing)
    if index < 0:
        raise TargetError(f"The target is the label, but {missing['label']}.")
    return index
