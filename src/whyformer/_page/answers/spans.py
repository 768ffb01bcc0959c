"""What a model that marks an answer in a text says: its likeliest spans, each with the probability of both its ends."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whyformer._engine import LONGEST_ANSWER, Answers, get_field
from whyformer._model import EncodedBatch
from whyformer._page.answers.units import shorten_number
from whyformer._plain.tokens import Pieces
from whyformer.show.visible import make_visible
from whyformer.targets import AnswerSpan

ANSWER_SPAN = "answer span"  # the task


def read_ends(returned: Any) -> Tensor:
    """[batch, 2 tokens]: the logits of starts, then those of ends."""
    ends = [get_field(returned, name) for name in ("start_logits", "end_logits")]
    return torch.cat([one for one in ends if one is not None], dim=1).detach()


class SpanReading:
    """Reads one span and the logits of all others from variants of an input; their tokens keep their places."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def read(self, encoded: EncodedBatch, returned: Any, of: Tensor) -> Answers:
        logits = read_ends(returned)
        start, end = logits.double().chunk(2, dim=1)
        score = start[:, self.first] + end[:, self.last]
        share = start.log_softmax(1)[:, self.first] + end.log_softmax(1)[:, self.last]
        return Answers(score, share.exp(), logits)


class SpanAnswers:
    """The spans of one text by what the model says of their first and last token."""

    def __init__(self, pieces: Pieces, logits: Tensor) -> None:
        self.pieces, self.logits = pieces, logits
        start, end = logits.double().cpu().chunk(2)
        is_word = [not special and not padded for special, padded in zip(pieces.special, pieces.padding, strict=True)]
        places = [i for i, known in enumerate(is_word) if known and pieces.segments[i] != 0]
        self.scores = {
            str(AnswerSpan(first, last)): (first, last, float(start[first] + end[last]))
            for n, first in enumerate(places)
            for last in places[n : n + LONGEST_ANSWER]
        }
        self.total = float(start.logsumexp(0) + end.logsumexp(0))

    def of_variant(self, logits: Tensor) -> "SpanAnswers":
        return SpanAnswers(self.pieces, logits)

    def make_reading(self, spec: str) -> SpanReading:
        return SpanReading(*self.scores[spec][:2])

    def rank(self, most: int) -> list[str]:
        return sorted(self.scores, key=lambda spec: (-self.scores[spec][2], *self.scores[spec][:2]))[:most]

    def describe(self, specs: Sequence[str]) -> list[dict[str, Any]]:
        return [self._describe(spec, *self.scores[spec]) for spec in specs]

    def _describe(self, spec: str, first: int, last: int, score: float) -> dict[str, Any]:
        spans = [span for span in self.pieces.spans[first : last + 1] if span is not None]
        text = (self.pieces.text or "")[spans[0][0] : spans[-1][1]] if spans else spec
        probability = float(torch.tensor(score - self.total).exp())
        return {
            "index": spec,
            "label": make_visible(repr(text.strip())),
            "probability": shorten_number(probability),
            "score": shorten_number(score),
        }
