"""open(): a folder, a hub name, a shipped demo model or a module in hand becomes a Model.

Safetensors only, no code from the model folder, no pickle. Weights that are missing would be filled with random numbers and NaN would
spread without a word, so both are refused.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whyformer.errors import IncompleteModel, ModelNotFound, UnsafeModel, UnsupportedModel
from whyformer.model import Model
from whyformer.shadow import unwrap

DEMO = Path(__file__).parent / "demo"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")


def open(
    source: str | os.PathLike[str] | nn.Module,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    labels: list[str] | tuple[str, ...] | None = None,
    readout: str | int | None = None,
    batch_axis: int | None = None,
) -> Model:
    """Open a model to be explained.

    `source` is a folder with a config.json and safetensors weights, a hub name, "demo/..." for a model that ships with whyformer, or any
    nn.Module, which is used as it is. Without a tokenizer or image processor the model takes tensors. `readout` ("first", "last",
    "mean" or an index) and `batch_axis` are only needed where they cannot be seen.
    """
    if isinstance(source, nn.Module):
        return _from_module(source, dtype, device, tokenizer, processor, labels, readout, batch_axis)
    if isinstance(source, Model):
        return source
    folder = _folder(source)
    found_tokenizer, found_processor = _preprocessors(folder, str(source))
    module, notes = _load(folder, str(source), dtype, device)
    return _described(
        module,
        str(source),
        tokenizer or found_tokenizer,
        processor or found_processor,
        labels,
        readout,
        batch_axis or 0,
        notes,
    )


def _from_module(
    module: nn.Module,
    dtype: Any,
    device: Any,
    tokenizer: Any,
    processor: Any,
    labels: Any,
    readout: Any,
    batch_axis: int | None,
) -> Model:
    if dtype is not None or device is not None:
        raise UnsupportedModel(
            "A module in hand is used as it is: move or cast it yourself (module.to(...)) before opening it."
        )
    inner = unwrap(module)
    if any(p.is_meta for p in inner.parameters()):
        raise IncompleteModel(
            f"{type(inner).__name__} has parameters on the meta device, which hold no numbers. Load its weights."
        )
    axis = _batch_axis(inner) if batch_axis is None else batch_axis
    return _described(module, type(inner).__name__, tokenizer, processor, labels, readout, axis, ())


def _batch_axis(module: nn.Module) -> int:
    """torch's own encoder takes [token batch channel] unless told otherwise."""
    if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        attention = next(m for m in module.modules() if isinstance(m, nn.MultiheadAttention))
        return 0 if attention.batch_first else 1
    return 0


def _described(
    module: nn.Module,
    name: str,
    tokenizer: Any,
    processor: Any,
    labels: Any,
    readout: Any,
    batch_axis: int,
    notes: tuple[str, ...],
) -> Model:
    kind = "image" if processor is not None else "text" if tokenizer is not None else "tensors"
    if tokenizer is not None:
        _make_safe(tokenizer)
    return Model(
        module,
        name,
        kind,
        tuple(labels) if labels is not None else _labels(module),
        tokenizer,
        processor,
        readout,
        batch_axis,
        notes,
    )


