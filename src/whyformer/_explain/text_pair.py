"""A pair of texts that a model reads at once, such as a reranker: one explanation of both, split into its two texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from whyformer._explain.explain import explain
from whyformer._explain.method_call import MethodLike
from whyformer._model import Model
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation
from whyformer.results.similarity import Similarity


def explain_pair(model: Model, a: Any, b: Any, method: MethodLike | None, settings: Mapping[str, Any]) -> Similarity:
    """The score of a model that reads both texts; there is no matrix, since it is not a product of two embeddings."""
    firsts, seconds = (list(texts) if isinstance(texts, list | tuple) else [texts] for texts in (a, b))
    if model.kind != "text":
        raise InputError(f'{model.name} has no tokenizer, and score="pair" needs texts. Open the model with one.')
    if len(firsts) != len(seconds):
        raise InputError(f"a has {len(firsts)} examples and b has {len(seconds)}. Pass two lists of the same length.")
    both = explain(model, list(zip(firsts, seconds, strict=True)), method, **settings)
    scores = torch.tensor([target.score for target in both.targets], dtype=torch.double)
    note = "The model reads both texts at once, so its score is not a sum over pairs of tokens and there is no matrix."
    return Similarity(
        take_text(both, firsts, seconds, 0), take_text(both, firsts, seconds, 1), scores, "pair", None, "", (note,)
    )


def take_text(e: Explanation, firsts: Sequence[str], seconds: Sequence[str], which: Literal[0, 1]) -> Explanation:
    """The part of an explanation that belongs to one text of each pair, as similarity to the other."""
    others = (firsts, seconds)[1 - which]
    targets = tuple(replace(t, label=f"similarity to {other}") for t, other in zip(e.targets, others, strict=True))
    return replace(e.segment(which), targets=targets, names=tuple((firsts, seconds)[which]))
