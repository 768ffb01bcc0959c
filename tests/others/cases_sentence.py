"""Models of sentence-transformers, built from configs."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from others.cases_peft import build_bert
from others.subject import Subject, make_ids
from tiny_text import wordpiece
from torch import Tensor

from whyformer._model.loading.holders import find_transformer

POOLINGS = ("mean", "cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", "max")


def build_chain(pooling: str, *more: str) -> Any:
    """A SentenceTransformer of a small BERT, a pooling and further modules."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    with tempfile.TemporaryDirectory() as folder:
        build_bert("BertModel").save_pretrained(folder)
        wordpiece().save_pretrained(folder)
        chain = [modules.Transformer(folder), modules.Pooling(32, pooling_mode=pooling)]
    torch.manual_seed(0)
    makers = {"dense": lambda: modules.Dense(32, 16), "normalize": modules.Normalize}
    return SentenceTransformer(modules=[*chain, *(makers[name]() for name in more)], device="cpu").eval()


def build_encoder(pooling: str, *more: str) -> Subject:
    encoder = build_chain(pooling, *more)

    def run(given: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return encoder(dict(given))["sentence_embedding"]

    def attend(given: Mapping[str, Tensor]) -> list[Tensor]:
        inner = copy.deepcopy(find_transformer(encoder))
        inner.set_attn_implementation("eager")
        with torch.no_grad():
            return list(inner(**given, output_attentions=True).attentions)

    return Subject(encoder, make_ids(), target=None, run=run, attend=attend)


def build_cross_encoder(labels: int) -> Subject:
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        num_labels=labels,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        BertForSequenceClassification(config).save_pretrained(folder)
        wordpiece().save_pretrained(folder)
        encoder = CrossEncoder(folder, device="cpu").eval()

    def run(given: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return encoder(dict(given))["scores"].view(2, labels)

    return Subject(encoder, make_ids(), target=0, run=run)


def build_splade() -> Subject:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    with tempfile.TemporaryDirectory() as folder:
        build_bert("BertForMaskedLM").save_pretrained(folder)
        wordpiece().save_pretrained(folder)
        encoder = SparseEncoder(modules=[MLMTransformer(folder), SpladePooling()], device="cpu").eval()

    def run(given: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return encoder(dict(given))["sentence_embedding"].to_dense()

    return Subject(encoder, make_ids(), target=None, run=run)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for pooling in POOLINGS:
        yield "sentence-transformers", f"BERT, {pooling} pooling", partial(build_encoder, pooling)
    yield "sentence-transformers", "BERT, mean, normalise", partial(build_encoder, "mean", "normalize")
    yield "sentence-transformers", "BERT, mean, dense, normalise", partial(build_encoder, "mean", "dense", "normalize")
    yield "sentence-transformers", "cross-encoder, one score", partial(build_cross_encoder, 1)
    yield "sentence-transformers", "cross-encoder, three classes", partial(build_cross_encoder, 3)
    yield "sentence-transformers", "SPLADE", build_splade
