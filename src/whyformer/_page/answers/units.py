"""Scores for the page: rows of an image, or tokens, words and sentences of a text, with the limits of their colours."""

import math
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine import Target
from whyformer._plain.tokens import Pieces
from whyformer._plain.words import group_by_unit
from whyformer.results.explanation import Explanation
from whyformer.show.chips import make_scored_text, name_piece
from whyformer.show.overlay import choose_colour_scale
from whyformer.show.visible import make_visible
from whyformer.show.wording import ask_why

UNITS = {"token": None, "word": "words", "sentence": "sentences"}
FINEST = 256  # rows and columns of a map of pixels
DIGITS = 7


def shorten_number(value: float) -> float | None:
    """So many digits as float32 has; JSON has no NaN."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def shorten_numbers(values: Tensor) -> Any:
    """Nested lists of rounded numbers."""
    if values.dim() > 1:
        return [shorten_numbers(row) for row in values]
    return [shorten_number(value) for value in values.double().tolist()]


def join_by(explanation: Explanation, unit: str) -> Explanation:
    """The explanation by token, word or sentence."""
    name = UNITS[unit]
    return explanation if name is None else getattr(explanation, name)()


def describe_units(explanation: Explanation) -> dict[str, list[dict[str, Any]]]:
    """For each unit its text, its characters and its tokens."""
    pieces = explanation.tokens[0]
    assert isinstance(pieces, Pieces)
    found = {}
    for unit, name in UNITS.items():
        groups = [[i] for i in range(len(pieces))] if name is None else group_by_unit(pieces, name)
        joined = join_by(explanation, unit).tokens[0]
        assert isinstance(joined, Pieces)
        found[unit] = [describe_unit(joined, i, group) for i, group in enumerate(groups)]
    return found


def describe_unit(pieces: Pieces, i: int, tokens: list[int]) -> dict[str, Any]:
    start, end = pieces.spans[i] or (None, None)
    return {
        "text": make_visible(name_piece(pieces, i)),
        "start": start,
        "end": end,
        "tokens": tokens,
        "special": pieces.special[i],
        "segment": pieces.segments[i],
    }


def describe_scores(explanation: Explanation) -> dict[str, Any]:
    """The scores of one example and the limits of their colours, as the pages of the library choose them."""
    if isinstance(explanation.tokens[0], Pieces):
        by_unit = {unit: join_by(explanation, unit) for unit in UNITS}
        return {
            "scores": {unit: shorten_numbers(e.scores[0]) for unit, e in by_unit.items()},
            "pixels": None,
            "scale": {unit: describe_text_scale(e) for unit, e in by_unit.items()},
        }
    panel = explanation.panels()[0]
    scale = choose_colour_scale(panel.finest, signed=explanation.signed)
    grid_scale = choose_colour_scale(panel.grid, signed=explanation.signed)
    return {
        "scores": shorten_numbers(panel.grid),
        "pixels": None if panel.pixels is None else shorten_numbers(reduce_map(panel.pixels)),
        "scale": show_limits(*grid_scale.between, grid_scale.describe(signed=explanation.signed)),
        "pixel_scale": show_limits(*scale.between, scale.describe(signed=explanation.signed)),
    }


def describe_text_scale(explanation: Explanation) -> dict[str, Any]:
    pieces = explanation.tokens[0]
    assert isinstance(pieces, Pieces)
    text = make_scored_text(pieces, explanation.scores[0].double(), signed=explanation.signed)
    return show_limits(*text.between, "")


def show_limits(low: float, high: float, words: str) -> dict[str, Any]:
    return {"low": shorten_number(low), "high": shorten_number(high), "words": words}


def reduce_map(pixels: Tensor) -> Tensor:
    """A map of pixels with at most FINEST rows and columns: means over areas."""
    if max(pixels.shape) <= FINEST:
        return pixels
    rows, columns = (min(side, FINEST) for side in pixels.shape)
    return F.adaptive_avg_pool2d(pixels[None].to(torch.float64), (rows, columns))[0]


def show_target(target: Target) -> dict[str, Any]:
    """What is explained, as the page names it."""
    fields = asdict(target)
    for name in ("score", "probability"):
        fields[name] = None if fields[name] is None else shorten_number(fields[name])
    for name in ("label", "versus_label"):
        fields[name] = None if fields[name] is None else make_visible(fields[name])
    return fields | {"question": make_visible(ask_why(target))}
