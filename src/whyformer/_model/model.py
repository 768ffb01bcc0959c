"""Model: a module, how raw input becomes tensors, and where the answer is read. open() in loading.py makes one."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whyformer._model import text
from whyformer._model.encoded import EncodedBatch as EncodedBatch
from whyformer._model.image import ImageView, KeptImage, as_image, find_view
from whyformer._model.input_spec import EXPLAINED_INPUTS, INPUT_AXES, InputSpec, read_input_spec
from whyformer.errors import InputError, TargetError

InputKind = Literal["image", "text", "tensors"]


@dataclass(frozen=True, eq=False)
class Model:
    """An opened model. Nothing of `module` is ever changed."""

    module: nn.Module
    name: str
    kind: InputKind = "tensors"
    labels: tuple[str, ...] | None = None
    tokenizer: Any = field(default=None, repr=False)
    processor: Any = field(default=None, repr=False)
    # Where the answer is read, if it cannot be seen: "first", "last", "mean", an index.
    readout: str | int | None = None
    batch_axis: int = 0
    notes: tuple[str, ...] = ()

    def readout_weights(self, mask: Tensor) -> Tensor:
        """[batch token] from the name or index of a readout."""
        places = torch.arange(mask.size(1), device=mask.device).expand(mask.shape)
        if self.readout == "mean":
            return mask.double()
        if self.readout == "first":
            return (places == torch.where(mask, places, mask.size(1)).amin(-1, keepdim=True)).double()
        if self.readout == "last":
            return (places == torch.where(mask, places, -1).amax(-1, keepdim=True)).double()
        if isinstance(self.readout, int) and -mask.size(1) <= self.readout < mask.size(1):
            return (places == self.readout % mask.size(1)).double()
        raise TargetError(
            f'There is no readout {self.readout!r}. Give "first", "last", "mean" or an index below {mask.size(1)}.'
        )

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    @property
    def max_length(self) -> int | None:
        """The number of tokens the module takes, if it says so."""
        return self._input_spec.max_length

    @property
    def takes_attention_mask(self) -> bool:
        """Whether the forward has such an argument."""
        return "attention_mask" in self._input_spec.names

    @property
    def counts_positions(self) -> bool:
        """Whether it takes the positions of tokens from where it finds padding."""
        return self._input_spec.counts_positions

    @cached_property
    def _input_spec(self) -> InputSpec:
        return read_input_spec(self.module)

    def encode(self, inputs: Any) -> EncodedBatch:
        """A path, picture, text, tensor, dictionary of model inputs, or a list of these, as a batch.

        In a list a text may also be a pair of texts that the model reads together: [("a question", "an answer")].
        """
        if isinstance(inputs, EncodedBatch):
            return inputs
        if isinstance(inputs, Mapping):
            return self._from_tensors(self._add_batch_axis(dict(inputs)))
        if isinstance(inputs, Tensor):
            return self._from_tensors(self._add_batch_axis({self._input_spec.explained(inputs): inputs}))
        items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not items:
            raise InputError("There is nothing to explain: the list of inputs is empty.")
        if all(isinstance(item, Tensor | Mapping) for item in items):
            return self._from_list(items)
        if any(isinstance(item, Tensor | Mapping) for item in items):
            raise InputError("A batch is made of tensors, or of pictures or texts; this one mixes them.")
        if self.kind == "image":
            return self._from_images(items)
        if self.kind == "text":
            return self._from_texts(items)
        raise InputError(
            f"{self.name} was opened without a processor or tokenizer, so it takes tensors, "
            f"not {type(items[0]).__name__}: "
            'give a tensor or a dictionary such as {"input_ids": ...}.'
        )

    # --- pictures and texts -------------------------------------------------------------------------------------------

    def _from_images(self, items: Sequence[Any]) -> EncodedBatch:
        pictures = [as_image(item) for item in items]
        pixels = self._process_images(pictures).to(self.device, self.dtype)
        self._input_spec.check({"pixel_values": pixels})
        names = tuple(Path(i).name if isinstance(i, str | os.PathLike) else f"picture {n}" for n, i in enumerate(items))
        kept = tuple(KeptImage(picture, partial(self._find_view, picture.size)) for picture in pictures)
        return EncodedBatch(
            {"pixel_values": pixels}, "pixel_values", len(pictures), names, notes=self.notes, images=kept
        )

    def _process_images(self, pictures: list[Any]) -> Any:
        return self.processor(images=pictures, return_tensors="pt")["pixel_values"]

    def _find_view(self, size: tuple[int, int]) -> ImageView | None:
        """Where the processor looks in pictures of this size."""
        if size not in self._views:
            self._views[size] = find_view(lambda picture: self._process_images([picture]), *size)
        return self._views[size]

    @cached_property
    def _views(self) -> dict[tuple[int, int], ImageView | None]:
        return {}

    def _from_texts(self, items: Sequence[Any]) -> EncodedBatch:
        names = ["the text"] if len(items) == 1 else [f"text {n}" for n in range(len(items))]
        cuts = [text.tokenize_text(self.tokenizer, item, name) for item, name in zip(items, names, strict=True)]
        for one, name in zip(cuts, names, strict=True):
            self._input_spec.check_length(len(one), name)
            self._input_spec.check_ids(torch.tensor(one.ids), of_tokenizer=True)
        self._input_spec.check_batch(len(cuts))
        notes = self.notes + self._note_unknown(cuts, names)
        cuts = text.pad_texts(cuts, fill=self.padding, piece=self.tokenizer.pad_token or "", side=self._padding_side)
        real = ~torch.tensor([one.padding for one in cuts])
        batch = {name: torch.tensor([one.inputs[name] for one in cuts], device=self.device) for name in cuts[0].inputs}
        main = self._input_spec.explained(batch["input_ids"])  # modules of one's own call it as they like
        inputs = {main: batch.pop("input_ids")} | {
            name: batch[name] for name in batch if name in self._input_spec.names
        }
        if not bool(real.all()) and "attention_mask" not in inputs:
            raise InputError(
                f"The texts have different lengths and {self._input_spec.name} takes no attention_mask. "
                "Give them one by one."
            )
        return EncodedBatch(
            inputs | self._make_positions(real),
            main,
            len(items),
            names=tuple(one.text for one in cuts),
            token_mask=real,
            special_mask=torch.tensor([one.special for one in cuts]),
            texts=tuple(one.text for one in cuts),
            words=tuple(one.pieces for one in cuts),
            spans=tuple(one.spans for one in cuts),
            notes=notes,
        )

    @property
    def _padding_side(self) -> str:
        """Where padding goes: where the tokenizer wants it, unless positions would move and cannot be given."""
        can_move = self._input_spec.is_hugging_face or "position_ids" in self._input_spec.names
        return self.tokenizer.padding_side if can_move else "right"

    def _make_positions(self, real: Tensor) -> dict[str, Tensor]:
        """With padding on the left, positions count from the first real token."""
        if bool(real[:, 0].all()) or "position_ids" not in self._input_spec.names or self._input_spec.counts_positions:
            return {}
        return {"position_ids": (real.long().cumsum(-1) - 1).clamp(min=0).to(self.device)}

    def _note_unknown(self, cuts: Sequence[text.TokenizedText], names: Sequence[str]) -> tuple[str, ...]:
        """A note on every text with pieces the model has no word for."""
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is None or unknown in (self.tokenizer.eos_token_id, self.tokenizer.bos_token_id):
            return ()
        counts = [sum(i == unknown and not s for i, s in zip(one.ids, one.special, strict=True)) for one in cuts]
        return tuple(
            f"{count} of {len(one) - sum(one.special)} tokens of {name} are unknown to this model."
            for count, one, name in zip(counts, cuts, names, strict=True)
            if count
        )

    @property
    def padding(self) -> int:
        """The id padding gets: the model's own, since some models look for it; else the tokenizer's."""
        known = [getattr(self.tokenizer, f"{name}_token_id", None) for name in ("pad", "eos")]
        wanted = next((i for i in (self._input_spec.padding, *known) if i is not None), 0)
        rows = self._input_spec.vocabulary
        return wanted if rows is None or wanted < rows else 0

    # --- tensors ----------------------------------------------------------------------------------------------------

    def _add_batch_axis(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A single example, without an axis for the batch, as a batch of one."""
        main = _find_main_input(inputs)
        tensor = inputs.get(main)
        if not isinstance(tensor, Tensor) or tensor.dim() != _count_example_axes(main, tensor):
            return inputs
        return {name: value[None] if isinstance(value, Tensor) else value for name, value in inputs.items()}

    def _from_list(self, items: Sequence[Any]) -> EncodedBatch:
        """A list of examples, each one tensor or dictionary; sequences are padded on the right."""
        rows = [dict(item) if isinstance(item, Mapping) else {self._input_spec.explained(item): item} for item in items]
        if len({tuple(sorted(row)) for row in rows}) > 1:
            raise InputError(
                f"The examples of a batch must have the same inputs; these have {[sorted(row) for row in rows]}."
            )
        for row in rows:
            self._input_spec.check(self._add_batch_axis(row))
        rows = [{name: _drop_batch_axis(name, value) for name, value in row.items()} for row in rows]
        joined = {
            name: _pad_rows([row[name] for row in rows], self.padding * (name == "input_ids")) for name in rows[0]
        }
        is_ragged = any(len({tuple(row[name].shape) for row in rows}) > 1 for name in rows[0])
        if is_ragged and "attention_mask" not in joined:
            if "attention_mask" not in self._input_spec.names:
                raise InputError(
                    "The examples have different lengths and the model takes no attention_mask. Pad them yourself."
                )
            lengths = [row[_find_main_input(row)].size(0) for row in rows]
            joined["attention_mask"] = _pad_rows([torch.ones(n, dtype=torch.long) for n in lengths], 0)
        return self._from_tensors(joined)

    def _from_tensors(self, inputs: dict[str, Any]) -> EncodedBatch:
        self._input_spec.check(inputs)
        main = _find_main_input(inputs)
        inputs = {name: _move_tensor(tensor, self.device, self.dtype) for name, tensor in inputs.items()}
        tensor = inputs[main]
        axis = self.batch_axis if tensor.dim() == 3 and tensor.is_floating_point() else 0
        mask = _find_token_mask(inputs, tensor, axis)
        words = special = None
        if tensor.dim() == 2 and not tensor.is_floating_point():
            words, special = self._name_ids(tensor.cpu())
            special = special if mask is None else special & mask
        names = tuple(f"example {n}" for n in range(tensor.size(axis)))
        self._input_spec.check_batch(len(names))
        return EncodedBatch(
            inputs, main, len(names), names, axis, token_mask=mask, special_mask=special, words=words, notes=self.notes
        )

    def _name_ids(self, ids: Tensor) -> tuple[tuple[tuple[str, ...], ...], Tensor]:
        """What to call each token, and which are special."""
        special = self._input_spec.special
        if self.tokenizer is not None:
            special = frozenset(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        words = tuple(tuple(self._name_row(row)) for row in ids.tolist())
        return words, torch.isin(ids, torch.tensor(sorted(special)).to(ids))

    def _name_row(self, ids: list[int]) -> list[str]:
        """The tokenizer's pieces, numbers where it has none."""
        pieces = self.tokenizer.convert_ids_to_tokens(ids) if self.tokenizer is not None else [None] * len(ids)
        return [str(i) if piece is None else piece for i, piece in zip(ids, pieces, strict=True)]


def _find_main_input(inputs: Mapping[str, Any]) -> str:
    """The input that is explained: by its name, else the first one with channels, else the first."""
    for name in EXPLAINED_INPUTS:
        if name in inputs:
            return name
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    floating = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dim() >= 3]
    return (floating or list(inputs) or [""])[0]


