"""Load the config and weights of a model folder or hub name, without running any code from it.

Safetensors only: no pickle, no code from the model folder, no attention kernel chosen by the config. transformers would
fill missing weights with random numbers, and NaN would spread silently, so both are refused. A model much larger than
its weights is refused before memory is allocated for it.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whyformer.errors import IncompleteModel, ModelNotFound, UnsafeModel, UnsupportedModel

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
MAX_CONFIG_BYTES = 10_000_000
MAX_LAYERS = 1_000
CODE_SETTINGS = ("attn_implementation", "experts_implementation", "trust_remote_code", "auto_map")
ATTENTION_IMPLEMENTATIONS = ("sdpa", "eager")


def load_checkpoint(
    folder: Path | str, name: str, dtype: torch.dtype | None, device: torch.device
) -> tuple[nn.Module, tuple[str, ...]]:
    """The module of a checkpoint, complete and finite, and notes about how it was loaded."""
    config = read_config(folder, name)
    builder = _find_model_class(config, name)
    if isinstance(folder, Path):
        _refuse_pickle(folder, name)
        _refuse_too_large(builder, config, _read_shapes(folder, name), name)
    module = _load_weights(builder, folder, config, dtype, name)
    notes: tuple[str, ...] = ()
    if dtype is None and device.type == "cpu" and _has_half_precision(module):
        notes = (f"The weights are {str(module.dtype).removeprefix('torch.')}; on the CPU they are used as float32.",)
        module = module.float()
    return module.to(device).eval(), notes


def _has_half_precision(module: nn.Module) -> bool:
    return any(weight.is_floating_point() and weight.dtype.itemsize < 4 for weight in module.parameters())


# --- config -----------------------------------------------------------------------------------------------------------


def read_config(folder: Path | str, name: str) -> Any:
    """The config, without settings that select code."""
    from transformers import CONFIG_MAPPING

    raw = _read_raw_config(
        folder / "config.json" if isinstance(folder, Path) else _fetch_from_hub(folder, "config.json"), name
    )
    if "auto_map" in raw:
        raise UnsafeModel(f"{name} needs its own Python code (auto_map in config.json), which whyformer does not run.")
    if "quantization_config" in raw:
        raise UnsupportedModel(
            f"{name} is quantised (quantization_config in config.json). Open the full-precision model."
        )
    for key in ("model_type", "architectures"):
        if not raw.get(key):
            raise IncompleteModel(f"{name}: config.json has no {key}, so the model class is unknown.")
    if raw["model_type"] not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"{name} has the model_type {raw['model_type']!r}, which {_name_library()} does not support."
        )
    layers = raw.get("num_hidden_layers") or raw.get("n_layer") or 0
    if not isinstance(layers, int) or layers > MAX_LAYERS:
        raise IncompleteModel(f"{name}: config.json asks for {layers!r} layers; the limit is {MAX_LAYERS:,}.")
    try:
        return CONFIG_MAPPING[raw["model_type"]].from_dict(_drop_code_settings(raw))
    except Exception as error:  # every config class raises its own errors
        raise IncompleteModel(
            f"{name}: config.json does not describe a {raw['model_type']} model: {first_line_of(error)}"
        ) from None


def _read_raw_config(path: Path, name: str) -> dict[str, Any]:
    try:
        if (size := path.stat().st_size) > MAX_CONFIG_BYTES:
            raise IncompleteModel(f"{name}: config.json has {size:,} bytes, too many for a config.")
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise IncompleteModel(f"{name}: config.json cannot be read ({first_line_of(error)}).") from None
    except (ValueError, RecursionError) as error:
        raise IncompleteModel(f"{name}: config.json is not valid JSON ({first_line_of(error)}).") from None
    if not isinstance(raw, dict):
        raise IncompleteModel(f"{name}: config.json must contain an object, got a {type(raw).__name__}.")
    return raw


def _fetch_from_hub(name: str, file: str) -> Path:
    """A file of a model on the hub, from the local cache if it is there."""
    from huggingface_hub import try_to_load_from_cache
    from transformers.utils.hub import cached_file

    if isinstance(cached := try_to_load_from_cache(name, file), str):
        return Path(cached)
    _check_hub(name)
    try:
        return Path(cached_file(name, file))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{file} of {name!r} could not be downloaded: {first_line_of(error)}") from None


def _check_hub(name: str) -> None:
    """Ask the hub once before downloading: does the model exist, and does it have safetensors weights?"""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError
    from transformers.utils.hub import is_offline_mode

    missing = f"{name!r} is neither a local folder nor in the local cache, and "
    if is_offline_mode():
        raise ModelNotFound(f"{missing}downloading is disabled (HF_HUB_OFFLINE). Download it first, or pass a folder.")
    try:
        files = [sibling.rfilename for sibling in HfApi().model_info(name, timeout=10).siblings or ()]
    except RepositoryNotFoundError:
        raise ModelNotFound(f"{missing}there is no such model on the hub, or it is private.") from None
    except Exception as error:  # depends on the network library
        raise ModelNotFound(f"{missing}the hub could not be reached: {first_line_of(error)}") from None
    if not any(file.endswith(".safetensors") for file in files):
        raise UnsafeModel(f"{name} has no safetensors weights on the hub; other formats are not supported.")


def _drop_code_settings(raw: Any) -> Any:
    """A config can name an attention kernel to download; whyformer always chooses the attention itself."""
    if isinstance(raw, list):
        return [_drop_code_settings(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    return {
        key: _drop_code_settings(value)
        for key, value in raw.items()
        if not str(key).lstrip("_").startswith(CODE_SETTINGS)
    }


def _find_model_class(config: Any, name: str) -> Any:
    import transformers

    architecture = str(config.architectures[0])
    builder: Any = getattr(transformers, architecture, None)
    if not (isinstance(builder, type) and issubclass(builder, transformers.PreTrainedModel)):
        raise UnsupportedModel(f"{name} has the architecture {architecture}, which {_name_library()} does not support.")
    if not isinstance(config, builder.config_class):  # type: ignore[attr-defined]
        raise IncompleteModel(
            f"{name}: config.json has the model_type {config.model_type}, but the architecture {architecture}."
        )
    return builder


def _name_library() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


# --- weights ----------------------------------------------------------------------------------------------------------


def _load_weights(builder: Any, folder: Path | str, config: Any, dtype: torch.dtype | None, name: str) -> Any:
    try:
        with silence_transformers():
            module, info = builder.from_pretrained(
                folder, config=config, dtype=dtype or "auto", use_safetensors=True, trust_remote_code=False,
                output_loading_info=True, ignore_mismatched_sizes=True,
                attn_implementation="sdpa" if getattr(builder, "_supports_sdpa", False) else "eager",
            )  # fmt: skip
    except Exception as error:  # safetensors, os and transformers raise different errors
        raise IncompleteModel(f"The weights of {name} could not be read: {first_line_of(error)}") from None
    if module.config._attn_implementation not in ATTENTION_IMPLEMENTATIONS:
        raise UnsafeModel(
            f"{name} was built with the attention {module.config._attn_implementation!r}, which was not asked for."
        )
    _refuse_incomplete(module, info, name)
    return module


def _refuse_pickle(folder: Path, name: str) -> None:
    if any(file.is_file() for file in folder.glob("*.safetensors")):
        return
    if pickles := sorted(p.name for pattern in PICKLE_PATTERNS for p in folder.glob(pattern)):
        raise UnsafeModel(
            f"{name} has only pickle weights ({pickles[0]}), which can run code when they are loaded. "
            "Convert them to safetensors."
        )
    raise IncompleteModel(f"{name} has no weights: there is no .safetensors file.")


def _read_shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, from the headers of the files."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(file for file in folder.glob("*.safetensors") if file.is_file()):
        try:
            with safe_open(file, framework="pt") as opened:
                shapes |= {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise IncompleteModel(
                f"{file.name} in {name} is damaged ({first_line_of(error)}). Copy or download it again."
            ) from None
    return shapes


def _refuse_too_large(builder: Any, config: Any, shapes: dict[str, tuple[int, ...]], name: str) -> None:
    """Refuse a model much larger than its files, which would be filled with random numbers until memory runs out."""
    try:
        with torch.device("meta"), silence_transformers():
            wanted = {key: tuple(weight.shape) for key, weight in builder(config).named_parameters()}
    except Exception as error:
        raise IncompleteModel(
            f"{name}: cannot build {builder.__name__} from config.json: {first_line_of(error)}"
        ) from None
    needed, present = (sum(math.prod(shape) for shape in each.values()) for each in (wanted, shapes))
    if needed > 4 * present + 1_000_000:
        key = next((key for key in wanted if wanted[key] != shapes.get(key)), "")
        shape = f"is {list(shapes[key])}" if key in shapes else "is missing"
        raise IncompleteModel(
            f"{name}: config.json describes {needed:,} parameters, but the weights have only {present:,}. "
            f"The first mismatch: {key} should be {list(wanted[key])} and {shape} in the file."
        )


def _refuse_incomplete(module: nn.Module, info: Any, name: str) -> None:
    if wrong := sorted(info.get("mismatched_keys", ())):
        key, saved, wanted = wrong[0]
        raise IncompleteModel(
            f"{key} has the shape {list(saved)} in the weights of {name}, but {list(wanted)} in its config.json. "
            "One of the two files belongs to another model."
        )
    if missing := sorted(info.get("missing_keys", ())):
        more = f" and {len(missing) - 3} more are" if len(missing) > 3 else " is" if len(missing) == 1 else " are"
        raise IncompleteModel(
            f"{', '.join(missing[:3])}{more} missing from the weights of {name}; the prediction would be random. "
            "Get the complete checkpoint."
        )
    for key, weight in [*module.named_parameters(), *module.named_buffers()]:
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise IncompleteModel(f"The weight {key} of {name} contains NaN or infinity.")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without loading reports and progress bars; our own errors report the problems."""
    from transformers.utils import logging

    before, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if had_bar:
            logging.enable_progress_bar()


def first_line_of(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__
