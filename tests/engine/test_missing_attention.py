"""A hybrid's rollout says how many blocks it sees; methods that see all blocks say nothing."""

import pytest
import torch
from torch import Tensor, nn

import whyformer as why

WIDTH = 8


class Recurrent(nn.Module):
    """A block that mixes tokens without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).cumsum(1)


class Attending(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return x + (h @ h.mT).softmax(-1) @ h


class Hybrid(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(9, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def explain_notes(method: str, *blocks: nn.Module) -> tuple[str, ...]:
    torch.manual_seed(0)
    return why.explain(Hybrid(*blocks).eval(), {"input_ids": torch.tensor([[1, 2, 3]])}, method, target=1).notes


@pytest.mark.parametrize("method", ["rollout", "raw_attention", "generic_attention", "transformer_attribution"])
def test_methods_that_read_attention_say_how_many_blocks_have_it(method):
    notes = explain_notes(method, Recurrent(), Recurrent(), Attending())
    assert any(note.startswith("Only some blocks have attention, 1 of 3: methods that read") for note in notes)


@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp", "leave_one_out"])
def test_the_ways_out_that_the_note_names_see_all_blocks_and_say_nothing(method):
    assert not any("attention" in note for note in explain_notes(method, Recurrent(), Attending()))


def test_a_transformer_has_no_such_note():
    assert explain_notes("rollout", Attending(), Attending()) == ()
