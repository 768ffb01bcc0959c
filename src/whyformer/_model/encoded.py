"""EncodedBatch: the input tensors of a batch, and the names of its tokens."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._model.kept_image import KeptImage
from whyformer._model.pictures import Pictures
from whyformer._model.token_masks import find_mask_name
from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer._plain.tokens import PAIR, STREAMS, NamedTokens, Pieces, Stream

OptionalSpan = tuple[int, int] | None


@dataclass(frozen=True)
class EncodedBatch:
    """A batch as input for the module."""

    inputs: dict[str, Tensor]
    main: str  # the name of the input tensor that is explained
    batch: int
    names: tuple[str, ...]  # a name for each example
    batch_axis: int = 0
    token_mask: Tensor | None = None  # [batch token] of the input sequence: False for padding
    special_mask: Tensor | None = None
    texts: tuple[str | None, ...] = ()
    words: tuple[tuple[str, ...], ...] | None = None  # the pieces of each example
    spans: tuple[tuple[OptionalSpan, ...], ...] | None = None
    seconds: tuple[int | None, ...] = ()  # where the second text of each pair begins in its text; None: a single text
    answers: tuple[tuple[int, int] | None, ...] = ()  # the tokens of each answer, (start, stop), padding not counted
    regions: tuple[tuple[NamedTokens, ...], ...] = ()  # the parts of each prompt, padding not counted
    notes: tuple[str, ...] = ()
    images: tuple[KeptImage, ...] = ()  # the original of each example, to draw on
    origin: Tensor | None = None  # [batch token]: the place of each token before others were deleted; None: the same
    uncast: Tensor | None = None  # the explained input before it was rounded to the dtype of the model
    streams: tuple[Stream, ...] = ()  # if the model reads several sequences, their places in the joined one
    inverts_mask: bool = False  # the model hides the tokens at which its mask is 1
    pictures: Pictures | None = None  # images between the words of the text, in one example

    @property
    def mask_name(self) -> str | None:
        """The input that says which tokens are real."""
        return find_mask_name(self.inputs, self.inputs[self.main])

    def is_picture(self, name: str) -> bool:
        """Whether an input belongs to the images and has no entry for each token."""
        return self.pictures is not None and self.inputs[name].shape[:2] != self.inputs[self.main].shape[:2]

    def pieces(self, length: int) -> tuple[Pieces, ...]:
        """The tokens of each example if they are not patches; numbered if `length` is not that of the input."""
        examples = []
        for i in range(self.batch):
            words = self.words[i] if self.words is not None and len(self.words[i]) == length else None
            spans = self.spans[i] if self.spans is not None and words is not None else (None,) * length
            real = _read_mask_row(self.token_mask, i, length, fill=True)
            special = _read_mask_row(self.special_mask, i, length, fill=False)
            text = self.texts[i] if self.texts and words is not None else None
            names = words or tuple(str(n) for n in range(length))
            second = self.seconds[i] if self.seconds and text is not None else None
            is_own = words is not None or self.words is None
            regions = shift_regions(self.regions[i], real.index(True)) if self.regions and is_own else ()
            called = STREAMS if self.streams else PAIR
            examples.append(Pieces(names, special, tuple(not r for r in real), spans, text, second, regions, called))
        return tuple(examples)

    def fingerprints(self) -> tuple[int, ...]:
        """A hash of each example, independent of the rest of the batch, of padding, and of the dtype of the model."""
        main = self._read_exact_values()
        mask = self.token_mask
        if mask is None or main.dim() < 2 or main.size(1) != mask.size(1):
            return tuple(fingerprint_tensor(example) for example in main)
        return tuple(
            fingerprint_tensor(example[real]) for example, real in zip(main, mask.to(main.device), strict=True)
        )

    def _read_exact_values(self) -> Tensor:
        """The explained input, batch first; in float32 if it has fractions, before rounding unless it was replaced."""
        main = self.inputs[self.main].transpose(0, self.batch_axis)
        if not main.is_floating_point():
            return main
        if self.uncast is None or self.uncast.shape != self.inputs[self.main].shape:
            return main.float()
        uncast = self.uncast.transpose(0, self.batch_axis).to(main.device)
        is_own = (uncast.to(main.dtype) == main).flatten(1).all(1)
        return torch.where(is_own.view(-1, *[1] * (main.dim() - 1)), uncast.float(), main.float())


def shift_regions(regions: tuple[NamedTokens, ...], by: int) -> tuple[NamedTokens, ...]:
    """The regions of a prompt with this many tokens before it."""
    return tuple(replace(region, start=region.start + by, stop=region.stop + by) for region in regions)


def _read_mask_row(mask: Tensor | None, i: int, length: int, *, fill: bool) -> tuple[bool, ...]:
    return tuple(mask[i].tolist()) if mask is not None and mask.size(1) == length else (fill,) * length
