"""Objects that hold a model and what prepares its inputs: a pipeline of transformers, a SentenceTransformer."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from whyformer._model.loading.sentence_encoder import is_sentence_model, read_sentence_model
from whyformer._model.preprocessors import ImageProcessor, Tokenizer
from whyformer._model.prompted import has_learned_prompt, wrap_prompted
from whyformer._model.weight_files import WeightFiles
from whyformer.errors import UnsupportedModel


@dataclass(frozen=True)
class OpenedModule:
    """A module with what came with it."""

    module: nn.Module
    tokenizer: Tokenizer | None = None
    processor: ImageProcessor | None = None
    labels: Sequence[str] | None = None
    notes: tuple[str, ...] = ()
    name: str = ""
    files: WeightFiles | None = None


def read_holder(source: Any) -> OpenedModule | None:
    """The model that this object holds; None if it is neither a holder nor a module."""
    if is_pipeline(source):
        return read_pipeline(source)
    if is_sentence_model(source):
        module, tokenizer, notes = read_sentence_model(source)
        return OpenedModule(module, tokenizer, notes=notes)
    if isinstance(source, nn.Module):
        return OpenedModule(wrap_prompted(source) if has_learned_prompt(source) else source)
    return None


def is_pipeline(source: Any) -> bool:
    pipelines = sys.modules.get("transformers.pipelines.base")
    return pipelines is not None and isinstance(source, pipelines.Pipeline)


def read_pipeline(pipeline: Any) -> OpenedModule:
    """The model of a pipeline, with its tokenizer, or with its image processor if it reads images."""
    if not isinstance(pipeline.model, nn.Module):
        raise UnsupportedModel(f"The pipeline holds a {type(pipeline.model).__name__}, which is not an nn.Module.")
    inner = read_holder(pipeline.model)
    assert inner is not None
    if getattr(pipeline.model, "main_input_name", None) == "pixel_values":
        return OpenedModule(inner.module, processor=pipeline.image_processor)
    return OpenedModule(inner.module, pipeline.tokenizer)
