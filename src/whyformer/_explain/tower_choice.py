"""Which side of a model that compares images with texts is explained: the image, unless the target is that of the text.

explain(clip, {"pixel_values": ..., "input_ids": ...})                                the image, given its text
explain(clip, {"pixel_values": ..., "input_ids": ...}, target="logits_per_text")      the text, given its image
"""

from dataclasses import replace

from whyformer._engine import TargetLike, refuse_single_side
from whyformer._model import EncodedBatch, Model, has_two_towers, split_by_tower

LOGITS = {"logits_per_image": "image", "logits_per_text": "text"}  # as transformers calls them


def choose_tower(model: Model, encoded: EncodedBatch, target: TargetLike) -> tuple[EncodedBatch, TargetLike]:
    """The inputs with the explained one as their main input, and what is left of the target."""
    if not has_two_towers(model.module) or not isinstance(target, str) or target not in LOGITS:
        return encoded, target
    parts = split_by_tower(model.module, encoded.inputs)
    refuse_single_side(model, parts)
    own = model.encode(parts[LOGITS[target]])
    return replace(own, inputs={**encoded.inputs, **own.inputs}, notes=encoded.notes), None
