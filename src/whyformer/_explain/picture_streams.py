"""From scores of the tokens of a vision-language model to scores of the cells of its images, then of its words.

A token of an image lies where the pixels are that it is computed from. The finest tokens of an image are the cells of
its grid; a coarser one (the whole image at a low resolution, beside tiles) is spread evenly over the cells that it
covers, so the sum stays the same. Tokens of an image without pixels, such as line breaks between rows of patches, stay
with the words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from whyformer._engine import locate_image_tokens
from whyformer._model import EncodedBatch, InputLike, Model, OneInput, decode_with_spans, is_picture_record
from whyformer._plain.tokens import Grid, Pieces, Stream
from whyformer.results.explanation import Explanation

COARSER = 1.5  # times as large as the finest tokens, from which on a token is spread over several cells


def arrange_streams(explanation: Explanation, model: Model, encoded: EncodedBatch) -> Explanation:
    """The explanation of one example with images, with a stream for each image and one for the words."""
    pictures = locate_image_tokens(model, encoded).pictures
    tokens = explanation.tokens[0]
    assert pictures is not None and pictures.is_image is not None and isinstance(tokens, Pieces)
    boxes = pictures.boxes
    is_placed = pictures.is_image if boxes is None else pictures.is_image & ~boxes[:, 0].isnan()
    rows: list[Tensor] = []
    names: list[str] = []
    streams: list[Stream] = []
    for number in range(pictures.count if boxes is not None else 1):
        name = pictures.kind if pictures.count == 1 or boxes is None else f"image {number + 1}"
        if boxes is None:
            grid, own = None, torch.eye(len(tokens))[is_placed]
            names += [f"{name} {i}" for i in range(len(own))]
        else:
            grid, own = place_tokens(boxes, is_placed & (boxes[:, 0] == number))
            names += [f"{name} {row},{column}" for row in range(grid.rows) for column in range(grid.columns)]
        start = streams[-1].stop if streams else 0
        streams.append(Stream(name, start, start + len(own), grid))
        rows.append(own)
    words = (~is_placed).nonzero()[:, 0].tolist()
    rows.append(torch.eye(len(tokens))[words])
    streams.append(Stream("words", streams[-1].stop, streams[-1].stop + len(words)))
    placement = torch.cat(rows).to(explanation.scores)
    details = {n: d @ placement.T if n == "per_layer" else d for n, d in explanation.details.items()}
    return replace(
        explanation,
        scores=explanation.scores @ placement.T,
        tokens=(join_pieces(model, encoded, tokens, names, words),),
        parts=tuple(streams),
        images=encoded.images if len(encoded.images) == sum(part.grid is not None for part in streams) else (),
        details=details,
    )


def lists_pictures(inputs: InputLike, model: Model) -> TypeGuard[Sequence[OneInput]]:
    """Whether this is a list of examples with images between words: each is explained by itself."""
    if not isinstance(inputs, list | tuple) or not inputs:
        return False
    return all(
        is_picture_record(one) or (isinstance(one, Mapping) and model.reads_pictures(dict(one))) for one in inputs
    )


def place_tokens(boxes: Tensor, own: Tensor) -> tuple[Grid, Tensor]:
    """The grid of an image, and how much of each token belongs to each cell, [cell token]."""
    _, left, top, right, bottom = boxes[own].T
    size = torch.stack([bottom - top, right - left])
    finest = size.amin(-1).clamp(min=1e-6)
    is_fine = (size <= COARSER * finest[:, None]).all(0)
    centre = torch.stack([top + bottom, left + right]) / 2
    rows, columns = (count_apart(c[is_fine], float(f) / 2) for c, f in zip(centre, finest, strict=True))
    grid = Grid(rows, columns)
    placement = torch.zeros(len(grid), len(own))
    down, across = (torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns
    for i, token in enumerate(own.nonzero()[:, 0].tolist()):
        row, column = (min(int(c * n), n - 1) for c, n in zip(centre[:, i].tolist(), (rows, columns), strict=True))
        covered = ((down >= top[i]) & (down <= bottom[i]))[:, None] & ((across >= left[i]) & (across <= right[i]))
        if is_fine[i] or not bool(covered.any()):
            placement[row * columns + column, token] = 1.0
        else:
            placement[covered.flatten(), token] = 1 / int(covered.sum())
    return grid, placement


def count_apart(values: Tensor, distance: float) -> int:
    """How many values there are that lie further than this from each other."""
    return 1 + int((values.sort().values.diff() > distance).sum())


def leave_out_blanks(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """The span without the blanks before a word; one of blanks alone stays."""
    word = text[slice(*span)].lstrip(" ")
    return (span[1] - len(word), span[1]) if word else span


def join_pieces(
    model: Model, encoded: EncodedBatch, tokens: Pieces, names: Sequence[str], words: Sequence[int]
) -> Pieces:
    """The cells of the images, then the words."""
    count, text = len(names), None
    spans: list[tuple[int, int] | None] = [None] * len(words)
    if model.tokenizer is not None:
        ids, own = encoded.inputs[encoded.main][0].tolist(), [i for i in words if not tokens.special[i]]
        text, found = decode_with_spans(model.tokenizer, [ids[i] for i in own])
        covered = {i: span and leave_out_blanks(text, span) for i, span in zip(own, found, strict=True)}
        spans = [covered.get(i) for i in words]
    return Pieces(
        pieces=(*names, *(tokens.pieces[i] for i in words)),
        special=(*(False,) * count, *(tokens.special[i] for i in words)),
        padding=(*(False,) * count, *(tokens.padding[i] for i in words)),
        spans=(*(None,) * count, *spans),
        text=text,
    )
