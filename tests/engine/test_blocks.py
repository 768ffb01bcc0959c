"""Blocks: found in every family, one per layer, each starting where the previous one ends."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._engine.record import record
from whyformer._model.model import Model
from whyformer.errors import UnsupportedModel

LAYERS = {"encoder": 2, "encoder_token_first": 2, "gpt": 2}
TOKEN_FIRST = "encoder_token_first"
ENDINGS = ("layer", "layers", "h", "albert_layers")


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The list of blocks, under the name that the family uses."""
    (found,) = (
        part
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and path.split(".")[-1] in ENDINGS
    )
    return list(found)


def first_of(given: object) -> Tensor:
    return given if isinstance(given, Tensor) else given[0]


def watch_blocks(module: nn.Module, blocks: list[nn.Module], inputs: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Input and output of each call of a block, from plain hooks."""
    seen = []

    def after(_: nn.Module, args: tuple, kwargs: dict, result: object) -> None:
        entered = args[0] if args else kwargs["hidden_states"]
        seen.append((entered.detach().clone(), first_of(result).detach().clone()))

    handles = [block.register_forward_hook(after, with_kwargs=True) for block in blocks]
    try:
        module(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def hidden_of(module: nn.Module, inputs: dict[str, Tensor], site: str = "hidden") -> list[Tensor]:
    model = Model(module, "model")
    return record(model, model.encode(inputs), keep={site})[site]


def test_hidden_states_are_those_at_the_boundaries_of_the_blocks(family):
    """[0] enters the first block, [-1] leaves the last, and the output of each block is the input of the next."""
    seen = watch_blocks(family.module, blocks_of(family.module), family.inputs)
    hidden = hidden_of(family.module, family.inputs)
    assert len(hidden) == LAYERS.get(family.name, 3) + 1 == len(seen) + 1
    for layer, (entered, left) in enumerate(seen):
        if family.name == TOKEN_FIRST:
            entered, left = entered.transpose(0, 1), left.transpose(0, 1)
        torch.testing.assert_close(hidden[layer], entered, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(hidden[layer + 1], left, rtol=1e-9, atol=1e-10)


def test_boundaries_are_in_the_order_of_the_forward(family):
    model = Model(family.module, family.name)
    capture = record(model, model.encode(family.inputs), keep={"hidden"})
    steps = list(capture.boundaries)
    assert len(steps) == len(capture["hidden"])
    assert steps == sorted(steps)


def test_albert_calls_one_module_three_times(zoo):
    albert = zoo("albert")
    assert len(blocks_of(albert.module)) == 1
    assert len(hidden_of(albert.module, albert.inputs)) == 4


# --- hand-made arrangements ------------------------------------------------------------------------------------------

WIDTH = 6
X = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Stack(nn.Module):
    """Two blocks, stored in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(WIDTH, 3)
        if how == "list":
            self.blocks = nn.ModuleList([Block(), Block()])
        elif how == "sequential":
            self.blocks = nn.Sequential(Block(), Block())
        elif how == "names":
            self.block_a, self.block_b = Block(), Block()
        elif how == "dictionary":
            self.blocks = nn.ModuleDict({"lower": Block(), "upper": Block()})
        elif how == "inside":
            self.encoder = nn.Sequential(nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH))
        else:
            self.block = Block()

    def parts(self) -> list[nn.Module]:
        found = [part for part in self.modules() if isinstance(part, Block)]
        return found

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        x = inputs_embeds
        if self.how == "inside":
            x = self.encoder(x)
        else:
            for part in self.parts() * (2 if self.how == "again" else 1):
                x = part(x)
        return self.head(x[:, 0])


@pytest.mark.parametrize(
    "how",
    [
        "list",
        "sequential",
        "inside",
        "again",
        "names",
        "dictionary",
        "single",
    ],
)
def test_blocks_are_found_however_they_are_stored(how):
    torch.manual_seed(0)
    module = Stack(how).eval()
    seen = watch_blocks(module, module.parts(), {"inputs_embeds": X})
    hidden = hidden_of(module, {"inputs_embeds": X})
    assert len(hidden) == len(seen) + 1
    for layer, (entered, left) in enumerate(seen):
        torch.testing.assert_close(hidden[layer], entered)
        torch.testing.assert_close(hidden[layer + 1], left)


@pytest.mark.parametrize("how", ["list", "again"])
def test_gradients_at_boundaries_are_those_of_autograd(how):
    torch.manual_seed(0)
    module = Stack(how).eval()
    model = Model(module, "stack")
    found = record(model, model.encode({"inputs_embeds": X}), target=1, keep={"hidden_grad"})["hidden_grad"]
    states = [X.clone().requires_grad_()]
    for part in module.parts() * (2 if how == "again" else 1):
        states.append(part(states[-1]))
    wanted = torch.autograd.grad(module.head(states[-1][:, 0])[:, 1].sum(), states)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


class Shrinking(nn.Module):
    """Attention outside any module, between projections to other widths: no module call around it keeps the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.head = nn.Linear(WIDTH, 2), nn.Linear(2, 3)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        x = self.down(inputs_embeds)[:, None]
        return self.head(F.scaled_dot_product_attention(x, x, x)[:, 0].mean(1))


def test_attention_outside_any_block_is_refused_only_if_hidden_states_are_asked_for():
    module = Shrinking().eval()
    with pytest.raises(UnsupportedModel, match=r"No block was found around the attention in the model"):
        hidden_of(module, {"inputs_embeds": X})
    assert len(hidden_of(module, {"inputs_embeds": X}, "attention")) == 1
