"""Explanations made by hand, for tests of drawing."""

import torch
from PIL import Image

from whyformer._engine.targets.target import Target
from whyformer._model.kept_image import ImageView, KeptImage
from whyformer._plain.tokens import Grid, Pieces
from whyformer.results.explanation import Explanation


def explain_text(text: str, cuts: list[tuple[int, int]], scores: list[float], **changes) -> Explanation:
    """A text cut at these spans, after a [CLS] token."""
    pieces = Pieces(
        pieces=("[CLS]", *(text[a:b] for a, b in cuts)),
        special=(True, *(False for _ in cuts)),
        padding=(False,) * (len(cuts) + 1),
        spans=(None, *cuts),
        text=text,
    )
    fields = dict(
        targets=(Target(1, "positive", 2.0, 0.9),),
        names=(text,),
        method="attcat",
        settings={"at": "input"},
        model="tiny",
        versions={"torch": "2.13"},
        class_specific=True,
        signed=True,
    )
    return Explanation(torch.tensor([[0.0, *scores]], dtype=torch.double), (pieces,), **fields | changes)


def explain_image(**changes) -> Explanation:
    """2 x 3 patches over an image of 60 x 40 pixels."""
    kept = KeptImage(Image.radial_gradient("L").resize((60, 40)).convert("RGB"), ImageView(0, 0, 60, 40, 4, 6))
    fields = dict(
        targets=(Target(1, "tabby", 2.0, 0.9),),
        names=("cat.png",),
        method="rollout",
        settings={},
        model="tiny",
        versions={},
        class_specific=False,
        signed=False,
        images=(kept,),
    )
    return Explanation(torch.arange(6.0).double()[None], (Grid(2, 3),), **fields | changes)