def _count_example_axes(name: str, tensor: Tensor) -> int | None:
    """How many axes one example has; None where that cannot be known."""
    if name in INPUT_AXES:
        return len(INPUT_AXES[name].split()) - 1
    return None if tensor.is_floating_point() else 1


def _drop_batch_axis(name: str, tensor: Tensor) -> Tensor:
    """One example of a list, without an axis for the batch."""
    rank = _count_example_axes(name, tensor)
    has_batch = tensor.dim() == rank + 1 if rank is not None else tensor.dim() >= 2 and tensor.size(0) == 1
    if has_batch and tensor.size(0) != 1:
        raise InputError(
            f"{name} of one example in the list has the shape {list(tensor.shape)}: a batch inside a batch. "
            "Give each example by itself, or one tensor for all."
        )
    return tensor[0] if has_batch else tensor


def _pad_rows(rows: list[Tensor], fill: float) -> Tensor:
    if all(row.shape == rows[0].shape for row in rows):
        return torch.stack(rows)
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        raise InputError(f"These examples do not fit into one batch: shapes {[list(row.shape) for row in rows]}.")
    longest = max(row.size(0) for row in rows)
    return torch.stack([torch.cat([row, row.new_full((longest - row.size(0), *row.shape[1:]), fill)]) for row in rows])


def _move_tensor(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _find_token_mask(inputs: Mapping[str, Tensor], main: Tensor, axis: int) -> Tensor | None:
    """Which tokens are real, under the names models use for it."""
    if main.dim() == 4:
        return None
    for name, tensor in inputs.items():
        if tensor.dim() != 2 or tensor is main:
            continue
        if name == "attention_mask":
            return tensor.bool().cpu()
        if name.endswith("padding_mask"):  # torch's own modules: True is padding
            return ~tensor.bool().cpu()
    shape = (main.size(axis), main.size(1 - axis)) if main.dim() >= 2 else (main.size(0), 1)
    return torch.ones(shape, dtype=torch.bool)
