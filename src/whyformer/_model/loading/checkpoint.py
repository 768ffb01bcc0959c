"""Load the config and weights of a model folder or hub name, without running any code from it.

Safetensors only: no pickle, no code from the model folder, no attention kernel chosen by the config. transformers would
fill missing weights with random numbers, and NaN would spread silently, so both are refused. A model much larger than
its weights is refused before memory is allocated for it.
"""

import inspect
import math
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer._model.loading.config_fields import (
    TooLargeModel,
    WrongConfig,
    check_config_fields,
    list_layer_counts,
    read_json_object,
)
from whyformer._plain.json_value import Json
from whyformer._plain.shared_context import SharedContext
from whyformer.errors import IncompleteModel, ModelNotFound, UnsafeModel, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    ModelClass = type[PreTrainedModel]

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAX_BUFFER_BYTES = 2_000_000_000  # tables that a model computes from its config
CODE_SETTINGS = ("attn_implementation", "experts_implementation", "trust_remote_code", "auto_map")
ATTENTION_IMPLEMENTATIONS = ("sdpa", "eager")
LoadingInfo: TypeAlias = dict[str, Sequence[Any]]  # of from_pretrained: missing_keys, mismatched_keys ...


def load_checkpoint(
    folder: Path | str, name: str, dtype: torch.dtype | None, device: torch.device
) -> tuple[nn.Module, tuple[str, ...]]:
    """The module of a checkpoint, complete and finite, and notes about how it was loaded."""
    config = load_config(folder, name)
    builder = _find_model_class(config, name)
    if isinstance(folder, Path):
        refuse_unsafe_folder(folder, name)
        _refuse_too_large(builder, config, _read_shapes(folder, name), name)
    module, notes = _load_weights(builder, folder, config, dtype, name)
    is_half = any(weight.is_floating_point() and weight.dtype.itemsize < 4 for weight in module.parameters())
    if dtype is None and device.type == "cpu" and is_half:
        notes += (f"The weights are {str(module.dtype).removeprefix('torch.')}; on the CPU they are used as float32.",)
        module = module.float()
    return module.to(device).eval(), notes


# --- config -----------------------------------------------------------------------------------------------------------


def load_config(folder: Path | str, name: str) -> "PretrainedConfig":
    """The config, without settings that select code."""
    from transformers import CONFIG_MAPPING

    raw = read_json_object(find_file(folder, "config.json"), name)
    if "auto_map" in raw:
        raise UnsafeModel(
            f"{name} needs its own Python code (auto_map in config.json), which whyformer does not run. If you trust "
            "the code, load the model yourself and open the nn.Module."
        )
    if "quantization_config" in raw:
        raise UnsupportedModel(
            f"{name} is quantised (quantization_config in config.json). Open the full-precision model."
        )
    for key in ("model_type", "architectures"):
        if not raw.get(key):
            raise WrongConfig(
                f"{name}: config.json has no {key}, so the model class is unknown. Build the model in Python and pass "
                'it to open(), or name a model of timm: "timm:NAME" with weights=FILE.'
            )
    check_config_fields(raw, name)
    kind = str(raw["model_type"])
    if kind not in CONFIG_MAPPING:
        raise UnsupportedModel(f"{name} has the model_type {kind[:100]!r}, which {_name_library()} does not support.")
    try:
        return CONFIG_MAPPING[kind].from_dict(_drop_code_settings(raw))
    except Exception as error:  # every config class raises its own errors
        raise WrongConfig(f"{name}: config.json does not describe a {kind} model: {first_line_of(error)}") from None


def find_file(folder: Path | str, file: str) -> Path:
    """A file of a model folder, or of a model on the hub."""
    return folder / file if isinstance(folder, Path) else fetch_from_hub(folder, file)


def fetch_from_hub(name: str, file: str) -> Path:
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


