"""A pair of texts that a model reads at once, such as a reranker: one explanation of both, split into its two texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from whyformer._engine import Target
from whyformer._model import EncodedBatch, InputLike, Model
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation
from whyformer.results.similarity import Similarity

Explainer: TypeAlias = Callable[[Model, EncodedBatch], Explanation]  # by the chosen method and settings


def explain_pair(model: Model, a: InputLike, b: InputLike, explain_by: Explainer) -> Similarity:
    """The score of a model that reads both texts; there is no matrix, since it is not a product of two embeddings."""
    firsts, seconds = list_inputs(a), list_inputs(b)
    if model.kind != "text":
        raise InputError(f'{model.name} has no tokenizer, and score="pair" needs texts. Open the model with one.')
    if len(firsts) != len(seconds):
        raise InputError(f"a has {len(firsts)} examples and b has {len(seconds)}. Pass two lists of the same length.")
    both = explain_by(model, model.encode(list(zip(firsts, seconds, strict=True))))
    scores = torch.tensor([target.score for target in both.targets], dtype=torch.double)
    note = "The model reads both texts at once, so its score is not a sum over pairs of tokens and there is no matrix."
    first = replace(both.segment(0), targets=name_others(both, seconds), names=tuple(firsts))
    second = replace(both.segment(1), targets=name_others(both, firsts), names=tuple(seconds))
    return Similarity(first, second, scores, "pair", None, "", (note,))


def list_inputs(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def name_others(e: Explanation, others: Sequence[str]) -> tuple[Target, ...]:
    """The targets of an explanation, named as the similarity to these."""
    return tuple(replace(t, label=f"similarity to {other}") for t, other in zip(e.targets, others, strict=True))
