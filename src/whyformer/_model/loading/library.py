"""Models of other libraries by name: "timm:...", "torchvision:...", "open_clip:...", and folders that these save.

The library builds the architecture; the weights are read here, from a safetensors file that must fit exactly. So no
pickle is loaded, and no weight is left random. The image processor is the library's own evaluation transform.
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._model.loading import checkpoint
from whyformer._model.loading.checkpoint import first_line_of
from whyformer._model.loading.config_fields import read_json_object
from whyformer._model.loading.holders import OpenedModule
from whyformer._model.loading.image_transform import TransformProcessor
from whyformer._plain.json_value import JsonObject
from whyformer.errors import IncompleteModel, ModelError, ModelNotFound, UnsafeModel, suggest_nearest

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"


def is_library_name(text: str) -> bool:
    """Whether this is a name such as "timm:vit_tiny_patch16_224"."""
    return text.partition(":")[0] in LIBRARIES and ":" in text


def load_library_model(text: str, weights: Path | None) -> OpenedModule:
    """The model of a name such as "timm:vit_tiny_patch16_224"; without a file, its weights come from the hub."""
    library, _, name = text.partition(":")
    return LIBRARIES[library](name, weights)


def load_library_folder(folder: Path | str, name: str) -> OpenedModule | None:
    """The model in a folder or hub model that timm or open_clip has written; None if it is another library's."""
    if isinstance(folder, Path) and (folder / OPEN_CLIP_CONFIG).is_file():
        return load_open_clip_folder(folder, name)
    raw = read_json_object(checkpoint.find_file(folder, "config.json"), name)
    if isinstance(raw.get("architecture"), str) and not raw.get("model_type"):
        return load_timm_folder(folder, raw, name)
    return None


# --- timm -------------------------------------------------------------------------------------------------------------


def load_timm(name: str, weights: Path | None) -> OpenedModule:
    timm = import_library("timm")
    if not timm.is_model(name):
        raise ModelNotFound(f"timm has no model {name[:100]!r}.{suggest_nearest(name, timm.list_models())}")
    known = timm.get_pretrained_cfg(name)
    settings = known.to_dict() if known is not None else {}
    if weights is None:
        if not settings.get("hf_hub_id"):
            raise ModelNotFound(f"timm publishes no weights for {name!r}. Pass weights=, a safetensors file.")
        weights = checkpoint.fetch_from_hub(settings["hf_hub_id"], "model.safetensors")
    return build_timm(timm, name, settings, {}, weights)


def load_timm_folder(folder: Path | str, raw: JsonObject, name: str) -> OpenedModule:
    timm = import_library("timm")
    architecture = str(raw["architecture"])
    if not timm.is_model(architecture):
        raise ModelNotFound(f"{name}: timm has no model {architecture[:100]!r}, the architecture in config.json.")
    if isinstance(folder, Path):
        checkpoint.refuse_unsafe_folder(folder, name)
    settings, arguments = (find_object(raw, key) for key in ("pretrained_cfg", "model_args"))
    chosen = {key: raw[key] for key in ("num_classes", "global_pool") if key in raw} | arguments
    names = raw.get("label_names", settings.get("label_names"))
    model = build_timm(timm, architecture, settings, chosen, checkpoint.find_file(folder, "model.safetensors"))
    if isinstance(names, list) and all(isinstance(label, str) for label in names):
        return replace(model, labels=tuple(map(str, names)))
    return model


def build_timm(timm: Any, name: str, settings: JsonObject, chosen: JsonObject, weights: Path) -> OpenedModule:
    """settings: the pretrained_cfg of timm; chosen: arguments of create_model."""
    found = read_weights(weights)
    head = f"{settings.get('classifier')}.weight"
    if "num_classes" not in chosen and head in found:
        chosen = chosen | {"num_classes": len(found[head])}
    module = build_with_weights(lambda: timm.create_model(name, pretrained=False, **chosen), found, weights)
    data = timm.data.resolve_data_config({}, pretrained_cfg=dict(settings), model=module)
    transform = timm.data.create_transform(**data, is_training=False)
    return OpenedModule(module, processor=TransformProcessor(transform), labels=name_imagenet_classes(timm, module))


def name_imagenet_classes(timm: Any, module: nn.Module) -> tuple[str, ...] | None:
    """The class names of ImageNet, if timm says that the model was trained on it and it has as many classes."""
    try:
        subset = timm.data.infer_imagenet_subset(module)
        info = timm.data.ImageNetInfo(subset) if subset else None
    except (ValueError, KeyError, AttributeError):
        return None
    if info is None or info.num_classes() != getattr(module, "num_classes", None):
        return None
    return tuple(info.index_to_description(i) for i in range(info.num_classes()))


# --- torchvision ------------------------------------------------------------------------------------------------------


