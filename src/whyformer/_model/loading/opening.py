"""open(): make a Model from a folder, a name, a bundled demo model, an nn.Module or an object that holds one."""

import copy
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from whyformer._model.embedding import has_two_towers
from whyformer._model.loading import checkpoint
from whyformer._model.loading.checkpoint import first_line_of
from whyformer._model.loading.config_fields import check_processor_fields
from whyformer._model.loading.holders import OpenedModule, read_holder
from whyformer._model.loading.image_transform import ProcessorLike, as_image_processor
from whyformer._model.loading.library import OPEN_CLIP_CONFIG, is_library_name, load_library_folder, load_library_model
from whyformer._model.loading.tokenizer_growth import find_parts, read_parts, refuse_growing_tokenizer
from whyformer._model.model import InputKind, Model, ModelLike
from whyformer._model.offload import find_unloaded_weights
from whyformer._model.pictures import find_placeholder, is_joint_processor
from whyformer._model.preprocessors import ImageProcessor, Tokenizer
from whyformer._model.sound import is_for_sound
from whyformer._model.two_streams import has_two_streams, wrap_two_streams
from whyformer._model.unwrap import unwrap
from whyformer._model.weight_files import find_weight_files, name_source
from whyformer._plain.archive import FilePath
from whyformer._plain.demo_models import MISSING, find_demo_models
from whyformer._plain.failure import is_failure
from whyformer._plain.paths import find_url
from whyformer.errors import (
    IncompleteModel,
    ModelError,
    ModelNotFound,
    UnsafeModel,
    UnsupportedModel,
    quote_type,
    suggest_nearest,
)

DEMO_MODELS = find_demo_models()
TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json vocab.txt vocab.json spiece.model sentencepiece.bpe.model".split()
)
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
HUB_ADDRESS = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+(?:/(?!tree/|blob/|resolve/)[\w.-]+)?)", re.ASCII
)
MAX_HUB_NAME_LENGTH = 96
READER_FILE = "original.json"  # in the folder of a reader of Jain & Wallace's tasks
RefusedOption = partial(ModelError, code="E_OPTION")


def open(
    source: ModelLike,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: Tokenizer | None = None,
    processor: ProcessorLike | None = None,
    labels: Sequence[str] | None = None,
    readout: str | int | None = None,
    batch_axis: int | None = None,
    weights: FilePath | None = None,
) -> Model:
    """Open a model to explain.

    `source` is one of:

    * a folder with config.json and safetensors weights, as transformers, timm or open_clip save it
    * a hub name, "demo/..." for a bundled model, or the name of an architecture of another library:
      "timm:vit_tiny_patch16_224", "torchvision:vit_b_16", "open_clip:ViT-B-32/laion2b_s34b_b79k". `weights` is then a
      safetensors file to load instead of the published weights
    * any nn.Module, which is used unchanged, or an object that holds one: a pipeline of transformers, a
      SentenceTransformer, a CrossEncoder

    Without a tokenizer or image processor the model takes tensors. `processor` is a transformers image processor, a
    function from an image to a tensor or, for models that read images between words, their processor. `readout`
    ("first", "last", "mean" or an index) and `batch_axis` are needed only if they cannot be detected.
    """
    if isinstance(source, Model):
        given = (dtype, device, tokenizer, processor, labels, readout, batch_axis, weights)
        if any(option is not None for option in given):
            raise RefusedOption(
                f"{source.name} is already open. Pass these options when opening it, or open its module again."
            )
        return source
    _check_preprocessors(tokenizer, processor)
    _check_reading(readout, batch_axis)
    loads_preprocessors = tokenizer is None and processor is None
    opened = read_holder(source)
    if opened is None:
        opened = _load(_check_dtype(dtype), check_device(device), _check_name(source), weights, loads_preprocessors)
    else:
        _check_module(opened.module, dtype, device, weights)
        opened = replace(opened, name=type(unwrap(opened.module)).__name__)
    if loads_preprocessors:
        tokenizer, processor = opened.tokenizer, opened.processor
    joint = processor if is_joint_processor(processor) and find_placeholder(opened.module) is not None else None
    if joint is not None:
        tokenizer, processor = tokenizer or joint.tokenizer, joint.image_processor
    extractor = None
    if is_for_sound(processor):
        tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        extractor, processor = getattr(processor, "feature_extractor", processor), None
    tokenizer = copy.deepcopy(tokenizer)  # tokenizing with split_special_tokens changes its state
    takes_images = processor is not None and joint is None
    kind: InputKind = "image" if takes_images else "text" if tokenizer is not None else "tensors"
    if has_two_streams(opened.module):
        opened = replace(opened, module=wrap_two_streams(unwrap(opened.module)))
    axis = _find_batch_axis(unwrap(opened.module)) if batch_axis is None else batch_axis
    return Model(
        opened.module, opened.name, kind, _find_class_names(opened.module, labels or opened.labels), tokenizer,
        as_image_processor(processor), readout, axis, (*opened.notes, *_note_precision(opened.module)),
        opened.files, joint, extractor,
    )  # fmt: skip


