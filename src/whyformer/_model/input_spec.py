"""Intake: what the forward of a module takes, as far as the module says so.

Everything here is asked before the module runs: a text that is too long or a token the model does not have is refused
by name, and not by an index error from the middle of the model.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from whyformer._model.unwrap import unwrap
from whyformer.errors import InputError, suggest_nearest

EXPLAINED_INPUTS = ("pixel_values", "inputs_embeds", "input_ids")  # the names Hugging Face models use
INPUT_AXES = {
    "pixel_values": "batch channel height width",
    "inputs_embeds": "batch token channel",
    "input_ids": "batch token",
}


@dataclass(frozen=True)
class InputSpec:
    """What a module takes."""

    name: str  # of its class
    names: tuple[str, ...]
    takes_any: bool  # **kwargs, and nobody knows which
    main: str | None  # the input a Hugging Face model is made for
    max_length: int | None  # tokens
    vocabulary: int | None  # rows of the embedding
    padding: int | None  # the id that the model itself takes for padding
    special: frozenset[int]  # ids of special tokens
    channels: int | None
    size: tuple[int, int] | None  # of a picture, where the model takes no other
    counts_positions: bool  # from the padding in the ids, by itself (RoBERTa and its kin)
    is_hugging_face: bool

    def explained(self, tensor: Tensor) -> str:
        """Under which name a bare tensor goes in."""
        if not self.names:
            raise InputError(f"The forward of {self.name} names no input. Give a dictionary of its inputs.")
        if tensor.is_floating_point() and tensor.dim() >= 3 and "pixel_values" in self.names:
            return "pixel_values"
        if tensor.is_floating_point() and "inputs_embeds" in self.names:
            return "inputs_embeds"
        if self.main in self.names:
            return str(self.main)
        return "input_ids" if "input_ids" in self.names else self.names[0]

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Refuse what the module could not run on."""
        for name, value in inputs.items():
            self._check_name(name)
            _check_numbers(name, value)
        if self.main is not None and not any(name in inputs for name in (*EXPLAINED_INPUTS, self.main)):
            raise InputError(f"{self.name} needs {self.main!r}; there is only {', '.join(inputs) or 'nothing'}.")
        for name in EXPLAINED_INPUTS:
            if name in inputs:
                self._check_shape(name, inputs[name])
        if "input_ids" in inputs:
            self.check_ids(inputs["input_ids"])
        if "pixel_values" in inputs:
            self._check_pixels(inputs["pixel_values"])
        _check_masks(inputs)

    def check_ids(self, ids: Tensor, *, of_tokenizer: bool = False) -> None:
        """Every token must have a row in the embedding, every place a position."""
        self.check_length(ids.size(-1), "the sequence")
        if self.vocabulary is None or 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            return
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        whose = (
            "Its tokenizer seems to be of another model." if of_tokenizer else "They are of another model's tokenizer."
        )
        raise InputError(
            f"There is no token {wrong} in {self.name}: its tokens are 0 to {self.vocabulary - 1}. {whose}"
        )

    def check_batch(self, batch: int) -> None:
        """Decoders that classify look for the last token that is no padding, and must know the padding for that."""
        if batch > 1 and self.is_hugging_face and self.padding is None and self.name.endswith("SequenceClassification"):
            raise InputError(
                f"{self.name} takes one example at a time: its config has no pad_token_id. Set it, or give them one "
                "by one."
            )

    def check_length(self, length: int, what: str) -> None:
        if self.max_length is not None and length > self.max_length:
            raise InputError(
                f"{what[0].upper()}{what[1:]} is {length} tokens long; {self.name} takes {self.max_length}. "
                "Shorten it or split it."
            )

    def _check_name(self, name: str) -> None:
        if name in self.names or (self.takes_any and self.main is None):
            return
        raise InputError(
            f"{self.name} takes no input {name!r}.{suggest_nearest(name, self.names)} It takes: "
            f"{', '.join(self.names)}."
        )

    def _check_shape(self, name: str, tensor: Tensor) -> None:
        axes = INPUT_AXES[name].split()
        if tensor.dim() != len(axes):
            raise InputError(f"{name} has the shape {list(tensor.shape)}; it must be [{', '.join(axes)}].")
        if name != "input_ids" and not tensor.is_floating_point():
            raise InputError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}; {self.name} takes floating-point numbers. "
                "Scale them as in training, or open the model with its processor and give the picture."
            )
        if name == "input_ids" and tensor.is_floating_point():
            raise InputError(f"input_ids are {str(tensor.dtype).removeprefix('torch.')}; token ids are whole numbers.")

    def _check_pixels(self, pixels: Tensor) -> None:
        channels, height, width = pixels.shape[1:]
        if self.channels is not None and channels != self.channels:
            turned = " The channels seem to come last: use permute(0, 3, 1, 2)." if width == self.channels else ""
            raise InputError(
                f"pixel_values has {channels} channels (shape {list(pixels.shape)}); "
                f"{self.name} takes {self.channels}.{turned}"
            )
        if self.size is not None and (height, width) != self.size:
            raise InputError(
                f"The picture has {height} x {width} pixels; {self.name} takes {self.size[0]} x {self.size[1]}. "
                "Resize it."
            )


