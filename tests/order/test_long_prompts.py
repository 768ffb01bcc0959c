"""Long prompts of hand-written language models, for which planned runs are the rule: these follow no labels."""

import pytest
import torch
from order.moving import WORDS, Block, D
from torch import Tensor, nn

import whyformer as why

LENGTH = 140


class LanguageModel(nn.Module):
    """Two causal blocks; `sorts` the examples of a batch by their first token and restores them at the end."""

    def __init__(self, sorts: bool) -> None:
        super().__init__()
        self.sorts = sorts
        self.words = nn.Embedding(WORDS, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(D, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        order = input_ids[:, 0].argsort(descending=True) if self.sorts else torch.arange(len(input_ids))
        x = self.words(input_ids[order])
        allowed = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(x)[order.argsort()]


def make_inputs(batch: int) -> dict[str, Tensor]:
    ids = torch.randint(1, WORDS, (batch, LENGTH), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = torch.arange(1, batch + 1)  # so that sorting reverses the batch
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("method", ["attnlrp", "libragrad"])
@pytest.mark.parametrize("sorts", [True, False])
def test_a_batch_of_long_prompts_is_its_examples(sorts, method):
    torch.manual_seed(0)
    model, inputs = LanguageModel(sorts).double().eval(), make_inputs(3)
    together = why.explain(model, inputs, method, target=5).scores
    alone = [
        why.explain(model, {name: given[i : i + 1] for name, given in inputs.items()}, method, target=5).scores
        for i in range(3)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-6, atol=1e-9)