def _load(
    dtype: torch.dtype | None, device: torch.device, name: str, weights: FilePath | None, loads_preprocessors: bool
) -> OpenedModule:
    """The module of a name or folder."""
    made: OpenedModule | None
    folder: Path | str
    if is_library_name(name):
        file = None if weights is None else Path(os.path.expanduser(os.fspath(weights)))
        made, folder = load_library_model(name, file), file or name
    else:
        folder = _find_folder(name)
        if weights is not None:
            raise RefusedOption(
                'weights can only be passed with the name of an architecture, such as "timm:vit_tiny_patch16_224".'
            )
        made = load_library_folder(folder, name)
    if made is not None:
        made = replace(made, module=made.module.to(device, dtype).eval())
    else:
        module, notes = checkpoint.load_checkpoint(folder, name, dtype, device)
        tokenizer, processor = _load_preprocessors(folder, module, name) if loads_preprocessors else (None, None)
        made = OpenedModule(module, tokenizer, processor, notes=notes)
    return replace(made, name=name_source(name), files=find_weight_files(folder, made.module))


def _note_precision(module: nn.Module) -> tuple[str, ...]:
    """A note on models in half precision, whose scores have few significant digits."""
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point() and p.dtype.itemsize == 2}
    if not kinds:
        return ()
    names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    return (f"The model computes in {names}, and so do its attention and gradients; relevance is computed in float32.",)


# --- modules ----------------------------------------------------------------------------------------------------------


def _check_module(module: nn.Module, dtype: Any, device: Any, weights: Any) -> None:
    if weights is not None:
        raise RefusedOption("weights can only be passed with the name of an architecture.")
    if dtype is not None or device is not None:
        raise UnsupportedModel(
            "An nn.Module is used unchanged: call module.to(...) before opening it instead of passing dtype or device.",
            code="E_OPTION",
        )
    inner = unwrap(module)
    for part in inner.modules():
        unwrap(part)  # refuses parts that are scripted or sharded
    kind = type(inner).__name__
    if lazy := next((name for name, weight in inner.named_parameters() if is_lazy(weight)), None):
        raise IncompleteModel(f"{lazy} of {kind} has no shape yet. Run the model once before opening it.")
    if find_unloaded_weights(inner):
        raise IncompleteModel(f"{kind} has parameters on the meta device, which have no values. Load its weights.")


def _find_batch_axis(module: nn.Module) -> int:
    """nn.TransformerEncoder takes [token batch channel] unless it was built with batch_first."""
    if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        attention = next(m for m in module.modules() if isinstance(m, nn.MultiheadAttention))
        return 0 if attention.batch_first else 1
    return 0


def _check_preprocessors(tokenizer: Any, processor: Any) -> None:
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens")):
        raise RefusedOption(
            "tokenizer must be a transformers tokenizer such as PreTrainedTokenizerFast, got "
            f"{quote_type(tokenizer)}. Load it with AutoTokenizer.from_pretrained(...)."
        )
    if processor is not None and not callable(processor):
        raise RefusedOption(
            f"processor must be a transformers image processor or a function from an image to a tensor, "
            f"got {type(processor).__name__}."
        )


def _check_reading(readout: str | int | None, batch_axis: int | None) -> None:
    if not (readout is None or readout in ("first", "last", "mean") or type(readout) is int):
        raise RefusedOption(f'readout must be "first", "last", "mean" or an index, got {readout!r}.')
    if not (batch_axis is None or (type(batch_axis) is int and batch_axis in (0, 1))):
        raise RefusedOption(f"batch_axis must be 0 or 1, got {batch_axis!r}.")


