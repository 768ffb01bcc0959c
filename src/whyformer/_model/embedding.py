r"""Modules around the user's model that turn an input into a vector, and a vector into a score.

    Embedding      input -> e, one vector per example [batch channel], or one per token [batch token channel]
    SimilarityTo   input -> the similarity of e to vectors that are held constant, [batch candidate]

What is held constant is an input of its own, `held` [batch 1 candidate token channel], so that every row of a batch has
its own and methods that rerun the model on variants of an example keep it. It has five axes because inputs with two or
three are read as sequences and those with four as images.

    cosine, dot     <e, h> or <e / |e|, h>, times a scale, plus a bias (CLIP: the scale is part of h)
    late            $\sum_i \max_j \langle q_i, d_j \rangle$ over the tokens of a query q and a document d (ColBERT)
"""

from collections.abc import Callable, Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from whyformer._model.unwrap import unwrap
from whyformer.errors import UnsupportedModel

HELD, HELD_MASK = "held", "held_mask"  # the inputs of a SimilarityTo besides those of the model
VECTOR_FIELDS = ("sentence_embedding", "image_embeds", "text_embeds", "audio_embeds")
STATE_FIELDS = ("last_hidden_state", "token_embeddings", "x_norm_patchtokens")
SIDES = ("image", "text")
Role = Literal["query", "document"]


