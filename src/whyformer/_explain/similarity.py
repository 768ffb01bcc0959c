r"""Why are two inputs alike?

    s = explain_similarity(encoder, "a red car", "the crimson automobile")
    s.score; s.a; s.b; s.matrix                  # which words, and which pairs of words

The score of a pair is a function of two embeddings, $s(u, v)$. Each side is explained with the embedding of the other
constant, by any method; each explanation therefore accounts for the whole score. The matrix splits the score into
pairs of tokens, one of either side (`similarity_matrix`).

    cosine, dot         two vectors: a bi-encoder for texts, images, or one of each
    logit               a model with two towers (CLIP, SigLIP): its own logit, a scaled cosine plus a bias
    late_interaction    $\sum_i \max_j \langle u_i, v_j \rangle$ over tokens, a the query and b the document (ColBERT)
    pair                a model that reads both texts at once and returns the score itself (a reranker)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from whyformer._engine import Target, TargetLike, compare_towers, lay_out, make_shadow, run_forward, run_plain
from whyformer._explain.explain import ModelLike, as_model, explain_encoded
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._explain.similarity_matrix import compute_matrix, match_tokens, multiply_states, refuse_unknown_matrix
from whyformer._model import (
    HELD,
    HELD_MASK,
    Embedding,
    EncodedBatch,
    InputLike,
    Model,
    Role,
    SimilarityTo,
    as_held,
    has_two_towers,
    is_text_record,
    names_image_file,
    unwrap,
)
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, UnsupportedModel
from whyformer.methods._registry import Setting
from whyformer.results.explanation import Explanation
from whyformer.results.similarity import ScoreKind, Similarity

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
    return tuple(replace(t, label=f"similarity to {other!r}") for t, other in zip(e.targets, others, strict=True))


# --- a model that reads both texts at once ----------------------------------------------------------------------------


POOLINGS = ("mean", "first", "last", "pooler", "output")
POOLING_NAMES = {
    "mean": "the mean of its tokens",
    "first": "its first token",
    "last": "its last token",
    "pooler": "its pooler_output",
    "output": "the vector that the model returns",
}


@dataclass(frozen=True)
class Side:
    """One of the two inputs, and how it becomes a vector."""

    model: Model  # of the user
    encoded: EncodedBatch
    pooling: str | int

    @property
    def embedding(self) -> Embedding:
        return Embedding(self.model.module, self.pooling)

    @property
    def readout(self) -> str | int | None:
        """The token that the vector is read at, where the pooling says so."""
        if self.pooling == "tokens":
            return "mean"
        return self.pooling if self.pooling in ("mean", "first", "last") or type(self.pooling) is int else None

    def put_in_model(self, module: nn.Module, labels: tuple[str, ...] | None) -> Model:
        """The model of the user with this module in place of its own."""
        return replace(self.model, module=module, labels=labels, readout=self.readout or self.model.readout)

    @property
    def mask(self) -> Tensor | None:
        """[batch token]: not padding."""
        return self.encoded.inputs.get("attention_mask")

    def embed(self) -> Tensor:
        """[batch channel], or [batch token channel] for late interaction."""
        return run_plain(make_shadow(self.embedding), self.encoded)


@neutral_torch()
def explain_similarity(
    model: ModelLike | tuple[ModelLike, ModelLike],
    a: InputLike,
    b: InputLike,
    method: MethodLike | None = None,
    *,
    score: ScoreKind | None = None,
    pooling: str | int | None = None,
    matrix: str | None = "auto",
    **settings: Setting,
) -> Similarity:
    """How much each token or patch of two inputs counts for their similarity, and how much each pair of them.

    model: one model for both inputs, or one for each: (query encoder, document encoder).
    a, b: two texts or images, or a text and an image; lists of these are compared pair by pair.
    method: as in `explain`.
    score: "cosine", "dot", "late_interaction", "logit" or "pair"; by default "logit" for a model with two towers,
    "pair" for a classifier with one logit, else "cosine".
    pooling: how an encoder's states become one vector: "mean", "first", "last", "pooler", "output" or an index. By
    default what the model returns if it is one vector; else the mean for a text (the last token of a causal model), and
    for an image the class token if there is one.
    matrix: "attnlrp" or another class-specific method, which is run once for every channel of the embedding; "states",
    which needs no further run and compares final states, not inputs; None for no matrix. By default attnlrp.

    The length of an embedding is part of the cosine, also when one side varies. Relevance methods and the matrix hold
    it constant: they explain the product with the normalised other side.
    """
    models = tuple(as_model(one) for one in (model if isinstance(model, tuple) else (model, model)))
    if len(models) != 2:
        raise InputError(f"model must be one model, or a pair of two, got {len(models)}.", code="E_OPTION")
    kind = choose_score(models[0], score)
    if matrix is not None:
        refuse_unknown_matrix(matrix)
    if kind == "pair":
        return explain_pair(models[0], a, b, partial(explain_by, method, settings, None))
    sides = (make_side(models[0], a, kind, pooling), make_side(models[1], b, kind, pooling))
    return explain_sides(sides, kind, partial(explain_by, method, settings, None), matrix)


def explain_by(
    method: MethodLike | None, settings: Mapping[str, Setting], target: TargetLike, model: Model, encoded: EncodedBatch
) -> Explanation:
    """By a method with these settings, or by default."""
    call = None if method is None else choose_method(method, settings)
    return explain_encoded(model, encoded, call, target, None, settings)


def choose_score(model: Model, score: ScoreKind | None) -> ScoreKind:
    """The score asked for, or the one that fits the model."""
    if score is not None and score not in get_args(ScoreKind):
        raise InputError(f"score must be one of {', '.join(get_args(ScoreKind))}, got {score!r}.", code="E_OPTION")
    module = unwrap(model.module)
    if score == "logit" and not has_two_towers(module):
        raise InputError(
            f'score="logit" is that of a model with two towers such as CLIP; {type(module).__name__} has one. Use '
            '"cosine" or "dot".',
            code="E_OPTION",
        )
    if score is None:
        score = "logit" if has_two_towers(module) else "pair" if is_reranker(module) else "cosine"
    if score not in ("logit", "pair") and is_classifier(module):
        raise UnsupportedModel(
            f"{type(module).__name__} returns the scores of classes, not an embedding. Open the encoder without its "
            'head (AutoModel). If it compares two texts that it reads together, use score="pair".'
        )
    return score


def is_classifier(module: nn.Module) -> bool:
    """Judged by the name of a Hugging Face class."""
    return hasattr(module, "main_input_name") and "For" in type(module).__name__


def is_reranker(module: nn.Module) -> bool:
    """A classifier of texts with a single logit."""
    labels = getattr(getattr(module, "config", None), "num_labels", None)
    return is_classifier(module) and type(module).__name__.endswith("ForSequenceClassification") and labels == 1


# --- encoding ---------------------------------------------------------------------------------------------------------


def make_side(model: Model, inputs: InputLike, kind: ScoreKind, pooling: str | int | None) -> Side:
    """Encode one input and decide how it becomes a vector."""
    if pooling is not None and pooling not in POOLINGS and type(pooling) is not int:
        raise InputError(f"pooling must be one of {', '.join(POOLINGS)} or an index, got {pooling!r}.", code="E_OPTION")
    if has_two_towers(model.module):
        which = find_tower(inputs)
        preprocessor = model.processor if which == "image" else model.tokenizer
        reader = model if preprocessor is None else replace(model, kind=which)
        return Side(model, reader.encode(inputs), which)
    encoded = model.encode(inputs)
    if kind == "late_interaction":
        return Side(model, encoded, "tokens")
    return Side(model, encoded, pooling if pooling is not None else choose_pooling(model, encoded))


def find_tower(inputs: InputLike) -> Literal["image", "text"]:
    """Whether an input of a model with two towers is an "image" or a "text"."""
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    if isinstance(first, dict) and not is_text_record(first):
        return "text" if "input_ids" in first else "image"
    if isinstance(first, str):
        return "image" if names_image_file(first) else "text"
    if isinstance(first, Tensor):
        return "image" if first.is_floating_point() else "text"
    return "text" if is_text_record(first) else "image"


def choose_pooling(model: Model, encoded: EncodedBatch) -> str | int:
    """The model's own vector if it returns one; else how its kind is usually pooled."""
    if model.readout is not None:
        return model.readout
    whole = replace(model, module=Embedding(model.module, "output"))
    with run_forward(whole, encoded, asks_gradient=False) as run:
        if run.output.dim() == 2:
            return "output"
        if run.output.dim() != 3:
            raise UnsupportedModel(
                f"The model returns a tensor of shape {list(run.output.shape)}; an encoder returns [batch, channel] or "
                "[batch, token, channel]."
            )
        if encoded.inputs[encoded.main].dim() == 4:
            return "first" if bool(lay_out(run, encoded).special[:, 0].all()) else "mean"
        is_causal = run.output.size(1) > 1 and not run.looks_ahead
        return "last" if is_causal else "mean"