def _drop_code_settings(raw: Json) -> Json:
    """A config can name an attention kernel to download; whyformer always chooses the attention itself."""
    if isinstance(raw, list):
        return [_drop_code_settings(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    kept = (key for key in raw if not key.lstrip("_").startswith(CODE_SETTINGS))
    return {key: _drop_code_settings(raw[key]) for key in kept}


def _find_model_class(config: "PretrainedConfig", name: str) -> "ModelClass":
    import transformers

    architecture = str(config.architectures[0])[:100]
    builder: Any = getattr(transformers, architecture, None)
    if not (isinstance(builder, type) and issubclass(builder, transformers.PreTrainedModel)):
        raise UnsupportedModel(f"{name} has the architecture {architecture}, which {_name_library()} does not support.")
    if not isinstance(config, builder.config_class):  # type: ignore[attr-defined]
        raise WrongConfig(
            f"{name}: config.json has the model_type {config.model_type}, but the architecture {architecture}."
        )
    return builder


def _name_library() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


# --- weights ----------------------------------------------------------------------------------------------------------


def _load_weights(
    builder: "ModelClass", folder: Path | str, config: "PretrainedConfig", dtype: torch.dtype | None, name: str
) -> "tuple[PreTrainedModel, tuple[str, ...]]":
    """The module, and a note if it is opened without its pooler."""
    try:
        with SILENT_TRANSFORMERS:
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
    notes = _drop_pooler(module, info)
    _refuse_incomplete(module, info, name)
    return module, notes


def _drop_pooler(module: "PreTrainedModel", info: LoadingInfo) -> tuple[str, ...]:
    """Leave out a pooler without weights where the class can be built without one, as DINO was published."""
    missing = info.get("missing_keys", ())
    if not missing or not all(key.startswith("pooler.") for key in missing):
        return ()
    if "add_pooling_layer" not in inspect.signature(type(module).__init__).parameters:
        return ()
    module.pooler, info["missing_keys"] = None, ()
    return ("The checkpoint has no weights for a pooler, so the model is opened without one.",)


def refuse_unsafe_folder(folder: Path, name: str) -> None:
    """Refuse a folder that has no safetensors weights, or files that block or lead out of it."""
    if not any(file.is_file() for file in folder.glob("*.safetensors")):
        if pickles := sorted(file.name for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES):
            raise UnsafeModel(
                f"{name} has only pickle weights ({pickles[0]}), which can run code when they are loaded. "
                "Convert them to safetensors."
            )
        raise IncompleteModel(f"{name} has no weights: there is no .safetensors file. Get the complete checkpoint.")
    for file in sorted(folder.iterdir()):
        try:
            mode = file.stat().st_mode
        except OSError:  # a link to nothing is as good as no file
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # pipes, sockets and devices block for ever
            raise IncompleteModel(f"{file.name} in {name} is not a regular file. Remove it.")
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    try:
        files = read_json_object(index, name).get("weight_map")
    except IncompleteModel as error:
        raise IncompleteModel(f"The weights of {name} could not be read: {error}") from None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise IncompleteModel(f"{name}: {index.name} has no weight_map from tensors to files.")
    for listed in sorted({str(file) for file in files.values()}):
        if Path(listed).name != listed or not (folder / listed).is_file():
            raise IncompleteModel(f"{name}: {index.name} names the file {listed[:100]!r}, which is not in the folder.")


def _read_shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, from the headers of the files."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(file for file in folder.glob("*.safetensors") if file.is_file()):
        try:
            with safe_open(file, framework="pt") as opened:
                shapes |= {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            reason = first_line_of(error)
            raise IncompleteModel(f"{file.name} in {name} is damaged ({reason}). Copy or download it again.") from None
    return shapes


def _refuse_too_large(
    builder: "ModelClass", config: "PretrainedConfig", shapes: dict[str, tuple[int, ...]], name: str
) -> None:
    """Refuse a model much larger than its files, which would be filled with random numbers until memory runs out.

    The model is built on the meta device, where a tensor has a shape but no memory.
    """
    for field, layers in list_layer_counts(config.to_dict(), name):
        if layers > max(64, len(shapes)):
            raise TooLargeModel(
                f"{name}: config.json asks for {layers:,} layers ({field}), but the weights have only {len(shapes)} "
                "tensors. One of the two files belongs to another model."
            )
    try:
        with torch.device("meta"), BuildLimit(20_000 + 10 * len(shapes)), SILENT_TRANSFORMERS:
            module = builder(config)
    except TooManyTensors:
        raise TooLargeModel(
            f"{name}: config.json describes a model of far more parts than the {len(shapes)} tensors of the weights."
        ) from None
    except Exception as error:
        raise WrongConfig(f"{name}: cannot build {builder.__name__} from config.json: {first_line_of(error)}") from None
    wanted = {key: tuple(weight.shape) for key, weight in module.named_parameters()}
    needed, present = (sum(math.prod(shape) for shape in each.values()) for each in (wanted, shapes))
    if needed > (limit := 4 * present + 1_000_000):
        key = next((key for key in wanted if wanted[key] != shapes.get(key)), "")
        shape = f"is {list(shapes[key])}" if key in shapes else "is missing"
        raise TooLargeModel(
            f"{name}: config.json describes {needed:,} parameters, but the weights have only {present:,} "
            f"(the limit is {limit:,}). "
            f"The first mismatch: {key} should be {list(wanted[key])} and {shape} in the file."
        )
    if (size := sum(buffer.nbytes for buffer in module.buffers())) > MAX_BUFFER_BYTES:
        raise TooLargeModel(
            f"{name}: config.json describes a model with {size:,} bytes of tables besides its weights; the limit is "
            f"{MAX_BUFFER_BYTES:,}."
        )


class TooManyTensors(Exception):
    pass


class BuildLimit(TorchFunctionMode):
    """Stops the building of a module after this many new tensors.

    Other functions always pass: an exception in the one that ends `no_grad` would leave gradients switched off.
    """

    CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.tensor, torch.randn, torch.rand)

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.left = tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.CREATORS:
            self.left -= 1
            if self.left < 0:
                raise TooManyTensors
        return func(*args, **(kwargs or {}))


def _refuse_incomplete(module: nn.Module, info: LoadingInfo, name: str) -> None:
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
    refuse_not_finite([*module.named_parameters(), *module.named_buffers()], f"of {name}")


def refuse_not_finite(weights: Iterable[tuple[str, Tensor]], where: str) -> None:
    for key, weight in weights:
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise IncompleteModel(f"The weight {key} {where} contains NaN or infinity.")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without loading reports and progress bars; our own errors report the problems. Its state is restored as it was.

    Its own functions would not: `get_verbosity` gives the level of the root logger where none was set, and
    `enable_progress_bar` also switches on the bars of huggingface_hub.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    logger = logging.get_logger("transformers")
    level, had_bar, hub_had_bar = logger.level, logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if had_bar:
            logging.enable_progress_bar()
        if hub_had_bar != (not are_progress_bars_disabled()):
            enable_progress_bars() if hub_had_bar else disable_progress_bars()


SILENT_TRANSFORMERS = SharedContext(silence_transformers)


def first_line_of(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__