# --- from an input to a vector ----------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """The vector that a model gives an input.

    pooling: "first", "last" or "mean" of the states, an index, "pooler" (the model's own pooler_output), "output" (the
    model returns vectors), "tokens" (the states as they are), or "image" and "text" (that tower of a model with two).
    """

    def __init__(self, module: nn.Module, pooling: str | int) -> None:
        super().__init__()
        self.encoder = unwrap(module)
        self.pooling = pooling

    def forward(self, **inputs: Tensor) -> Tensor:
        if self.pooling in SIDES:
            answer = getattr(self.encoder, f"get_{self.pooling}_features")(**inputs)
            return answer if isinstance(answer, Tensor) else _find_field(answer, ("pooler_output",))
        answer = self.encoder(**inputs)
        if self.pooling == "pooler":
            return _find_field(answer, ("pooler_output",))
        states = _find_field(answer, (*VECTOR_FIELDS, *STATE_FIELDS) if self.pooling == "output" else STATE_FIELDS)
        if self.pooling in ("output", "tokens"):
            return states
        return pool_tokens(states, self.pooling, inputs.get("attention_mask"))


def pool_tokens(states: Tensor, pooling: str | int, mask: Tensor | None) -> Tensor:
    """[batch channel] from states [batch token channel]; padding (mask 0) does not count."""
    if isinstance(pooling, int):
        return states[:, pooling]
    if mask is None:
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
    if pooling == "mean":
        weights = mask.to(states.dtype)
        return (states * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True)
    return states[torch.arange(len(states), device=states.device), find_end_token(mask, pooling)]


def find_end_token(mask: Tensor, end: str) -> Tensor:
    """[batch]: the "first" or the "last" token that is not padding."""
    places = torch.arange(mask.size(1), device=mask.device)
    if end == "first":
        return torch.where(mask.bool(), places, mask.size(1)).amin(-1)
    return torch.where(mask.bool(), places, -1).amax(-1)


def _find_field(answer: Any, names: tuple[str, ...]) -> Tensor:
    """The first of these fields of what a model returned, else its first tensor."""
    found = answer.get if isinstance(answer, Mapping) else lambda name: getattr(answer, name, None)
    for name in names:
        if isinstance(value := found(name), Tensor):
            return value
    if names == ("pooler_output",):
        raise UnsupportedModel(
            f'The model returns {type(answer).__name__} without a pooler_output. Use pooling="first" or "mean".'
        )
    if isinstance(answer, Tensor):
        return answer
    values = list(answer.values()) if isinstance(answer, Mapping) else list(answer)
    first = next((value for value in values if isinstance(value, Tensor)), None)
    if first is None:
        raise UnsupportedModel(f"The model returned {type(answer).__name__}, which contains no tensor to compare.")
    return first


# --- from a vector to a similarity ------------------------------------------------------------------------------------


class SimilarityTo(nn.Module):
    """The similarity of an input to each vector in `held`: [batch candidate].

    role: for late interaction, whether the input is the query or the document; None compares one vector with another.
    """

    def __init__(
        self, embedding: Embedding, *, normalises: bool, role: Role | None = None, bias: float = 0.0, problem: str = ""
    ) -> None:
        super().__init__()
        self.embedding, self.normalises, self.role, self.bias = embedding, normalises, role, bias
        # What the scores of several candidates mean: a softmax, sigmoids, or (regression) no probability.
        self.config = SimpleNamespace(problem_type=problem or "regression")

    def forward(self, held: Tensor, held_mask: Tensor | None = None, **inputs: Tensor) -> Tensor:
        own = self.embedding(**inputs)
        if self.normalises:
            own = normalize(own, dim=-1)
        if self.role is None:
            score = torch.einsum("bd,bcd->bc", own, held.flatten(1, 3).to(own.dtype))
            return score + self.bias if self.bias else score
        with torch.no_grad():
            partners = _choose_partners(own.detach(), inputs.get("attention_mask"), held[:, 0], held_mask, self.role)
        return torch.einsum("bid,bcid->bc", own, partners)


def _choose_partners(
    own: Tensor, own_mask: Tensor | None, held: Tensor, held_mask: Tensor | None, role: Role
) -> Tensor:
    """[batch candidate token channel]: the sum of the tokens on the other side that each own token is matched with."""
    ours = torch.ones(own.shape[:2], device=own.device) if own_mask is None else own_mask.to(own)
    theirs = torch.ones(held.shape[:3], device=own.device) if held_mask is None else held_mask[:, 0, :, :, 0].to(own)
    products = torch.einsum("bid,bcjd->bcij", own, held.to(own.dtype))
    if role == "query":
        best = products.masked_fill(theirs[:, :, None] == 0, -torch.inf).argmax(-1)  # batch candidate query
        matches = one_hot(best, held.size(2)).to(own) * ours[:, None, :, None]
        return torch.einsum("bcij,bcjd->bcid", matches, held.to(own.dtype))
    best = products.masked_fill(ours[:, None, :, None] == 0, -torch.inf).argmax(-2)  # batch candidate query
    matches = one_hot(best, own.size(1)).to(own) * theirs[..., None]
    return torch.einsum("bcji,bcjd->bcid", matches, held.to(own.dtype))


def as_held(vectors: Tensor) -> Tensor:
    """The input `held` from vectors [batch candidate channel], or [batch candidate token channel]."""
    return vectors[:, None, :, None] if vectors.dim() == 3 else vectors[:, None]


def encoder_of(module: nn.Module) -> nn.Module:
    """The user's model inside an Embedding or a SimilarityTo; any other module itself."""
    if isinstance(module, SimilarityTo):
        module = module.embedding
    return module.encoder if isinstance(module, Embedding) else module


# --- models with two towers -------------------------------------------------------------------------------------------


def has_two_towers(module: nn.Module) -> bool:
    """Whether the model embeds images and texts and compares them, as CLIP and SigLIP do."""
    inner = unwrap(module)
    if not all(callable(getattr(inner, f"get_{side}_features", None)) for side in SIDES):
        return False
    names = signature(inner.forward).parameters
    return "pixel_values" in names and "input_ids" in names and hasattr(inner, "main_input_name")


def split_by_tower(module: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The inputs of the image tower and those of the text tower."""
    inner = unwrap(module)
    takes: dict[str, Callable[..., Any]] = {side: getattr(inner, f"get_{side}_features") for side in SIDES}
    parts: dict[str, dict[str, Tensor]] = {side: {} for side in SIDES}
    for name, tensor in inputs.items():
        takers = [side for side in SIDES if name in signature(takes[side]).parameters]
        side = takers[0] if len(takers) == 1 else "image" if name.startswith("pixel") else "text"
        parts[side][name] = tensor
    return parts
