"""Objects that hold a model and what prepares its inputs: a pipeline of transformers, a SentenceTransformer."""

import sys
from dataclasses import dataclass
from typing import Any

from torch import nn

from whyformer._model.loading.sentence_encoder import is_sentence_model, read_sentence_model
from whyformer._model.prompted import has_learned_prompt, wrap_prompted
from whyformer.errors import UnsupportedModel


@dataclass(frozen=True)
class HeldModel:
    """A module with its tokenizer or image processor, if it has one."""

    module: nn.Module
    tokenizer: Any = None
    processor: Any = None
    notes: tuple[str, ...] = ()


def read_holder(source: Any) -> HeldModel | None:
    """The model that this object holds; None if it is neither a holder nor a module."""
    if is_pipeline(source):
        return read_pipeline(source)
    if is_sentence_model(source):
        module, tokenizer, notes = read_sentence_model(source)
        return HeldModel(module, tokenizer=tokenizer, notes=notes)
    if isinstance(source, nn.Module):
        return HeldModel(wrap_prompted(source) if has_learned_prompt(source) else source)
    return None


def is_pipeline(source: Any) -> bool:
    pipelines = sys.modules.get("transformers.pipelines.base")
    return pipelines is not None and isinstance(source, pipelines.Pipeline)


def read_pipeline(pipeline: Any) -> HeldModel:
    """The model of a pipeline, with its tokenizer, or with its image processor if it reads images."""
    if not isinstance(pipeline.model, nn.Module):
        raise UnsupportedModel(f"The pipeline holds a {type(pipeline.model).__name__}, which is not an nn.Module.")
    inner = read_holder(pipeline.model)
    assert inner is not None
    if getattr(pipeline.model, "main_input_name", None) == "pixel_values":
        return HeldModel(inner.module, processor=pipeline.image_processor)
    return HeldModel(inner.module, tokenizer=pipeline.tokenizer)
