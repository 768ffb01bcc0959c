"""Inspect the attention of every head on one example, with its gradient and relevance."""

import torch

from whyformer._engine import TargetLike, make_recipe, record
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import InputLike
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, ModelError, NonFinite, UnsupportedModel
from whyformer.results.attention_view import AttentionView
from whyformer.show import head_figures

SITE_OF_KIND = {"attention": "attention", "gradient": "attention_grad", "relevance": "attention_relevance"}


@neutral_torch()
def inspect_attention(
    model: ModelLike, inputs: InputLike, *, target: TargetLike = None, versus: TargetLike = None
) -> AttentionView:
    """The attention of all heads on one example, with its gradient and relevance for the target."""
    model = as_model(model)
    encoded = model.encode(inputs)
    if encoded.batch != 1:
        raise InputError(f"Attention can be inspected for one example at a time, got {encoded.batch}.")
    recipe = make_recipe("chefer", "signed")
    keep = {*SITE_OF_KIND.values(), "readout", "mask", "special"}
    notes: tuple[str, ...] = ()
    try:
        capture = record(model, encoded, target=target, versus=versus, keep=keep, recipes=[recipe])
    except (ModelError, NonFinite) as error:
        keep.remove("attention_relevance")
        capture = record(model, encoded, target=target, versus=versus, keep=keep)
        notes = (f"Relevance is not available. {error}",)
    heads = [layer.size(1) for layer in capture["attention"]]
    if len(set(heads)) > 1:
        raise UnsupportedModel(
            f"The layers of {model.name} have {min(heads)} to {max(heads)} heads, and the view of all heads needs the "
            "same number at each. Use explain(..., 'raw_attention', layer=..., heads=...) for one layer."
        )
    parts = {
        kind: torch.stack([layer[0].detach().float().cpu() for layer in capture.get(site, recipe)])
        for kind, site in SITE_OF_KIND.items()
        if site in keep
    }
    return AttentionView(
        parts=parts,
        readout=capture["readout"][0].detach().float().cpu(),
        input_tokens=capture.tokens[0],
        patches=capture.patches,
        pieces=head_figures.name_positions(capture.tokens[0], capture.patches, parts["attention"].shape[-1]),
        target=capture.targets[0],
        name=encoded.names[0],
        model=model.name,
        image=encoded.images[0] if encoded.images else None,
        versions=model.describe_versions(),
        notes=(*capture.notes, *notes),
    )
