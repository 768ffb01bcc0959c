"""Model: a module, how raw input becomes tensors, and where the answer is read. open() makes one of a folder, a name or a module."""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whyformer.errors import InputError, TargetError
from whyformer.picture import as_picture
from whyformer.shadow import unwrap
from whyformer.tokens import Pieces

Kind = Literal["image", "text", "tensors"]


@dataclass(frozen=True)
class Encoded:
    """A batch as the module takes it."""

    inputs: dict[str, Tensor]
    main: str  # the name of the input that is explained
    batch: int
    names: tuple[str, ...]  # what to call each example
    batch_axis: int = 0
    token_mask: Tensor | None = None  # [batch token] of the given sequence: True where it is no padding
    special_mask: Tensor | None = None
    texts: tuple[str | None, ...] = ()
    words: tuple[tuple[str, ...], ...] | None = None  # the pieces of each example
    spans: tuple[tuple[tuple[int, int] | None, ...], ...] | None = None
    notes: tuple[str, ...] = ()

    def pieces(self, length: int) -> tuple[Pieces, ...]:
        """The tokens of each example, when they are not patches."""
        made = []
        for i in range(self.batch):
            words = self.words[i] if self.words is not None else tuple(str(n) for n in range(length))
            none = (None,) * length
            mask, special = (
                self._row(m, i, length, fill) for m, fill in ((self.token_mask, True), (self.special_mask, False))
            )
            spans = self.spans[i] if self.spans is not None else none
            text = self.texts[i] if self.texts else None
            made.append(Pieces(words, special, tuple(not real for real in mask), spans, text))
        return tuple(made)

    def _row(self, mask: Tensor | None, i: int, length: int, fill: bool) -> tuple[bool, ...]:
        return tuple(mask[i].tolist()) if mask is not None and mask.size(1) == length else (fill,) * length

    def fingerprints(self) -> tuple[int, ...]:
        """One integer per example that depends on that example alone: not on its batch, not on its padding."""
        from whyformer.fingerprint import fingerprint

        main = self.inputs[self.main].transpose(0, self.batch_axis)
        is_sequence = self.token_mask is not None and main.dim() >= 2 and main.size(1) == self.token_mask.size(1)
        return tuple(
            fingerprint(main[i][self.token_mask[i].to(main.device)] if is_sequence else main[i])  # type: ignore[index]
            for i in range(self.batch)
        )


