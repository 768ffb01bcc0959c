"""InputSpec: which inputs the forward() of a module accepts, as far as its signature and config tell.

Inputs are checked before the module runs, so that a text that is too long or an unknown token id gives a clear error
and not an index error inside the model.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whyformer._model.dictionary_input import takes_dictionary
from whyformer._model.embedding import encoder_of
from whyformer._model.preprocessors import ImageProcessor
from whyformer._model.token_masks import is_added
from whyformer._model.two_streams import TwoStreams
from whyformer._model.unwrap import unwrap
from whyformer.errors import InputError, suggest_nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TensorError = partial(InputError, code="E_TENSOR")
EXPLAINED_INPUTS = ("pixel_values", "inputs_embeds", "input_ids")  # the names Hugging Face models use
INPUT_AXES = {
    "pixel_values": "batch channel height width",
    "inputs_embeds": "batch token channel",
    "input_ids": "batch token",
}
FRAME_COUNTS = ("num_frames", "frames_per_clip")  # fields of configs
POSITION_COUNTER = "create_position_ids_from_input_ids"


@dataclass(frozen=True)
class InputSpec:
    """The inputs that a module accepts."""

    name: str  # of its class
    names: tuple[str, ...]
    takes_any: bool  # has **kwargs
    main: str | None  # main_input_name of a Hugging Face model
    max_length: int | None  # tokens; None: as many as there is memory for
    trained_length: int | None  # tokens that its positions were made for; at most max_length
    vocabulary: int | None  # rows of the embedding
    padding: int | None  # pad_token_id of the model
    special: frozenset[int]  # ids of special tokens
    channels: int | None
    size: tuple[int, int] | None  # height and width, if the model accepts only one image size
    counts_positions: bool  # derives positions from the padding in the ids (RoBERTa and similar)
    is_hugging_face: bool
    takes_dictionary: bool = False  # of inputs, whatever their names
    takes_videos: bool = False  # its images may have an axis of time

    def choose_input_name(self, tensor: Tensor) -> str:
        """The name of the input that a bare tensor is passed as."""
        if not self.names:
            raise InputError(f"The forward() of {self.name} has no named input. Pass a dictionary of inputs.")
        if self.takes_dictionary:
            raise InputError(f"The forward() of {self.name} takes a dictionary of inputs. Pass one.")
        if tensor.is_floating_point() and tensor.dim() >= 3 and "pixel_values" in self.names:
            return "pixel_values"
        if tensor.is_floating_point() and "inputs_embeds" in self.names:
            return "inputs_embeds"
        if self.main in self.names:
            return str(self.main)
        return "input_ids" if "input_ids" in self.names else self.names[0]

    def check(self, inputs: Mapping[str, Tensor], *, is_joint: bool = False) -> None:
        """Refuse inputs that the module cannot run on. is_joint: images between words, in whatever form."""
        is_joint = is_joint or holds_cut_patches(inputs)
        for name, value in inputs.items():
            # processors make inputs that only a part of the model names
            if not self.takes_dictionary and not (is_joint and self.takes_any):
                self._check_name(name)
            _check_numbers(name, value)
        if self.main is not None and not any(name in inputs for name in (*EXPLAINED_INPUTS, self.main)):
            raise InputError(f"{self.name} needs the input {self.main!r}, got {', '.join(inputs) or 'nothing'}.")
        if not inputs:
            raise InputError(f"{self.name} needs an input, got nothing. It has: {', '.join(self.names)}.")
        for name in (name for name in EXPLAINED_INPUTS if name in inputs and not (is_joint and name == "pixel_values")):
            self._check_shape(name, inputs[name])
        if "input_ids" in inputs:
            self.check_ids(inputs["input_ids"])
        if "pixel_values" in inputs and not is_joint:
            self._check_pixels(inputs["pixel_values"])
        _check_masks(inputs, is_kept_at_1=self.is_hugging_face)

    def check_ids(self, ids: Tensor, *, of_tokenizer: bool = False) -> None:
        """Every token id must be in the vocabulary, and the sequence must not be too long."""
        self.check_length(ids.size(-1), "the sequence")
        if self.vocabulary is None or 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            return
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        reason = "The tokenizer" if of_tokenizer else "These ids"
        raise InputError(
            f"{self.name} has no token {wrong}: its token ids are 0 to {self.vocabulary - 1}. "
            f"{reason} probably belong{'s' * of_tokenizer} to another model.",
            code="E_MODEL_TOKENIZER" if of_tokenizer else "E_TENSOR",
        )

    @property
    def takes_batches(self) -> bool:
        """Decoders that classify read the last token before the padding, so for a batch they need a pad_token_id."""
        is_decoder = self.is_hugging_face and self.name.endswith("SequenceClassification")
        return not is_decoder or self.padding is not None

    def check_batch(self, batch: int) -> None:
        if batch > 1 and not self.takes_batches:
            raise InputError(
                f"{self.name} accepts only one example at a time, because its config has no pad_token_id. Set it "
                "(model.config.pad_token_id = tokenizer.eos_token_id), or pass one example to each call."
            )

    def check_length(self, length: int, what: str) -> None:
        if self.max_length is not None and length > self.max_length:
            raise InputError(
                f"{what[0].upper()}{what[1:]} is {length} tokens long; {self.name} accepts at most {self.max_length}. "
                "Shorten it, or explain it in overlapping windows: explain(..., windows=True), --windows.",
                code="E_TXT_TOO_LONG",
            )

    def note_length(self, length: int) -> tuple[str, ...]:
        """A note if the model computes more positions than it was made for."""
        if self.trained_length is None or length <= self.trained_length:
            return ()
        return (
            f"The input has {length:,} tokens; {self.name} was made for {self.trained_length:,} and computes positions "
            "beyond. Its answers may be poor there, and scores explain those answers.",
        )

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str):
            raise InputError(f"The names of inputs must be strings, got {name!r}.")
        if name not in self.names and not (self.takes_any and self.main is None):
            hint = suggest_nearest(name, self.names)
            raise InputError(f"{self.name} has no input {name!r}.{hint} Its inputs are: {', '.join(self.names)}.")

    def _check_shape(self, name: str, tensor: Tensor) -> None:
        axes = INPUT_AXES[name].split()
        if self.name.endswith("MultipleChoice") and tensor.dim() == len(axes) + 1:  # [batch, choice, ...]
            axes.insert(1, "choice")
        if self.takes_videos and name == "pixel_values" and tensor.dim() == len(axes) + 1:
            axes.insert(1, "frame")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.dim() != len(axes):
            raise TensorError(f"{name} must have the shape [{', '.join(axes)}], got {list(tensor.shape)}.")
        if name != "input_ids" and not tensor.is_floating_point():
            raise TensorError(
                f"{name} must be floating point, got {dtype}. "
                "Scale it as in training, or open the model with its processor and pass the image."
            )
        if name == "input_ids" and tensor.dtype not in (torch.int32, torch.int64):
            raise TensorError(f"input_ids must be integers, got {dtype}. Pass int32 or int64.")

    def _check_pixels(self, pixels: Tensor) -> None:
        channels, height, width = pixels.shape[-3:]
        if self.channels is not None and channels != self.channels:
            hint = " The channels seem to be the last axis: use permute(0, 3, 1, 2)." if width == self.channels else ""
            raise TensorError(
                f"pixel_values has {channels} channel{'s' * (channels != 1)} (shape {list(pixels.shape)}); "
                f"{self.name} needs {self.channels}.{hint}"
            )
        if self.size is not None and (height, width) != self.size:
            raise InputError(
                f"The image has {height} x {width} pixels; {self.name} needs {self.size[0]} x {self.size[1]}. "
                "Resize it."
            )


def holds_cut_patches(inputs: Mapping[str, Any]) -> bool:
    """Whether images come as patches, cut and flattened, with the rows and columns of each (SigLIP 2)."""
    return "spatial_shapes" in inputs and getattr(inputs.get("pixel_values"), "ndim", 0) == 3


def read_input_spec(module: nn.Module) -> InputSpec:
    """The inputs of this module, from its forward() signature and config."""
    inner = encoder_of(unwrap(module))
    inner = inner.model if isinstance(inner, TwoStreams) else inner
    parameters = inspect.signature(inner.forward).parameters.values()
    names = tuple(p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY))
    config: PretrainedConfig = getattr(inner, "config", None)
    is_hugging_face = config is not None and hasattr(inner, "main_input_name")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    counts = any(map(counts_own_positions, inner.modules()))
    return InputSpec(
        name=type(inner).__name__,
        names=names,
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
        main=inner.main_input_name if is_hugging_face else None,  # type: ignore[arg-type]
        max_length=None if computes_positions(inner) else _find_table_length(text, counts),
        trained_length=_find_trained_length(text) if computes_positions(inner) else _find_table_length(text, counts),
        vocabulary=_find_vocabulary_size(inner),
        padding=_find_token_id(text, "pad"),
        special=frozenset(i for name in ("cls", "sep", "bos", "eos") for i in _find_token_ids(text, name)),
        channels=getattr(config, "num_channels", None) if is_hugging_face else None,
        size=_find_image_size(config) if "interpolate_pos_encoding" in names else None,
        counts_positions=counts,
        is_hugging_face=is_hugging_face,
        takes_dictionary=not is_hugging_face and takes_dictionary(inner),
        takes_videos=is_hugging_face and any(hasattr(config, name) for name in FRAME_COUNTS),
    )


def computes_positions(module: nn.Module) -> bool:
    """Whether positions are rotations, computed for any length, and no table of learned ones is used besides."""
    is_rotary = any(name.rpartition(".")[2].endswith("inv_freq") for name, _ in module.named_buffers())
    tables = (name for name, part in module.named_modules() if isinstance(part, nn.Embedding))
    return is_rotary and not any("pos" in name.rpartition(".")[2] or name.endswith("wpe") for name in tables)


def counts_own_positions(part: nn.Module) -> bool:
    """Whether it counts positions from the padding in the ids: by a method, or a function that forward() calls."""
    code = getattr(inspect.unwrap(type(part).forward), "__code__", None)
    calls = code is not None and POSITION_COUNTER in code.co_names and hasattr(part, "position_embeddings")
    return hasattr(part, POSITION_COUNTER) or calls


def _find_table_length(config: "PretrainedConfig", counts_positions: bool) -> int | None:
    """The number of tokens that a table of positions is made for."""
    limit = _find_positions(config)
    if limit is None:
        return None
    # Positions derived from the padding start after pad_token_id.
    return limit - (_find_token_id(config, "pad") or 0) - 1 if counts_positions else limit


def _find_positions(config: "PretrainedConfig") -> int | None:
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _find_trained_length(config: "PretrainedConfig") -> int | None:
    """How many tokens rotary positions reach: `max_position_embeddings` may be the length before they are stretched.

    YaRN and its like reach `factor` times the original length, linear scaling `factor` times the given one; dynamic
    NTK adapts to every length (None).
    """
    rope, trained = getattr(config, "rope_parameters", None), _find_positions(config)
    if trained is None:
        return None
    scalings = [rope, *rope.values()] if isinstance(rope, dict) else []  # some models have one for each kind of layer
    lengths = [trained]
    for scaling in (one for one in scalings if isinstance(one, dict)):
        kind, factor = scaling.get("rope_type"), scaling.get("factor")
        if kind == "dynamic":
            return None
        original = scaling.get("original_max_position_embeddings", trained if kind == "linear" else None)
        if isinstance(original, int) and isinstance(factor, int | float):
            lengths.append(int(original * factor))
    return max(lengths)


def _find_vocabulary_size(module: nn.Module) -> int | None:
    try:
        table = module.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def _find_token_ids(config: "PretrainedConfig", name: str) -> list[int]:
    """Some models have several tokens of one kind."""
    ids = getattr(config, f"{name}_token_id", None)
    return [i for i in (ids if isinstance(ids, list | tuple) else [ids]) if isinstance(i, int)]


def _find_token_id(config: "PretrainedConfig", name: str) -> int | None:
    ids = _find_token_ids(config, name)
    return ids[0] if ids and ids[0] >= 0 else None


def _find_image_size(config: "PretrainedConfig") -> tuple[int, int] | None:
    size = getattr(config, "image_size", None)
    size = (size, size) if isinstance(size, int) else size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None


def _check_numbers(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        hint = ' Call the tokenizer or processor with return_tensors="pt".' if isinstance(value, list) else ""
        raise TensorError(f"Input {name!r} must be a tensor, got {type(value).__name__}.{hint}")
    refuse_unusable_tensor(name, value)
    if value.numel() == 0:
        raise TensorError(f"Input {name!r} is empty: shape {list(value.shape)}.")
    if value.is_floating_point() and not bool(value.isfinite().all()):
        if value.dim() in (2, 3) and not bool(value.isinf().any()):  # a series or a table: missing values
            return
        raise TensorError(f"Input {name!r} contains NaN or infinity.")


def note_missing(given: Tensor) -> str:
    """What scores leave out of an input with missing values; empty if there are none."""
    count = int(given.isnan().sum()) if given.is_floating_point() else 0
    if not count:
        return ""
    numbers = "1 number of the input is" if count == 1 else f"{count} numbers of the input are"
    return (
        f"{numbers} missing (NaN). Methods that read gradients or relevance at the input give a missing number no "
        "share; leave_one_out sees what it does."
    )


def refuse_unusable_tensor(name: str, value: Any) -> None:
    """Refuse the kinds of tensor that hardly any operation takes; what is not a tensor passes."""
    if not isinstance(value, Tensor):
        return
    kinds = {
        "is nested": value.is_nested,
        "is sparse": value.layout is not torch.strided,
        "is quantised": value.is_quantized,
        "is complex": value.is_complex(),
        "has 8-bit floating-point numbers": value.is_floating_point() and value.dtype.itemsize < 2,
        "has no values, since it is on the meta device": value.device.type == "meta",
    }
    if kind := next((words for words, is_so in kinds.items() if is_so), None):
        raise TensorError(f"Input {name!r} {kind}. Pass an ordinary dense tensor.")


def refuse_other_axes(name: str, given: Tensor) -> None:
    """Refuse an explained input without tokens or with the channels of its image at the end."""
    shape = list(given.shape)
    if given.dim() < 2:
        raise TensorError(
            f"{name!r} has the shape {shape}, one number for each example, so there is nothing in it to compare. Pass "
            "a module that takes all columns as one tensor [row column]."
        )
    if given.dim() == 4 and shape[3] in (1, 3, 4) and min(shape[1:3]) > 4:
        raise TensorError(
            f"{name!r} has the shape {shape}, with its channels last, but images are read as [image channel height "
            "width]. Pass a module that takes these and uses permute(0, 2, 3, 1)."
        )


def _check_masks(inputs: Mapping[str, Tensor], *, is_kept_at_1: bool) -> None:
    """attention_mask must match the tokens and keep at least one token of every example."""
    main = next((inputs[name] for name in EXPLAINED_INPUTS[1:] if name in inputs), None)
    mask = inputs.get("attention_mask")
    if main is None or mask is None or mask.dim() == 4:  # [batch head query key], made by the user
        return
    if main.dim() == 3 and not main.is_floating_point() and mask.shape == main.shape:  # [batch, choice, token]
        return
    if mask.shape != main.shape[:2]:
        raise TensorError(f"attention_mask has the shape {list(mask.shape)}, but the tokens {list(main.shape[:2])}.")
    if is_kept_at_1 and not is_added(mask) and not bool(mask.bool().any(-1).all()):
        raise InputError("attention_mask masks every token of an example.")


# --- pixels that are not normalised -----------------------------------------------------------------------------------


LARGEST_NORMALISED = 10.0  # no usual mean and standard deviation give more


def check_pixel_range(pixels: Tensor, processor: ImageProcessor | None, name: str) -> str:
    """Refuse what the model's processor cannot have made; a note if it is not known what the model needs."""
    values = pixels.detach()  # a number of what has a gradient is a warning
    low, high = float(values.min()), float(values.max())
    if low < 0 or not LARGEST_NORMALISED < high <= 255:
        return ""
    found = f"The pixel values run from {low:g} to {high:g}, as in an image that is not normalised"
    expected = find_normalised_range(processor)
    if expected is None:
        return f"{found}. If the model was not trained on such values, scale them as in training."
    raise InputError(
        f"{found}; the processor of {name} gives values from {expected[0]:.3g} to {expected[1]:.3g}. Pass the image "
        "itself: a path, a Pillow image or an array [height, width, channel] of 0 to 255.",
        code="E_IMG_VALUES",
    )


def find_normalised_range(processor: Any) -> tuple[float, float] | None:
    """The values that this processor gives to black and white, over all channels; None if it does not say."""
    if not getattr(processor, "do_rescale", False):
        return None
    if not getattr(processor, "do_normalize", False):
        return 0.0, 1.0
    pairs = list(zip(processor.image_mean, processor.image_std, strict=True))
    return min(-mean / deviation for mean, deviation in pairs), max((1 - mean) / deviation for mean, deviation in pairs)
