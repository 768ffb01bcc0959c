"""Hand-built models whose attention is known to decide, or known not to matter."""

import torch
from torch import Tensor, nn

import whyformer as why

KEY = 9  # the word that gets the attention


class Reader(nn.Module):
    """One query over the words. Each word has an attention score and a value, -1 to 1.

    The logits are (-s, s) for the mean value s, weighted by attention.
    """

    def __init__(self, scores: Tensor, values: Tensor) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.stack([scores, values], 1).double())

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        scores, values = self.words(input_ids).split(1, dim=-1)
        scores = scores.transpose(1, 2)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None] == 0, float("-inf"))
        mean = (scores.softmax(-1) @ values)[:, 0]
        return torch.cat([-mean, mean], 1)


def deciding() -> why.Model:
    """Nearly all weight is on the one word with value +1; all others have -1."""
    scores, values = torch.zeros(10), -torch.ones(10)
    scores[KEY], values[KEY] = 7.0, 1.0
    return why.open(Reader(scores, values))


def idle() -> why.Model:
    """Every word has the same value, so attention cannot matter."""
    return why.open(Reader(torch.linspace(-1, 1, 10), torch.full((10,), 0.3)))


def sentences(count: int = 6, length: int = 8) -> list[Tensor]:
    """Different words, with the key word once in each sentence."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        words = torch.randperm(8, generator=generator)[: length - 1] + 1
        made.append(torch.cat([words[: i % length], torch.tensor([KEY]), words[i % length :]]))
    return made