def load_torchvision(name: str, weights: Path | None) -> OpenedModule:
    models = import_library("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise ModelNotFound(f"torchvision has no classifier {name[:100]!r}.{suggest_nearest(name, known)}")
    published = models.get_model_weights(name).DEFAULT
    if weights is None:
        raise UnsafeModel(
            "torchvision publishes its weights as pickle files, which can run code when they are loaded. Save them as "
            "safetensors and pass weights=, or load the module yourself and pass the transforms of its weights: "
            "open(module, processor=weights.transforms())."
        )
    found = read_weights(weights)
    head = next((key for key in reversed(found) if key.endswith(".bias")), "")  # the last bias is that of the head
    classes = {"num_classes": len(found[head])} if head else {}
    module = build_with_weights(lambda: models.get_model(name, weights=None, **classes), found, weights)
    labels = published.meta.get("categories", ())
    labels = tuple(labels) if len(labels) == len(found[head]) else None
    return OpenedModule(module, processor=TransformProcessor(published.transforms()), labels=labels)


# --- open_clip --------------------------------------------------------------------------------------------------------


def load_open_clip(name: str, weights: Path | None) -> OpenedModule:
    open_clip = import_library("open_clip")
    architecture, _, tag = name.partition("/")
    known = open_clip.list_models()
    if architecture not in known:
        raise ModelNotFound(f"open_clip has no model {architecture[:100]!r}.{suggest_nearest(architecture, known)}")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if weights is None and tag not in tags:
        raise ModelNotFound(
            f"Name the weights of {architecture}: open_clip:{architecture}/TAG. "
            f"Available: {', '.join(tags) or 'none; pass weights='}."
        )
    settings = open_clip.get_pretrained_cfg(architecture, tag) if tag in tags else {}
    if weights is None:
        hub_name = settings.get("hf_hub", "").strip("/")
        if not hub_name:
            raise UnsafeModel(
                f"The weights {tag!r} of {architecture} are published as a pickle file, which can run code when it is "
                "loaded. Save them as safetensors and pass weights=."
            )
        weights = checkpoint.fetch_from_hub(hub_name, OPEN_CLIP_WEIGHTS)
    return build_open_clip(open_clip, architecture, weights, settings)


def load_open_clip_folder(folder: Path, name: str) -> OpenedModule:
    open_clip = import_library("open_clip")
    checkpoint.refuse_unsafe_folder(folder, name)
    settings = find_object(read_json_object(folder / OPEN_CLIP_CONFIG, name), "preprocess_cfg")
    return build_open_clip(open_clip, f"local-dir:{folder.resolve()}", folder / OPEN_CLIP_WEIGHTS, settings)


class ImageEncoder(nn.Module):
    """The embedding of an image, [batch channel]."""

    num_classes = 0  # an embedding is not logits

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, pixel_values: Tensor) -> Tensor:
        made = self.visual(pixel_values)
        return made[0] if isinstance(made, tuple) else made  # some also return a vector per patch


def build_open_clip(open_clip: Any, architecture: str, weights: Path, settings: JsonObject) -> OpenedModule:
    """The image encoder of a CLIP model, which turns an image into an embedding."""
    found = read_weights(weights)

    def build() -> nn.Module:
        def is_other(record: logging.LogRecord) -> bool:
            """Not the warning that the weights are random: they are loaded right after."""
            return not record.getMessage().startswith("No pretrained weights loaded")

        arguments = {"load_weights": False, "pretrained_text": False}
        logging.getLogger().addFilter(is_other)
        try:
            return open_clip.create_model(architecture, force_quick_gelu=bool(settings.get("quick_gelu")), **arguments)
        finally:
            logging.getLogger().removeFilter(is_other)

    image: Any = build_with_weights(build, found, weights).visual
    wanted = {**image.preprocess_cfg, **{key: settings[key] for key in image.preprocess_cfg if key in settings}}
    transform = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**wanted), is_train=False)
    note = "Only the image encoder of this CLIP model is opened; its answer is the embedding of the image."
    return OpenedModule(ImageEncoder(image), processor=TransformProcessor(transform), notes=(note,))


# --- shared -----------------------------------------------------------------------------------------------------------

LIBRARIES: dict[str, Callable[[str, Path | None], OpenedModule]] = {
    "timm": load_timm,
    "torchvision": load_torchvision,
    "open_clip": load_open_clip,
}


def find_object(raw: JsonObject, key: str) -> JsonObject:
    """The object in a field of a JSON file; an empty one if there is none."""
    return inner if isinstance(inner := raw.get(key), dict) else {}


def import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = {"open_clip": "open_clip_torch"}.get(name, name.partition(".")[0])
        raise ModelNotFound(
            f"{name.partition('.')[0]} is not installed, so its models cannot be opened by name. pip install {package}"
        ) from None
    except Exception as error:  # a torchvision that was built for another torch
        raise ModelError(f"{name} is installed but cannot be imported: {first_line_of(error)}") from None


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if file.suffix != ".safetensors":
        raise UnsafeModel(
            f"{file.name} is not a safetensors file; other formats can run code when they are loaded. Convert it."
        )
    if not file.is_file():
        raise IncompleteModel(f"There is no file {str(file)!r} with weights.")
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise IncompleteModel(f"{file.name} is damaged ({first_line_of(error)}). Copy or download it again.") from None
    checkpoint.refuse_not_finite(found.items(), f"in {file.name}")
    return found


def build_with_weights(build: Callable[[], nn.Module], found: Mapping[str, Tensor], file: Path) -> nn.Module:
    """The module with these weights, which must fit it exactly."""
    wanted = read_shapes(build)
    for key, shape in wanted.items():
        if key not in found:
            raise IncompleteModel(f"{key} is missing from {file.name}; the prediction would be random.")
        if tuple(found[key].shape) != shape:
            raise IncompleteModel(
                f"{key} has the shape {list(found[key].shape)} in {file.name}, but the model needs {list(shape)}."
            )
    if extra := sorted(found.keys() - wanted.keys()):
        raise IncompleteModel(f"{file.name} has weights that the model does not have: {', '.join(extra[:3])}.")
    module = build()
    module.load_state_dict(dict(found))
    return module


def read_shapes(build: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    """The shape of every weight; on the meta device where the model can be built there, so that it costs no memory."""
    try:
        try:
            with torch.device("meta"):
                module = build()
        except (NotImplementedError, RuntimeError):  # reads a number from a tensor
            module = build()
    except Exception as error:  # the libraries raise different errors
        raise IncompleteModel(f"The model cannot be built: {first_line_of(error)}", code="E_MODEL_CONFIG") from None
    return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
