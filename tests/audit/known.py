"""Models whose attention is known to decide, or known not to matter, built by hand."""

import torch
from torch import Tensor, nn

import whyformer as why

KEY = 9  # the word that attention looks for


class Reader(nn.Module):
    """One query over the words. A word has a score (how much it is attended to) and a value (what it says).

    `says[i]` is what word i says, -1 to 1; the logits are (-s, s) for the attended mean s.
    """

    def __init__(self, looks: Tensor, says: Tensor) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.stack([looks, says], 1).double())

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        looks, says = self.words(input_ids).split(1, dim=-1)
        scores = looks.transpose(1, 2)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None] == 0, float("-inf"))
        said = (scores.softmax(-1) @ says)[:, 0]
        return torch.cat([-said, said], 1)


def deciding() -> why.Model:
    """Nearly all weight lies on the one word that says +1; all others say -1."""
    looks, says = torch.zeros(10), -torch.ones(10)
    looks[KEY], says[KEY] = 7.0, 1.0
    return why.open(Reader(looks, says))


def idle() -> why.Model:
    """Every word says the same, so it cannot matter which are attended to."""
    return why.open(Reader(torch.linspace(-1, 1, 10), torch.full((10,), 0.3)))


def sentences(count: int = 6, length: int = 8) -> list[Tensor]:
    """Different words, the key once in each."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        words = torch.randperm(8, generator=generator)[: length - 1] + 1
        made.append(torch.cat([words[: i % length], torch.tensor([KEY]), words[i % length :]]))
    return made