def _find_class_names(module: nn.Module, given: Sequence[str] | None) -> tuple[str, ...] | None:
    names = getattr(getattr(unwrap(module), "config", None), "id2label", None)
    names = names if isinstance(names, Mapping) and all(isinstance(number, int) for number in names) else None
    if given is None:
        return tuple(str(names[i]) for i in sorted(names)) if names else None
    if isinstance(given, str) or not isinstance(given, Sequence):
        what = "string" if isinstance(given, str) else type(given).__name__
        raise RefusedOption(f"labels must be a list with one name per class, got a {what}.")
    if names and len(given) != len(names):
        counts = f"got {len(given)}, but the model has {len(names)} classes"
        raise RefusedOption(f"labels must have one name per class: {counts}.")
    return tuple(str(label) for label in given)


# --- folders and names ------------------------------------------------------------------------------------------------


def _check_name(source: ModelLike) -> str:
    if isinstance(source, str | os.PathLike) and isinstance(text := os.fspath(source), str):
        return text
    hint = " Load these weights into their module, and pass that." if isinstance(source, Mapping) else ""
    if isinstance(getattr(source, "model", None), nn.Module):
        hint = " Pass its .model, opened with tokenizer= or processor= (a Trainer has it as .processing_class)."
    if isinstance(source, type):
        hint = f" Pass an instance, such as {source.__name__}.from_pretrained(...)."
    raise ModelNotFound(f"A model must be a folder, a name or an nn.Module, got {quote_type(source)}.{hint}")


def _find_folder(text: str) -> Path | str:
    """The model folder, or the hub name if there is no such folder."""
    if text.startswith("demo/"):
        return _find_demo_folder(text)
    path = Path(os.path.expanduser(text)) if text else Path("\0")  # Path.expanduser raises for an unknown user
    if _is_true(path.is_dir):
        return _check_folder(path, text)
    if _is_true(path.exists):
        if path.suffix in checkpoint.PICKLE_SUFFIXES:
            raise UnsafeModel(
                f"{text!r} is a pickle file, which can run code when it is loaded. Save the model as safetensors, or "
                "load it yourself and open the nn.Module."
            )
        raise ModelNotFound(f"{text!r} is a file. Pass the folder that contains config.json and the weights.")
    if (url := find_url(text)) is not None:
        hub = HUB_ADDRESS.match(url)
        instead = f"Pass the name on the hub, {hub[1]!r}." if hub else "Download the model, and pass its folder."
        raise ModelNotFound(f"{url!r} is a URL. {instead}")
    if not HUB_NAME.fullmatch(text) or len(text) > MAX_HUB_NAME_LENGTH or ".." in text:
        raise ModelNotFound(f"{text[:100]!r} is neither an existing model folder nor a valid model name.")
    return text


def _is_true(test: Callable[[], bool]) -> bool:
    """The result of a test of a path; False if it fails (name too long, no permission)."""
    try:
        return test()
    except (OSError, ValueError):
        return False


def _find_demo_folder(text: str) -> Path:
    if not DEMO_MODELS.is_dir():
        raise ModelNotFound(f"{text} is not there. {MISSING}")
    folder = DEMO_MODELS / text.removeprefix("demo/")
    if folder.parent == DEMO_MODELS and (folder / "config.json").is_file():
        return folder
    names = [f"demo/{p.name}" for p in sorted(DEMO_MODELS.iterdir()) if (p / "config.json").is_file()]
    hint = suggest_nearest(text, names)
    raise ModelNotFound(f"No demo model {text!r}.{hint} Available: {', '.join(names) or 'none'}.")


def _refuse_reader(folder: Path, text: str) -> None:
    """Readers of Jain & Wallace's tasks are no models that explain() takes: only one verb knows how to run them."""
    if _is_true(lambda: any(True for place in (READER_FILE, f"*/{READER_FILE}") for _ in folder.glob(place))):
        raise UnsupportedModel(
            f"{text!r} holds a reader of Jain & Wallace's tasks. Only `whyformer reproduce jain-wallace` runs these: "
            "the bundled ones without arguments, others with DATA and -M FOLDER."
        )


def _check_folder(path: Path, text: str) -> Path:
    if (path / "config.json").is_file() or (path / OPEN_CLIP_CONFIG).is_file():
        return path
    _refuse_reader(path, text)
    if (path / "adapter_config.json").is_file():
        raise UnsupportedModel(f"{text!r} contains only an adapter. Merge it into its base model and save the result.")
    inside = sorted(found.parent.name for found in path.glob("*/config.json"))
    hint = f" Its folder {inside[0]!r} has one." if inside else " Pass the folder with the config and the weights."
    raise ModelNotFound(f"{text!r} is not a model folder: it has no config.json.{hint}")


