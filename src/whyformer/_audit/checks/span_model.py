r"""A model that marks an answer in a text, audited as a classifier whose classes are the spans of the text.

$$ p(i, j) = \frac{e^{s_i + e_j}}{\sum_{k \le l < k + 30} e^{s_k + e_l}}, \qquad i \le j < i + 30 $$

with s and e the logits of starts and ends. The spans are those of words of the text, not of the question, and have at
most 30 tokens (`LONGEST_ANSWER`). Every test of the audit that compares distributions over classes then applies: the
answer changes if another span becomes the likeliest. Class i * 30 + j - i is the span from token i to token j, whatever
the padding.

A document about Jain & Wallace names SQuAD; the paper has CNN and bAbI, where the answer is one of a few words.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine import LONGEST_ANSWER, get_field, make_shadow, run_plain_returned
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer.errors import UnsupportedModel

GAP = 20.0  # logits that a span outside of the text is below all others


class SpanClassifier(nn.Module):
    """Logits [batch token * LONGEST_ANSWER] of all spans."""

    special: Tensor

    def __init__(self, reader: nn.Module, special: Sequence[int], separator: int | None) -> None:
        super().__init__()
        self.reader, self.separator = reader, -1 if separator is None else separator
        self.register_buffer("special", torch.tensor(sorted(special), dtype=torch.long))
        self.config = getattr(reader, "config", None)
        self.main_input_name = "input_ids"

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        returned = self.reader(input_ids=input_ids, **{name: one for name, one in given.items() if one is not None})
        start, end = get_field(returned, "start_logits"), get_field(returned, "end_logits")
        assert start is not None and end is not None
        return add_span_logits(start, end, self.find_text(input_ids, attention_mask))

    def list_read_tokens(self, index: int) -> tuple[int, int]:
        return split_span(index)

    def find_text(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """[batch token]: the words of the second text; of the first if there is no second."""
        words = ~torch.isin(ids, self.special)
        words = words if mask is None else words & mask.bool()
        second = words & (torch.eq(ids, self.separator).cumsum(-1) > 0)
        return torch.where(second.any(-1, keepdim=True), second, words)


def add_span_logits(start: Tensor, end: Tensor, text: Tensor) -> Tensor:
    """[batch token * LONGEST_ANSWER] from [batch token] each: start + end of every span with both ends in the text."""
    tokens = torch.arange(start.size(1), device=start.device)
    last = tokens[:, None] + torch.arange(LONGEST_ANSWER, device=start.device)  # [token length]
    kept = last.clamp(max=start.size(1) - 1)
    total, allowed = start[..., None] + end[:, kept], text[..., None] & text[:, kept] & (kept == last)
    lowest = total.detach().amin((1, 2), keepdim=True) - GAP
    return torch.where(allowed, total, lowest).flatten(1)


def as_audited(model: Model, encoded: EncodedBatch) -> Model:
    """The model itself, or as a classifier of spans if it marks a span."""
    if encoded.main != "input_ids" or encoded.streams:
        return model
    returned = run_plain_returned(make_shadow(model.module), encoded)
    if any(get_field(returned, name) is None for name in ("start_logits", "end_logits")):
        return model
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.padding_side != "right":
        raise UnsupportedModel(
            f"{model.name} marks an answer in a text. audit numbers its tokens from the first, so it needs a tokenizer "
            'that pads on the right. Set tokenizer.padding_side = "right", or use judge().'
        )
    inner: Any = unwrap(model.module)
    words = {tokenizer.mask_token_id, tokenizer.unk_token_id}  # in place of a word
    module = SpanClassifier(inner, list({*tokenizer.all_special_ids} - words), tokenizer.sep_token_id)
    return replace(model, module=module.eval(), labels=None)


def marks_spans(model: Model) -> bool:
    return isinstance(model.module, SpanClassifier)


def split_span(index: int) -> tuple[int, int]:
    """The first and the last token of a class."""
    first, more = divmod(index, LONGEST_ANSWER)
    return first, first + more


def find_span_class(encoded: EncodedBatch, start: int, end: int) -> int | None:
    """The class of the tokens that cover these characters of a single text; None without one, or if it is long."""
    spans = encoded.spans[0] if encoded.spans is not None else ()
    tokens = [i for i, span in enumerate(spans) if span is not None and span[0] < end and span[1] > start]
    if not tokens or tokens[-1] - tokens[0] >= LONGEST_ANSWER:
        return None
    return tokens[0] * LONGEST_ANSWER + tokens[-1] - tokens[0]
