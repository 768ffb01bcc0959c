"""Checkpoint: the config and weights of a model folder (or hub name), read without running anything that lies there.

Safetensors only, no code from the model folder, no pickle, no attention kernel of the config's choice. Weights that
are missing would be filled with random numbers and NaN would spread without a word, so both are refused; a model much
larger than its weights is refused before memory is taken for it.
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
    """The module of a checkpoint, complete and finite, and notes on how it was read."""
    config = read_config(folder, name)
    builder = _find_model_class(config, name)
    if isinstance(folder, Path):
        _refuse_pickle(folder, name)
        _refuse_too_large(builder, config, _read_shapes(folder, name), name)
    module = _load_weights(builder, folder, config, dtype, name)
    notes: tuple[str, ...] = ()
    if (
        dtype is None
        and device.type == "cpu"
        and any(p.is_floating_point() and p.dtype.itemsize < 4 for p in module.parameters())
    ):
        notes = (
            f"The weights are {str(module.dtype).removeprefix('torch.')}; on this processor they are used as float32.",
        )
        module = module.float()
    return module.to(device).eval(), notes


# --- config -----------------------------------------------------------------------------------------------------------


def read_config(folder: Path | str, name: str) -> Any:
    """The config, without anything in it that chooses code."""
    from transformers import CONFIG_MAPPING

    raw = _read_raw_config(
        folder / "config.json" if isinstance(folder, Path) else _fetch_from_hub(folder, "config.json"), name
    )
    if "auto_map" in raw:
        raise UnsafeModel(f"{name} brings its own Python code (auto_map in config.json), which is not run.")
    if "quantization_config" in raw:
        raise UnsupportedModel(
            f"{name} is quantised (quantization_config in config.json). Open the full-precision model."
        )
    for key, what in (("model_type", "of which type it is"), ("architectures", "what to build")):
        if not raw.get(key):
            raise IncompleteModel(f"{name}: config.json names no {key}, so it is not known {what}.")
    if raw["model_type"] not in CONFIG_MAPPING:
        raise UnsupportedModel(f"{name} is of the type {raw['model_type']!r}, which {_name_library()} does not have.")
    layers = raw.get("num_hidden_layers") or raw.get("n_layer") or 0
    if not isinstance(layers, int) or layers > MAX_LAYERS:
        raise IncompleteModel(f"{name}: config.json wants {layers!r} layers; at most {MAX_LAYERS:,} are built.")
    try:
        return CONFIG_MAPPING[raw["model_type"]].from_dict(_drop_code_settings(raw))
    except Exception as error:  # each config checks its values in its own way
        raise IncompleteModel(
            f"{name}: config.json does not describe a {raw['model_type']} model: {first_line_of(error)}"
        ) from None


def _read_raw_config(path: Path, name: str) -> dict[str, Any]:
    try:
        if (size := path.stat().st_size) > MAX_CONFIG_BYTES:
            raise IncompleteModel(f"{name}: config.json has {size:,} bytes, which is no config.")
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise IncompleteModel(f"{name}: config.json cannot be read ({first_line_of(error)}).") from None
    except (ValueError, RecursionError) as error:
        raise IncompleteModel(f"{name}: config.json is not valid JSON ({first_line_of(error)}).") from None
    if not isinstance(raw, dict):
        raise IncompleteModel(f"{name}: config.json holds a {type(raw).__name__}, not a config.")
    return raw


def _fetch_from_hub(name: str, file: str) -> Path:
    """A file of a model on the hub, from the cache of this machine if it is there."""
    from huggingface_hub import try_to_load_from_cache
    from transformers.utils.hub import cached_file

    if isinstance(held := try_to_load_from_cache(name, file), str):
        return Path(held)
    _check_hub(name)
    try:
        return Path(cached_file(name, file))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{file} of {name!r} could not be downloaded: {first_line_of(error)}") from None


def _check_hub(name: str) -> None:
    """Ask the hub once, before the many attempts of a download: is it there, and is it safe to load?"""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError
    from transformers.utils.hub import is_offline_mode

    missing = f"{name!r} is no folder here and is not in the cache of this machine, and "
    if is_offline_mode():
        raise ModelNotFound(
            f"{missing}downloading is switched off (HF_HUB_OFFLINE). Download it first, or give a folder."
        )
    try:
        files = [sibling.rfilename for sibling in HfApi().model_info(name, timeout=10).siblings or ()]
    except RepositoryNotFoundError:
        raise ModelNotFound(f"{missing}there is no such model on the hub, or it is private.") from None
    except Exception as error:  # whatever the network library of the day raises
        raise ModelNotFound(f"{missing}the hub could not be reached: {first_line_of(error)}") from None
    if not any(file.endswith(".safetensors") for file in files):
        raise UnsafeModel(f"{name} has no safetensors weights on the hub, and others are not read.")


def _drop_code_settings(raw: Any) -> Any:
    """A config may name a kernel to fetch as its attention; we choose the attention ourselves."""
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
        raise UnsupportedModel(f"{name} is a {architecture}, which {_name_library()} does not have.")
    if not isinstance(config, builder.config_class):  # type: ignore[attr-defined]
        raise IncompleteModel(
            f"{name}: config.json is for {config.model_type}, but names {architecture} as architecture."
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
    except Exception as error:  # safetensors, os and transformers each raise their own
        raise IncompleteModel(f"The weights of {name} could not be read: {first_line_of(error)}") from None
    if module.config._attn_implementation not in ATTENTION_IMPLEMENTATIONS:
        raise UnsafeModel(
            f"{name} was built with the attention {module.config._attn_implementation!r} instead of ours."
        )
    _refuse_incomplete(module, info, name)
    return module


def _refuse_pickle(folder: Path, name: str) -> None:
    if any(file.is_file() for file in folder.glob("*.safetensors")):
        return
    if pickles := sorted(p.name for pattern in PICKLE_PATTERNS for p in folder.glob(pattern)):
        raise UnsafeModel(
            f"{name} has only pickle weights ({pickles[0]}), which can run code when they are read. "
            "Convert them to safetensors."
        )
    raise IncompleteModel(f"There are no weights in {name}: no .safetensors file.")


def _read_shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in the files, from their headers."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(file for file in folder.glob("*.safetensors") if file.is_file()):
        try:
            with safe_open(file, framework="pt") as held:
                shapes |= {key: tuple(held.get_slice(key).get_shape()) for key in held.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise IncompleteModel(
                f"{file.name} in {name} is damaged ({first_line_of(error)}). Copy or download it again."
            ) from None
    return shapes


def _refuse_too_large(builder: Any, config: Any, shapes: dict[str, tuple[int, ...]], name: str) -> None:
    """A model much larger than its files would be filled up with random numbers, for as long as memory lasts."""
    try:
        with torch.device("meta"), silence_transformers():
            wanted = {key: tuple(weight.shape) for key, weight in builder(config).named_parameters()}
    except Exception as error:
        raise IncompleteModel(
            f"{name}: no {builder.__name__} can be built from config.json: {first_line_of(error)}"
        ) from None
    needs, held = (sum(math.prod(shape) for shape in each.values()) for each in (wanted, shapes))
    if needs > 4 * held + 1_000_000:
        other = next((key for key in wanted if wanted[key] != shapes.get(key)), "")
        found = f"{list(shapes[other])}" if other in shapes else "missing"
        raise IncompleteModel(
            f"{name}: config.json wants {needs:,} numbers, the weights hold {held:,}. "
            f"The first that does not fit is {other}: {list(wanted[other])} wanted, {found} in the file."
        )


def _refuse_incomplete(module: nn.Module, info: Any, name: str) -> None:
    if wrong := sorted(info.get("mismatched_keys", ())):
        key, held, wanted = wrong[0]
        raise IncompleteModel(
            f"The shape of {key} in the weights of {name} is {list(held)}; its config.json wants {list(wanted)}. "
            "One of the two files is of another model."
        )
    if missing := sorted(info.get("missing_keys", ())):
        more = f" and {len(missing) - 3} more are" if len(missing) > 3 else " is" if len(missing) == 1 else " are"
        raise IncompleteModel(
            f"{', '.join(missing[:3])}{more} not in the weights of {name}; the prediction would be random. "
            "Get the complete checkpoint."
        )
    for key, weight in [*module.named_parameters(), *module.named_buffers()]:
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise IncompleteModel(f"The weight {key} of {name} holds NaN or infinity.")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Our errors say what the loading report would; progress bars do not belong into a log."""
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