# --- explaining -------------------------------------------------------------------------------------------------------


def explain_sides(sides: tuple[Side, Side], kind: ScoreKind, explain_by: Explainer, matrix: str | None) -> Similarity:
    vectors = check_vectors(sides, tuple(side.embed() for side in sides))
    scale, bias = read_scale(sides, kind)
    normalises = kind != "dot"
    fixed = tuple(normalize(v, dim=-1) if normalises else v for v in vectors)
    explained = []
    for this, (side, role) in enumerate(zip(sides, get_args(Role), strict=True)):
        late = role if kind == "late_interaction" else None
        scored = SimilarityTo(side.embedding, normalises=normalises, role=late, bias=bias)
        explained.append(explain_side(side, sides[1 - this], scored, fixed[1 - this] * scale, explain_by))
    scores = torch.tensor([target.score for target in explained[0].targets], dtype=torch.double)
    table, made_by, notes = make_matrix(sides, fixed, kind, matrix, scale, bias)
    # How each side became a vector, if that was a choice.
    chosen = [str(side.pooling) for side in sides if side.pooling not in ("image", "text", "tokens")]
    names = dict.fromkeys(POOLING_NAMES.get(pooling, f"token {pooling}") for pooling in chosen)
    return Similarity(
        a=explained[0], b=explained[1], scores=scores, score_kind=kind, matrix=table, matrix_method=made_by,
        notes=(*(f"The embedding of an input is {name}." for name in names), *notes),
    )  # fmt: skip


