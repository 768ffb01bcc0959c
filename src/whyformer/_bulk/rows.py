"""From explanations to rows: one for each item and method; an error takes the place of the numbers."""

import os
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from whyformer._bulk.items import Item
from whyformer._bulk.parts import BulkRow
from whyformer._model import InputKind, TextPair
from whyformer._plain.failure import describe_failure
from whyformer._plain.tokens import Grid, Pieces
from whyformer.results.explanation import Explanation
from whyformer.show.panel_images import make_cell_image

MAP_SIDE = 512  # pixels of a saved map


def make_row(
    item: Item, method: str, kind: InputKind, explanation: Explanation, i: int, prediction: dict[str, Any], maps: bool
) -> BulkRow:
    """The row of example i of an explanation."""
    target, tokens = explanation.targets[i], explanation.tokens[i]
    scores = explanation.scores[i].float()
    facts: dict[str, Any] = {}
    if isinstance(tokens, Grid):
        facts |= {"rows": tokens.rows, "columns": tokens.columns}
        if maps:
            facts["map_png"] = draw_map(explanation, i)
    elif isinstance(tokens, Pieces):
        real = [place for place, is_padding in enumerate(tokens.padding) if not is_padding]
        scores = scores[real]
        facts |= describe_pieces(tokens, real)
    return BulkRow(
        **describe_item(item, method, kind),
        **prediction,
        target=target.index if target.index >= 0 else None,
        target_name=target.label,
        scores=scores.numpy(),
        **facts,
    )


def describe_item(item: Item, method: str, kind: InputKind) -> dict[str, Any]:
    """The columns that do not depend on the model."""
    content = "\n".join(item.content) if isinstance(item.content, TextPair) else item.content
    is_named = isinstance(content, str | os.PathLike)
    return {
        "id": item.id,
        "position": item.position,
        "method": method,
        "kind": kind,
        "source": os.fsdecode(content) if is_named else None,
        "label": None if item.label is None else str(item.label),
    }


def describe_pieces(pieces: Pieces, real: Sequence[int]) -> dict[str, Any]:
    """Tokens without padding, and where they are in the text."""
    spans = [pieces.spans[place] for place in real]
    facts: dict[str, Any] = {
        "tokens": tuple(pieces.pieces[place] for place in real),
        "special": [pieces.special[place] for place in real],
    }
    if any(span is not None for span in spans):
        facts["starts"] = [-1 if span is None else span[0] for span in spans]
        facts["ends"] = [-1 if span is None else span[1] for span in spans]
    return facts


def draw_map(explanation: Explanation, i: int) -> bytes:
    """The map over its image as a PNG."""
    image, _ = make_cell_image(explanation[i].panels()[0], max_side=MAP_SIDE)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def make_error_row(item: Item, method: str, kind: InputKind, error: Exception) -> BulkRow:
    """The row of an item that could not be explained by this method."""
    code, message = describe_failure(error)
    return BulkRow(**describe_item(item, method, kind), error=code, message=message)
