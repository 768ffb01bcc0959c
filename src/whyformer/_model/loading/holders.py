"""Objects that hold a model and what prepares its inputs: a pipeline of transformers, a SentenceTransformer.

A SentenceTransformer is a chain of modules (transformer, pooling, dense layers, normalisation) that pass on a
dictionary of features. SentenceEncoder runs the chain on ordinary inputs and returns the feature it was made for.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor, nn

from whyformer._model.model import ModelLike, PipelineLike
from whyformer._model.pictures import find_placeholder, is_joint_processor
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


def read_holder(source: ModelLike) -> OpenedModule | None:
    """The model that this object holds; None if it is neither a holder nor a module."""
    if is_pipeline(source):
        return read_pipeline(source)
    if is_sentence_model(source):
        return read_sentence_model(source)
    if isinstance(source, nn.Module):
        return OpenedModule(wrap_prompted(source) if has_learned_prompt(source) else source)
    return None


def is_pipeline(source: ModelLike) -> TypeGuard[PipelineLike]:
    pipelines = sys.modules.get("transformers.pipelines.base")
    return pipelines is not None and isinstance(source, pipelines.Pipeline)


def read_pipeline(pipeline: Any) -> OpenedModule:
    """The model of a pipeline, with its tokenizer, or with its image processor if it reads images."""
    if not isinstance(pipeline.model, nn.Module):
        raise UnsupportedModel(f"The pipeline holds a {type(pipeline.model).__name__}, which is not an nn.Module.")
    inner = read_holder(pipeline.model)
    assert inner is not None
    if find_placeholder(pipeline.model) is not None and is_joint_processor(getattr(pipeline, "processor", None)):
        return OpenedModule(inner.module, processor=pipeline.processor)
    if getattr(pipeline.model, "main_input_name", None) == "pixel_values":
        return OpenedModule(inner.module, processor=pipeline.image_processor)
    if getattr(pipeline.model, "main_input_name", None) == "input_features":
        return OpenedModule(inner.module, pipeline.tokenizer, pipeline.feature_extractor)
    return OpenedModule(inner.module, pipeline.tokenizer)


# --- models of sentence-transformers ----------------------------------------------------------------------------------


ANSWERS = ("scores", "sentence_embedding", "token_embeddings")  # the last step that an encoder has


class SentenceEncoder(nn.Module):
    """The embedding of a text, [batch channel]; of a cross-encoder the scores, of a late-interaction model a vector
    per token."""

    main_input_name = "input_ids"

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = getattr(find_transformer(encoder), "config", None)
        if type(encoder).__name__ != "CrossEncoder":
            self.num_classes = 0  # an embedding is not logits

    def get_input_embeddings(self) -> nn.Module:
        return find_transformer(self.encoder).get_input_embeddings()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        features = self.encoder({name: tensor for name, tensor in given.items() if tensor is not None})
        return next(features[name] for name in ANSWERS if name in features)


def is_sentence_model(source: ModelLike) -> TypeGuard[nn.Module]:
    """Whether this is a SentenceTransformer, CrossEncoder or another model of sentence-transformers."""
    library = sys.modules.get("sentence_transformers")
    kinds = ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder")
    return isinstance(source, tuple(kind for name in kinds if (kind := getattr(library, name, None)) is not None))


def read_sentence_model(source: nn.Module) -> OpenedModule:
    """The module to explain, its tokenizer and notes on what encode() or predict() does besides."""
    transformer = find_transformer(source)
    if transformer is None or getattr(transformer, "main_input_name", "input_ids") != "input_ids":
        raise UnsupportedModel(
            f"This {type(source).__name__} has no transformer that reads text, so its tokens cannot be explained. "
            "Open a part of it, such as model[0], and pass tensors."
        )
    tokenizer = getattr(source, "tokenizer", None)
    tokenizer = tokenizer if hasattr(tokenizer, "convert_ids_to_tokens") else None
    is_classifier = len(list(source.children())) == 1 and type(source).__name__ == "CrossEncoder"
    module = transformer if is_classifier else SentenceEncoder(source)
    prompt = (getattr(source, "prompts", None) or {}).get(getattr(source, "default_prompt_name", None))
    note = f"encode() puts the prompt {prompt!r} before every text; here it must be part of the text."
    return OpenedModule(module, tokenizer, notes=(note,) if prompt else ())


def find_transformer(source: nn.Module) -> Any:
    """The transformers model at the start of the chain; None if it starts with something else."""
    first = next(iter(source.children()), None)
    return getattr(first, "auto_model", None) or getattr(first, "model", None)