def check_vectors(sides: Sequence[Side], vectors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Refuse sides that cannot be compared pair by pair."""
    counts, widths = [side.encoded.batch for side in sides], [vector.size(-1) for vector in vectors]
    if counts[0] != counts[1]:
        raise InputError(f"a has {counts[0]} examples and b has {counts[1]}. Pass two lists of the same length.")
    if widths[0] != widths[1] or vectors[0].dim() != vectors[1].dim():
        shapes = " and ".join(str(list(vector.shape[1:])) for vector in vectors)
        raise UnsupportedModel(f"The embeddings of a and b have the shapes {shapes}, so they cannot be compared.")
    for side, vector in zip(sides, vectors, strict=True):
        if vector.dim() != 2 and side.pooling != "tokens":
            raise UnsupportedModel(
                f"The model returns {list(vector.shape[1:])} for each example, not one vector. "
                f"Pass pooling=, one of: {', '.join(POOLINGS[:4])}, or an index."
            )
    return vectors[0], vectors[1]


def read_scale(sides: tuple[Side, Side], kind: ScoreKind) -> tuple[float, float]:
    """The factor and the addend of a model's own logit; (1, 0) for the other scores."""
    if kind != "logit":
        return 1.0, 0.0
    if {side.pooling for side in sides} != {"image", "text"}:
        raise InputError('score="logit" compares an image with a text. Use score="cosine" for two inputs of one kind.')
    first, second = sides
    both = replace(first.encoded, inputs={**first.encoded.inputs, **second.encoded.inputs})
    answer = compare_towers(first.model, both)
    return answer.scale, answer.bias


def explain_side(side: Side, other: Side, scored: SimilarityTo, fixed: Tensor, explain_by: Explainer) -> Explanation:
    """One input, while the embedding of the other is constant."""
    inputs = {**side.encoded.inputs, HELD: as_held(fixed[:, None])}
    if scored.role is not None and other.mask is not None:
        inputs[HELD_MASK] = other.mask.to(fixed)[:, None, None, :, None]
    e = explain_by(side.put_in_model(scored, ("similarity",)), replace(side.encoded, inputs=inputs))
    return replace(e, targets=name_others(e, other.encoded.names))


def make_matrix(
    sides: tuple[Side, Side], fixed: tuple[Tensor, ...], kind: ScoreKind, matrix: str | None, scale: float, bias: float
) -> tuple[Tensor | None, str, tuple[str, ...]]:
    """[batch token token] with "elsewhere" last on both axes, the method behind it, and notes."""
    if matrix is None:
        return None, "", ()
    if kind == "late_interaction":
        return match_tokens(fixed, tuple(side.mask for side in sides)), "the definition of the score", ()
    if matrix == "states":
        return multiply_states(sides, scale, bias, normalises=kind != "dot"), "states", ()
    embedders = [(side.put_in_model(side.embedding, None), side.encoded) for side in sides]
    return compute_matrix(embedders, matrix, scale, bias, normalises=kind != "dot")
