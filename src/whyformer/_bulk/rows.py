"""From explanations to rows: one for each item and method; an error takes the place of the numbers."""

import os
from dataclasses import replace
from io import BytesIO
from typing import TypedDict

from whyformer._bulk.items import Item
from whyformer._model import InputKind, TextPair
from whyformer._plain.failure import describe_failure
from whyformer._plain.tokens import Grid, Pieces
from whyformer._runs.parts import BulkRow
from whyformer.results.explanation import Explanation
from whyformer.show.panel_images import make_cell_image

MAP_SIDE = 512  # pixels of a saved map


class Prediction(TypedDict, total=False):
    """The columns about what the model predicts; none for a model without a head."""

    prediction: int
    prediction_name: str
    probability: float | None


def make_bulk_row(item: Item, method: str, kind: InputKind, explanation: Explanation, i: int, *, maps: bool) -> BulkRow:
    """The row of example i of an explanation, without what the model predicts."""
    target, tokens, scores = explanation.targets[i], explanation.tokens[i], explanation.scores[i].float()
    index = target.index if target.index >= 0 else None
    row = replace(make_item_row(item, method, kind), target=index, target_name=target.label)
    if isinstance(tokens, Grid):
        drawn = draw_map(explanation, i) if maps else None
        row = replace(row, rows=tokens.rows, columns=tokens.columns, map_png=drawn)
    elif isinstance(tokens, Pieces):
        real = [j for j, is_padding in enumerate(tokens.padding) if not is_padding]
        scores, spans = scores[real], [tokens.spans[j] for j in real]
        row = replace(row, tokens=tuple(tokens.pieces[j] for j in real), special=[tokens.special[j] for j in real])
        if any(spans):
            starts, ends = zip(*((-1, -1) if span is None else span for span in spans), strict=True)
            row = replace(row, starts=list(starts), ends=list(ends))
    if (hiding := explanation.find_hiding()) is not None:  # what the model says with parts hidden
        _, top, nothing = hiding.answers[i].tolist()
        row = replace(row, hidden_units=int(hiding.hidden[i]), top_hidden=top, all_hidden=nothing)
    return replace(row, scores=scores.numpy())


def make_item_row(item: Item, method: str, kind: InputKind) -> BulkRow:
    """A row with the columns that do not depend on the model."""
    content = "\n".join(item.content) if isinstance(item.content, TextPair) else item.content
    source = os.fsdecode(content) if isinstance(content, str | os.PathLike) else None
    label = None if item.label is None else str(item.label)
    return BulkRow(item.id, item.position, method, kind, source=source, label=label, content=item.mark)


def draw_map(explanation: Explanation, i: int) -> bytes:
    """The map over its image as a PNG."""
    image, _ = make_cell_image(explanation[i].panels()[0], max_side=MAP_SIDE)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def make_error_row(item: Item, method: str, kind: InputKind, error: Exception) -> BulkRow:
    """The row of an item that could not be explained by this method."""
    code, message = describe_failure(error)
    return replace(make_item_row(item, method, kind), error=code, message=message)
