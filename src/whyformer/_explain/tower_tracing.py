r"""Relevance of image tokens, traced on through the vision tower to its patches and pixels.

A relevance pass that sends slopes, $s = R / f$, and a gradient are linear in what comes from above. So the pass through
the tower is that of a score of its own: the product of the features of an image with constants,

    $\sum_{i,c} f_{ic} s_{ic}, \quad s_{ic} = R_{ic} / f_{ic}$

where $R_{ic}$ is what arrived at channel c of image token i. Its value is the relevance of all image tokens; what
arrives at the pixels differs from that by what biases, positions, the class token and activations absorb.
"""

from dataclasses import replace

import torch
from torch import Tensor

from whyformer._engine import TargetLike, locate_image_tokens, make_shadow, refuse_single_side, run_plain
from whyformer._explain.method_call import MethodCall
from whyformer._explain.sharing import explain_by_call, record_for_methods
from whyformer._model import PIXELS, EncodedBatch, Model, TowerProduct, has_two_towers, split_by_tower
from whyformer._plain.tokens import Grid, Pieces, Stream, take_pieces
from whyformer.errors import MethodError, UnsupportedModel
from whyformer.results.explanation import Explanation

NEEDS = {("input_relevance",), ("input", "input_grad")}
TOLERANCE = 1e-4
NOTE = (
    "The scores of the image are traced through the vision tower: what its biases, positions, class token and "
    "activations absorb is missing from the sum of image and words."
)


def explain_through_tower(
    call: MethodCall, model: Model, encoded: EncodedBatch, target: TargetLike, versus: TargetLike
) -> Explanation:
    """The explanation with scores of the patches that enter the vision tower in place of those that leave it."""
    refuse_untraceable(call, encoded)
    capture = record_for_methods([call], model, encoded, target, versus, extra_sites={"input"})
    e = explain_by_call(call, model, encoded, capture)
    pictures, leaf = locate_image_tokens(model, encoded).pictures, capture["input"]
    assert pictures is not None and pictures.is_image is not None
    arrived = leaf * capture["input_grad"] if call.recipe is None else capture.get("input_relevance", call.recipe)
    pixels, own = encoded.inputs[PIXELS], pictures.is_image.to(leaf.device)
    tower = replace(model, module=TowerProduct(model.module), processor=None, tokenizer=None, joint_processor=None)
    features = read_features(tower, pixels, leaf[0, own])
    slopes = torch.where(features == 0, 0, arrived[0, own].view(features.shape) / features)
    inputs = tower.encode({PIXELS: pixels, "held": slopes[:, None, None].to(pixels)})
    traced = explain_by_call(call, tower, inputs, record_for_methods([call], tower, inputs, 0, None))
    return join_traced(e, traced)


def refuse_untraceable(call: MethodCall, encoded: EncodedBatch) -> None:
    sends_slopes = call.recipe is None or call.recipe.sends == "slope"
    if encoded.pictures is None or encoded.batch > 1:
        raise MethodError("through_tower=True is for one example with images between words.", code="E_OPTION")
    if call.needs not in NEEDS or not sends_slopes:
        raise MethodError(
            f"{call.method.name} cannot be traced through the vision tower. Use attnlrp, cp_lrp, lrp_epsilon, "
            "lrp_gamma or gradient_x_input.",
            code="E_OPTION",
        )
    if encoded.inputs[PIXELS].dim() != 4:
        raise UnsupportedModel(
            "Tracing through the vision tower needs pixel values [image, channel, height, width], not tiles or packed "
            "patches. Leave through_tower= out."
        )


def read_features(tower: Model, pixels: Tensor, leaf: Tensor) -> Tensor:
    """[image token channel]: what the tower makes of each image; refused if that is not what the model reads."""
    shadow = make_shadow(tower.module)
    assert isinstance(shadow, TowerProduct)
    ones = leaf.new_ones(len(pixels), 1, 1, len(leaf) // len(pixels), leaf.size(-1))
    encoded = tower.encode({PIXELS: pixels, "held": ones.to(pixels)})
    run_plain(shadow, encoded)
    features = shadow.last.view(len(pixels), -1, leaf.size(-1))
    read = leaf.view(features.shape)
    scale = (read * features).sum() / features.square().sum()
    if not torch.allclose(read, scale * features, rtol=TOLERANCE, atol=TOLERANCE * float(read.abs().max())):
        raise UnsupportedModel("What get_image_features() returns is not what this model reads in place of the image.")
    return features.to(leaf)


def join_traced(e: Explanation, traced: Explanation) -> Explanation:
    """The words of one, and the patches of the other, whose examples are the images."""
    words, grid, tokens = e.streams["words"], traced.tokens[0], e.tokens[0]
    assert isinstance(grid, Grid) and isinstance(tokens, Pieces)
    names = [part.name for part in e.parts[:-1]]
    cells = [f"{name} {row},{column}" for name in names for row in range(grid.rows) for column in range(grid.columns)]
    own = take_pieces(tokens, range(words.start, words.stop))
    count = len(cells)
    pieces = replace(
        own,
        pieces=(*cells, *own.pieces),
        special=(False,) * count + own.special,
        padding=(False,) * count + own.padding,
        spans=(None,) * count + own.spans,
    )
    ends = [number * len(grid) for number in range(len(names) + 1)]
    streams = [Stream(name, ends[i], ends[i + 1], grid) for i, name in enumerate(names)]
    details = dict(e.details) if traced.pixels is None else {**e.details, "pixels": traced.pixels[None]}
    return replace(
        e,
        scores=torch.cat([traced.scores.reshape(1, -1).to(e.scores), e.scores[:, words]], dim=1),
        tokens=(pieces,),
        parts=(*streams, Stream("words", count, len(pieces))),
        details=details,
        notes=(*e.notes, NOTE),
        settings={**e.settings, "through_tower": True},
    )


# --- models that compare images with texts ----------------------------------------------------------------------------

LOGITS = {"logits_per_image": "image", "logits_per_text": "text"}  # as transformers calls them


def choose_tower(model: Model, encoded: EncodedBatch, target: TargetLike) -> tuple[EncodedBatch, TargetLike]:
    """The inputs with the explained one as their main input, and what is left of the target."""
    if not has_two_towers(model.module) or not isinstance(target, str) or target not in LOGITS:
        return encoded, target
    parts = split_by_tower(model.module, encoded.inputs)
    refuse_single_side(model, parts)
    own = model.encode(parts[LOGITS[target]])
    return replace(own, inputs={**encoded.inputs, **own.inputs}, notes=encoded.notes), None