def read_input_spec(module: nn.Module) -> InputSpec:
    """What this module takes."""
    inner = unwrap(module)
    parameters = inspect.signature(inner.forward).parameters.values()
    names = tuple(p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY))
    config: Any = getattr(inner, "config", None)
    is_hugging_face = config is not None and hasattr(inner, "main_input_name")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    counts = any(hasattr(m, "create_position_ids_from_input_ids") for m in inner.modules())
    return InputSpec(
        name=type(inner).__name__,
        names=names,
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
        main=inner.main_input_name if is_hugging_face else None,  # type: ignore[arg-type]
        max_length=_find_max_length(text, counts),
        vocabulary=_find_vocabulary_size(inner),
        padding=_find_token_id(text, "pad"),
        special=frozenset(i for name in ("cls", "sep", "bos", "eos") for i in _find_token_ids(text, name)),
        channels=getattr(config, "num_channels", None) if is_hugging_face else None,
        size=_find_image_size(config) if "interpolate_pos_encoding" in names else None,
        counts_positions=counts,
        is_hugging_face=is_hugging_face,
    )


def _find_max_length(config: Any, counts_positions: bool) -> int | None:
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    # Positions counted from the padding begin after the padding's own id.
    return limit - (_find_token_id(config, "pad") or 0) - 1 if counts_positions else limit


def _find_vocabulary_size(module: nn.Module) -> int | None:
    try:
        table = module.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def _find_token_ids(config: Any, name: str) -> list[int]:
    """Some models have several tokens of a kind."""
    found = getattr(config, f"{name}_token_id", None)
    listed = found if isinstance(found, list | tuple) else [found]
    return [i for i in listed if isinstance(i, int)]


def _find_token_id(config: Any, name: str) -> int | None:
    found = _find_token_ids(config, name)
    return found[0] if found and found[0] >= 0 else None


def _find_image_size(config: Any) -> tuple[int, int] | None:
    size = getattr(config, "image_size", None)
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None


def _check_numbers(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        hint = ' Ask the tokenizer or processor for return_tensors="pt".' if isinstance(value, list) else ""
        raise InputError(f"Input {name!r} is a {type(value).__name__}, not a tensor.{hint}")
    if value.numel() == 0:
        raise InputError(f"Input {name!r} is empty: shape {list(value.shape)}.")
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise InputError(f"Input {name!r} holds NaN or infinity.")


def _check_masks(inputs: Mapping[str, Tensor]) -> None:
    """A mask over tokens must fit them and leave something of every example."""
    main = next((inputs[name] for name in EXPLAINED_INPUTS[1:] if name in inputs), None)
    mask = inputs.get("attention_mask")
    if main is None or mask is None or mask.dim() != 2:
        return
    if mask.shape != main.shape[:2]:
        raise InputError(f"attention_mask {list(mask.shape)} does not fit the tokens {list(main.shape[:2])}.")
    if not bool(mask.bool().any(-1).all()):
        raise InputError("attention_mask leaves no token of an example.")