def _make_safe(tokenizer: Any) -> None:
    """Something that looks like a special token in a user's text is text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "encode_special_tokens"):
        backend.encode_special_tokens = True
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token


def _labels(module: nn.Module) -> tuple[str, ...] | None:
    names = getattr(getattr(unwrap(module), "config", None), "id2label", None)
    return tuple(str(names[i]) for i in sorted(names)) if names else None


# --- folders ---------------------------------------------------------------------------------------------------------


def _folder(source: str | os.PathLike[str]) -> Path | str:
    """The folder meant, or the hub name if there is none."""
    text = os.fspath(source)
    if text.startswith("demo/"):
        folder = DEMO / text.removeprefix("demo/")
        if folder.parent != DEMO or not folder.is_dir():
            there = ", ".join(
                f"demo/{p.name}" for p in sorted(DEMO.iterdir()) if p.is_dir() and (p / "config.json").is_file()
            )
            raise ModelNotFound(f"No demo model {text!r}. There are: {there}.")
        return folder
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"There is no config.json in {text!r}, so it is not a model folder.")
        return path
    is_name = (
        0 < len(text) <= 96
        and text.count("/") <= 1
        and all(c.isalnum() or c in "-_./" for c in text)
        and ".." not in text
    )
    if path.exists() or not is_name or text.startswith(("/", ".")):
        raise ModelNotFound(f"{text!r} is neither a model folder here nor a valid model name.")
    return text


def _config(folder: Path | str, name: str) -> Any:
    import transformers

    if isinstance(folder, Path):
        try:
            raw = json.loads((folder / "config.json").read_text("utf-8"))
        except ValueError as error:
            raise IncompleteModel(f"{name}: config.json is not valid JSON ({error}).") from None
        if "auto_map" in raw:
            raise UnsafeModel(f"{name} brings its own Python code (auto_map in config.json), which is not run.")
        if not raw.get("architectures"):
            raise IncompleteModel(f"{name}: config.json names no architecture, so it is not known what to build.")
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"No model {name!r} could be opened: {_first_line(error)}") from None


def _load(folder: Path | str, name: str, dtype: Any, device: Any) -> tuple[nn.Module, tuple[str, ...]]:
    import transformers

    config = _config(folder, name)
    architecture = (config.architectures or [""])[0]
    if not (builder := getattr(transformers, architecture, None)):
        raise UnsupportedModel(
            f"{name} is a {architecture or 'model without architecture'}, which transformers {transformers.__version__} does not have."
        )
    _refuse_pickle(folder, name)
    _drop_kernel(config)
    try:
        module, info = builder.from_pretrained(
            folder, config=config, dtype=dtype or "auto", use_safetensors=True, trust_remote_code=False, output_loading_info=True,
            attn_implementation="sdpa" if getattr(builder, "_supports_sdpa", False) else "eager",
        )  # fmt: skip
    except Exception as error:  # safetensors, os and transformers each raise their own
        raise IncompleteModel(f"The weights of {name} could not be read: {_first_line(error)}") from None
    _refuse_incomplete(module, info, name)
    return module.to(device or "cpu").eval(), ()


def _refuse_pickle(folder: Path | str, name: str) -> None:
    if not isinstance(folder, Path) or any(folder.glob("*.safetensors")):
        return
    if pickles := sorted(p.name for pattern in PICKLES for p in folder.glob(pattern)):
        raise UnsafeModel(
            f"{name} has only pickle weights ({pickles[0]}), which can run code when they are read. Convert them to safetensors."
        )
    raise IncompleteModel(f"There are no weights in {name}: no .safetensors file.")


def _drop_kernel(config: Any) -> None:
    """A config may name a kernel to fetch as its attention; we choose the attention ourselves."""
    for key in ("_attn_implementation", "_attn_implementation_internal", "attn_implementation"):
        if isinstance(config.__dict__.get(key), str):
            config.__dict__[key] = None


def _refuse_incomplete(module: nn.Module, info: Any, name: str) -> None:
    if missing := sorted(info.get("missing_keys", ())):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise IncompleteModel(
            f"{', '.join(missing[:3])}{more} is not in the weights of {name}; the prediction would be random. Get the complete checkpoint."
        )
    if wrong := list(info.get("mismatched_keys", ())):
        raise IncompleteModel(
            f"{name}: the shape of {wrong[0][0]} in the file is {wrong[0][1]}, the model wants {wrong[0][2]}."
        )
    for key, weight in module.named_parameters():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise IncompleteModel(f"The weight {key} of {name} holds NaN or infinity.")


def _preprocessors(folder: Path | str, name: str) -> tuple[Any, Any]:
    """Tokenizer and image processor, each if there is one."""
    import transformers

    has = (lambda names: any((folder / n).is_file() for n in names)) if isinstance(folder, Path) else lambda names: True
    tokenizer = processor = None
    if has(PROCESSOR_FILES):
        processor = _attempt(
            lambda: transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False), folder, name
        )
    if processor is None and has(TOKENIZER_FILES):
        tokenizer = _attempt(
            lambda: transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False), folder, name
        )
    return tokenizer, processor


def _attempt(make: Any, folder: Path | str, name: str) -> Any:
    """On the hub a model may lack one of the two; in a folder that has the file it must open."""
    try:
        return make()
    except Exception as error:
        if isinstance(folder, Path):
            raise IncompleteModel(
                f"The tokenizer or image processor in {name} could not be opened: {_first_line(error)}"
            ) from None
        return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__