def _check_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise RefusedOption(f"dtype must be a floating-point dtype such as torch.float32, got {dtype!r}.")
    return dtype


def check_device(device: str | torch.device | None) -> torch.device:
    """The device, by default the CPU; one that is not there is refused."""
    try:
        wanted = torch.device(device or "cpu")
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        problem = f"The device {device!r} is not available: {first_line_of(error).rstrip('.')}."
        raise ModelError(f"{problem} Leave it out to use the CPU.", code="E_DEVICE") from None
    return wanted


# --- tokenizer and image processor ------------------------------------------------------------------------------------


def _load_preprocessors(
    folder: Path | str, module: nn.Module, name: str
) -> tuple[Tokenizer | None, ImageProcessor | None]:
    """The tokenizer or image processor that prepares the main input of the module, if there is one; both of CLIP."""
    if find_placeholder(module) is not None:
        joint = _load_preprocessor("processor", folder, name)
        if is_joint_processor(joint):
            return None, joint
    if getattr(module, "main_input_name", None) == "input_features":
        return tuple(_load_preprocessor(what, folder, name) for what in ("tokenizer", "feature extractor"))  # type: ignore[return-value]
    has_towers, is_visual = has_two_towers(module), getattr(module, "main_input_name", None) == "pixel_values"
    if is_visual and not has_towers and isinstance(folder, Path):
        channels = getattr(getattr(module, "config", None), "num_channels", None)
        for file in (folder / file for file in PROCESSOR_FILES if (folder / file).is_file()):
            check_processor_fields(file, name, channels if isinstance(channels, int) else None)
    tokenizer = _load_preprocessor("tokenizer", folder, name) if has_towers or not is_visual else None
    return tokenizer, _load_preprocessor("image processor", folder, name) if has_towers or is_visual else None


def _load_preprocessor(what: str, folder: Path | str, name: str) -> Any:
    """None if a hub model has none. In a folder that has one of the files, loading it must succeed."""
    import transformers

    files = TOKENIZER_FILES if what == "tokenizer" else PROCESSOR_FILES
    present = [folder / file for file in files if (folder / file).is_file()] if isinstance(folder, Path) else []
    if isinstance(folder, Path) and not present:
        return None
    kinds = {"tokenizer": "AutoTokenizer", "image processor": "AutoImageProcessor", "processor": "AutoProcessor"}
    kinds["feature extractor"] = "AutoFeatureExtractor"
    kind: Any = getattr(transformers, kinds[what])
    if what != "image processor" and (steps := _find_tokenizer_file(folder)) is not None:
        refuse_growing_tokenizer(read_parts(steps), name)  # before added tokens go through them
    try:
        with checkpoint.SILENT_TRANSFORMERS:
            loaded = kind.from_pretrained(folder, trust_remote_code=False)
    except BaseException as error:
        if not is_failure(error):
            raise
        if any(_has_custom_code(file) for file in present):
            reason = "needs its own Python code (auto_map), which whyformer does not run"
            raise UnsafeModel(f"The {what} in {name} {reason}.") from None
        if present:
            code = "E_MODEL_TOKENIZER" if what == "tokenizer" else "E_MODEL_CONFIG"
            problem = f"The {what} in {name} could not be loaded: {first_line_of(error)}"
            raise IncompleteModel(problem, code=code) from None
        return None
    backend = getattr(getattr(loaded, "tokenizer", loaded), "backend_tokenizer", None)
    if backend is not None:
        refuse_growing_tokenizer(find_parts(backend), name)  # a tokenizer may be made of other files
    return loaded


def _find_tokenizer_file(folder: Path | str) -> Path | None:
    """Of a folder, or of a name on the hub."""
    from transformers.utils.hub import cached_file

    if isinstance(folder, Path):
        return folder / TOKENIZER_FILES[0]
    try:
        found = cached_file(folder, TOKENIZER_FILES[0])
    except (OSError, ValueError):  # there is none, or the hub cannot be reached, which loading it will say
        return None
    return None if found is None else Path(found)


def _has_custom_code(file: Path) -> bool:
    try:
        return "auto_map" in json.loads(file.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False
