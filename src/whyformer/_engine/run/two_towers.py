"""Models with two towers (CLIP, SigLIP): one side is explained while the embedding of the other is held constant.

An example is an image with its text. Image i of a batch belongs to text i, and its score is the model's own logit of
the two, $s \\cos(u_i, v_i) + b$. If there are more texts than images or fewer, every image is compared with all texts,
which are then its classes (and the images those of a text). The explained side is that of `EncodedBatch.main`.

Both sides can be explained, one after the other (`explain_similarity` does). Each then accounts for the whole score, so
the two must not be added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.run.forward import run_plain_returned
from whyformer._engine.run.shadow import make_shadow
from whyformer._model import (
    HELD,
    SIDES,
    Embedding,
    EncodedBatch,
    Model,
    SimilarityTo,
    as_held,
    has_two_towers,
    split_by_tower,
    unwrap,
)
from whyformer.errors import InputError, UnsupportedModel

TOLERANCE = 1e-3  # of the largest logit: our formula against the model's own logits


@dataclass(frozen=True)
class TowerAnswer:
    """The score of a model with two towers for images and texts: logits = scale <image, text> + bias."""

    vectors: Mapping[str, Tensor]  # by side, [input channel], of length 1
    scale: float
    bias: float


def hold_other_tower(model: Model, encoded: EncodedBatch, target: Any) -> tuple[Model, EncodedBatch]:
    """The explained tower as a model of its own; any other model unchanged."""
    if not has_two_towers(model.module):
        return model, encoded
    if callable(target):
        raise UnsupportedModel(
            f"{type(unwrap(model.module)).__name__} has two towers, which are explained one at a time, so a function "
            'of its output cannot be the target. Use target="logits_per_image", "logits_per_text", or '
            "explain_similarity(model, image, text)."
        )
    parts = split_by_tower(model.module, encoded.inputs)
    refuse_single_side(model, parts)
    side = "image" if encoded.main in parts["image"] else "text"
    other = SIDES[1 - SIDES.index(side)]
    answer = compare_towers(model, encoded)
    scored = SimilarityTo(
        Embedding(model.module, side),
        normalises=True,
        bias=answer.bias,
        problem="multi_label_classification" if answer.bias else "single_label_classification",
    )
    candidates = answer.vectors[other] * answer.scale
    own = len(answer.vectors[side])
    pairs = candidates[:, None] if len(candidates) == own else candidates[None].expand(own, -1, -1)
    labels = ("similarity",) if pairs.size(1) == 1 else tuple(f"{other} {n}" for n in range(pairs.size(1)))
    inputs = {**parts[side], HELD: as_held(pairs).contiguous()}
    return replace(model, module=scored, labels=labels), replace(encoded, inputs=inputs, batch=own)


def refuse_single_side(model: Model, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    if missing := [side for side in SIDES if not parts[side]]:
        raise InputError(
            f"{type(unwrap(model.module)).__name__} compares images with texts, but there is no {missing[0]}. Pass "
            'both: explain(model, {"pixel_values": ..., "input_ids": ...}), or explain_similarity(model, image, text).'
        )


def compare_towers(model: Model, encoded: EncodedBatch) -> TowerAnswer:
    """Run both towers; refuse a model whose logits are not a scaled cosine of what its towers return."""
    name = type(unwrap(model.module)).__name__
    answer = run_plain_returned(make_shadow(model.module), encoded)
    try:
        image, text, logits = answer["image_embeds"], answer["text_embeds"], answer["logits_per_image"]
    except (KeyError, TypeError):
        raise UnsupportedModel(
            f"{name} does not return image_embeds, text_embeds and logits_per_image, so its score is not known. "
            'Explain the cosine of its two embeddings: explain_similarity(model, image, text, score="cosine").'
        ) from None
    image, text, logits = (value.detach().to(model.dtype) for value in (image, text, logits))
    bias = getattr(unwrap(model.module), "logit_bias", None)
    bias = float(bias.detach().sum()) if isinstance(bias, Tensor) else 0.0
    cosines = image @ text.T if image.dim() == text.dim() == 2 else logits.new_empty(0)
    if cosines.shape == logits.shape:
        scale = float(((logits - bias) * cosines).double().sum() / cosines.double().square().sum().clamp_min(1e-30))
        if bool(((scale * cosines + bias - logits).abs() <= TOLERANCE * logits.abs().max().clamp_min(1e-6)).all()):
            unit = {"image": image, "text": text}
            return TowerAnswer({s: torch.nn.functional.normalize(v, dim=-1) for s, v in unit.items()}, scale, bias)
    raise UnsupportedModel(
        f"The logits of {name} are not a scaled cosine of image_embeds and text_embeds. Explain the cosine: "
        'explain_similarity(model, image, text, score="cosine").'
    )