@dataclass(frozen=True, eq=False)
class Model:
    """An opened model. Nothing of `module` is ever changed."""

    module: nn.Module
    name: str
    kind: Kind = "tensors"
    labels: tuple[str, ...] | None = None
    tokenizer: Any = field(default=None, repr=False)
    processor: Any = field(default=None, repr=False)
    readout: str | int | None = (
        None  # where the answer is read, if it cannot be seen: "first", "last", "mean", an index
    )
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

    # --- raw input -> tensors ---------------------------------------------------------------------------------------

    def encode(self, inputs: Any) -> Encoded:
        """A path, picture, text, tensor, dictionary of model inputs, or a list of these, as a batch."""
        if isinstance(inputs, Encoded):
            return inputs
        if isinstance(inputs, Mapping):
            return self._from_tensors(dict(inputs))
        if isinstance(inputs, Tensor):
            return self._from_tensors({self._main_name(inputs): self._with_batch(inputs)})
        items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not items:
            raise InputError("There is nothing to explain: the list of inputs is empty.")
        if all(isinstance(item, Tensor | Mapping) for item in items):
            return self._from_list(items)
        if any(isinstance(item, Tensor | Mapping) for item in items):
            raise InputError("A batch is made of tensors, or of pictures or texts; this one mixes them.")
        if self.kind == "image":
            return self._from_pictures(items)
        if self.kind == "text":
            return self._from_texts(items)
        raise InputError(
            f"{self.name} was opened without a processor or tokenizer, so it takes tensors, not {type(items[0]).__name__}: "
            'give a tensor or a dictionary such as {"input_ids": ...}.'
        )

    def _from_pictures(self, items: Sequence[Any]) -> Encoded:
        pictures = [as_picture(item) for item in items]
        pixels = self.processor(images=pictures, return_tensors="pt")["pixel_values"].to(self.device, self.dtype)
        names = tuple(Path(i).name if isinstance(i, str | os.PathLike) else f"picture {n}" for n, i in enumerate(items))
        return Encoded({"pixel_values": pixels}, "pixel_values", len(pictures), names, notes=self.notes)

    def _from_texts(self, items: Sequence[Any]) -> Encoded:
        for n, item in enumerate(items):
            _check_text(item, n)
        batch = self.tokenizer(
            list(items), padding=True, return_tensors="pt", return_special_tokens_mask=True,
            return_offsets_mapping=self.tokenizer.is_fast,
        )  # fmt: skip
        special = batch.pop("special_tokens_mask").bool()
        offsets = batch.pop("offset_mapping", None)
        ids, mask = batch["input_ids"], batch["attention_mask"].bool()
        self._check_length(ids, mask)
        if bool((mask & ~special).sum(-1).eq(0).any()):
            raise InputError("There is no token in the text: it is empty for this model's tokenizer.")
        inputs = {name: tensor.to(self.device) for name, tensor in batch.items() if name in self._accepted}
        inputs |= self._positions(inputs, mask)
        words = tuple(tuple(self.tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids)
        spans = _spans(offsets, special, mask)
        return Encoded(
            inputs, "input_ids", len(items), tuple(items), token_mask=mask, special_mask=special & mask, texts=tuple(items),
            words=words, spans=spans, notes=self.notes,
        )  # fmt: skip

    def _positions(self, inputs: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
        """With padding on the left, positions count from the first real token."""
        if bool(mask[:, 0].all()) or "position_ids" not in self._accepted or _makes_own_positions(self.module):
            return {}
        return {"position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0).to(self.device)}

    def _check_length(self, ids: Tensor, mask: Tensor) -> None:
        limit = self.longest
        if limit is not None and ids.size(1) > limit:
            raise InputError(
                f"The text is {int(mask.sum(-1).max())} tokens long; {self.name} takes {limit}. Shorten it or split it."
            )

    @property
    def longest(self) -> int | None:
        config = getattr(unwrap(self.module), "config", None)
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        if limit is not None and getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            limit -= 2  # two positions are taken by the padding index
        return limit

    @property
    def _accepted(self) -> tuple[str, ...]:
        return tuple(inspect.signature(unwrap(self.module).forward).parameters)

    # --- tensors ----------------------------------------------------------------------------------------------------

    def _main_name(self, tensor: Tensor) -> str:
        accepted = self._accepted
        wanted = "pixel_values" if tensor.is_floating_point() and tensor.dim() >= 3 else "input_ids"
        if tensor.is_floating_point() and wanted not in accepted:
            wanted = "inputs_embeds"
        return wanted if wanted in accepted else accepted[0]

    def _with_batch(self, tensor: Tensor) -> Tensor:
        expected = 4 if self._main_name(tensor) == "pixel_values" else None
        if not tensor.is_floating_point():
            expected = 2
        return tensor[None] if expected is not None and tensor.dim() == expected - 1 else tensor

    def _from_list(self, items: Sequence[Any]) -> Encoded:
        """A list of examples, each one tensor or dictionary; sequences are padded on the right."""
        rows = [dict(item) if isinstance(item, Mapping) else {self._main_name(item): item} for item in items]
        if len({tuple(sorted(row)) for row in rows}) > 1:
            raise InputError(
                f"The examples of a batch must have the same inputs; these have {[sorted(row) for row in rows]}."
            )
        rows = [{k: _one(v) for k, v in row.items()} for row in rows]
        joined = {name: _padded([row[name] for row in rows], self._fill(name)) for name in rows[0]}
        is_ragged = any(len({tuple(row[name].shape) for row in rows}) > 1 for name in rows[0])
        if is_ragged and "attention_mask" in self._accepted and "attention_mask" not in joined:
            lengths = [row[next(iter(rows[0]))].size(0) for row in rows]
            joined["attention_mask"] = _padded([torch.ones(n, dtype=torch.long) for n in lengths], 0)
        elif is_ragged and "attention_mask" not in joined:
            raise InputError(
                "The examples have different lengths and the model takes no attention_mask. Pad them yourself."
            )
        return self._from_tensors(joined)

    def _fill(self, name: str) -> int:
        config = getattr(unwrap(self.module), "config", None)
        return (getattr(config, "pad_token_id", None) or 0) if name == "input_ids" else 0

    def _from_tensors(self, inputs: dict[str, Any]) -> Encoded:
        self._check_tensors(inputs)
        main = self._explained(inputs)
        inputs = {name: _placed(tensor, self.device, self.dtype) for name, tensor in inputs.items()}
        tensor = inputs[main]
        axis = self.batch_axis if tensor.dim() == 3 and tensor.is_floating_point() else 0
        batch = tensor.size(axis)
        mask = _token_mask(inputs, tensor, axis)
        words = special = None
        if tensor.dim() == 2 and not tensor.is_floating_point():
            words, special = self._name_ids(tensor)
        names = tuple(f"example {n}" for n in range(batch))
        if special is not None and mask is not None:
            special = special & mask
        return Encoded(
            inputs, main, batch, names, axis, None if mask is None else mask.cpu(), None if special is None else special.cpu(),
            words=words, notes=self.notes,
        )  # fmt: skip

    def _check_tensors(self, inputs: Mapping[str, Any]) -> None:
        accepted = self._accepted
        takes_any = any(
            p.kind is p.VAR_KEYWORD for p in inspect.signature(unwrap(self.module).forward).parameters.values()
        )
        for name, value in inputs.items():
            if name not in accepted and not takes_any:
                raise InputError(
                    f"{type(unwrap(self.module)).__name__} takes no input {name!r}. It takes: {', '.join(accepted)}."
                )
            if not isinstance(value, Tensor):
                raise InputError(f"Input {name!r} is a {type(value).__name__}, not a tensor.")
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise InputError(f"Input {name!r} holds NaN or infinity.")
            if value.numel() == 0:
                raise InputError(f"Input {name!r} is empty: shape {list(value.shape)}.")

    def _explained(self, inputs: Mapping[str, Tensor]) -> str:
        for name in ("pixel_values", "inputs_embeds", "input_ids"):
            if name in inputs:
                return name
        floating = [name for name, tensor in inputs.items() if tensor.is_floating_point() and tensor.dim() >= 3]
        return (floating or list(inputs))[0]

    def _name_ids(self, ids: Tensor) -> tuple[tuple[tuple[str, ...], ...], Tensor]:
        if self.tokenizer is not None:
            words = tuple(tuple(self.tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids)
            known = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        else:
            words = tuple(tuple(str(i) for i in row.tolist()) for row in ids)
            config = getattr(unwrap(self.module), "config", None)
            known = {getattr(config, f"{n}_token_id", None) for n in ("cls", "sep", "bos", "eos")} - {None}
        special = torch.zeros_like(ids, dtype=torch.bool)
        for number in known:
            special |= ids == number
        return words, special


# --- small questions -------------------------------------------------------------------------------------------------


def _check_text(text: Any, n: int) -> None:
    if not isinstance(text, str):
        raise InputError(f"Input {n} is a {type(text).__name__}, not a text.")
    if not text.strip():
        raise InputError("The text is empty.")
    if len(text) > 200_000:
        raise InputError(f"The text has {len(text):,} characters; at most 200,000 are read.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"The text is not valid Unicode at character {error.start}.") from None


def _makes_own_positions(module: nn.Module) -> bool:
    """RoBERTa and its kin count positions from the padding by themselves."""
    return any(hasattr(m, "create_position_ids_from_input_ids") for m in unwrap(module).modules())


def _spans(
    offsets: Tensor | None, special: Tensor, mask: Tensor
) -> tuple[tuple[tuple[int, int] | None, ...], ...] | None:
    if offsets is None:
        return None
    rows = []
    for ends, hidden, real in zip(offsets.tolist(), special.tolist(), mask.tolist(), strict=True):
        rows.append(
            tuple(None if h or not r or a == b else (a, b) for (a, b), h, r in zip(ends, hidden, real, strict=True))
        )
    return tuple(rows)


def _one(tensor: Tensor) -> Tensor:
    """An example without a batch axis of size one."""
    return tensor[0] if tensor.dim() >= 2 and tensor.size(0) == 1 else tensor


def _padded(rows: list[Tensor], fill: float) -> Tensor:
    longest = max(row.size(0) for row in rows) if rows[0].dim() else 0
    if rows[0].dim() == 0 or all(row.shape == rows[0].shape for row in rows):
        return torch.stack(rows)
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        raise InputError(f"These examples do not fit into one batch: shapes {[list(row.shape) for row in rows]}.")
    return torch.stack([torch.cat([row, row.new_full((longest - row.size(0), *row.shape[1:]), fill)]) for row in rows])


def _placed(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _token_mask(inputs: Mapping[str, Tensor], main: Tensor, axis: int) -> Tensor | None:
    """Which tokens are real, under the names models use for it."""
    if main.dim() == 4:
        return None
    for name, tensor in inputs.items():
        if tensor.dim() != 2 or tensor is main:
            continue
        if name == "attention_mask":
            return tensor.bool()
        if name.endswith("padding_mask"):  # torch's own modules: True is padding
            return ~tensor.bool()
    shape = (main.size(axis), main.size(1 - axis)) if main.dim() >= 2 else (main.size(0), 1)
    return torch.ones(shape, dtype=torch.bool, device=main.device)
