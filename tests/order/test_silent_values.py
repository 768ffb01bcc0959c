"""Values that do not react to a small change, such as clipped ones and codes, are found where they are.

The oracle of each model is the same model whose tokens were computed outside: attention and states are the same, so a
method that reads these must give the same scores.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whyformer as why

WIDTH = 16
METHODS = ("libragrad", "rollout", "transformer_attribution")
OFFSETS = torch.arange(4) * 5


class Reader(nn.Module):
    """Reads a series or a table, or tokens that were made of one before."""

    def __init__(self, make_tokens, *, has_class_token: bool = False):
        super().__init__()
        self.make_tokens, self.has_class_token = make_tokens, has_class_token
        self.linear, self.table = nn.Linear(3, WIDTH), nn.Embedding(40, WIDTH)
        self.weight, self.bias = nn.Parameter(torch.randn(8, WIDTH)), nn.Parameter(torch.randn(8, WIDTH))
        self.learned, self.first = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 10, WIDTH) / 10)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.make_tokens(self, x))

    def read(self, h: Tensor) -> Tensor:
        if self.has_class_token:
            h = torch.cat([self.first.expand(len(h), -1, -1), h], 1)
        h = h + self.positions[:, : h.size(1)]
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, 0] if self.has_class_token else h.mean(1))


class OfTokens(nn.Module):
    def __init__(self, reader: Reader):
        super().__init__()
        self.reader = reader

    def forward(self, h: Tensor) -> Tensor:
        return self.reader.read(h)


def make_series(batch: int) -> Tensor:
    x = torch.randn(batch, 8, 3)
    x[:, 6], x[:, 2] = torch.tensor([9.0, 9.0, -9.0]), -x[:, 2].abs()
    return x


def make_table(batch: int) -> Tensor:
    return torch.cat([torch.randint(0, 5, (batch, 4)).float(), torch.randn(batch, 3)], 1)


def make_float_ids(batch: int) -> Tensor:
    return torch.randint(1, 40, (batch, 9)).float()


def embed_numbers(m: Reader, x: Tensor) -> Tensor:
    return x[..., None] * m.weight[: x.size(1)] + m.bias[: x.size(1)]


def put_in_place(m: Reader, x: Tensor) -> Tensor:
    h = m.linear(x)
    return torch.cat([h[:, :3], m.learned.expand(len(x), 1, -1), h[:, 4:]], 1)


def is_outlier(x: Tensor) -> Tensor:
    return (x.abs() > 8).any(-1, keepdim=True)


KINDS = {
    "clipped": (lambda m, x: m.linear(x.clamp(-3, 3)), make_series),
    "rectified": (lambda m, x: m.linear(x.relu()), make_series),
    "saturated": (lambda m, x: m.linear((50 * x).tanh()), make_series),
    "log1p": (lambda m, x: m.linear(x.clamp(min=0).log1p()), make_series),
    "rounded": (lambda m, x: m.linear(x.round()), make_series),
    "bucketed": (lambda m, x: m.table(torch.bucketize(x, torch.linspace(-2, 2, 9))).sum(2), make_series),
    "a learned vector where values are missing": (
        lambda m, x: torch.where(is_outlier(x), m.learned, m.linear(x)),
        make_series,
    ),
    "a learned vector at one place": (put_in_place, make_series),
    "codes and numbers": (
        lambda m, x: torch.cat([m.table(x[:, :4].long() + OFFSETS), embed_numbers(m, x[:, 4:])], 1),
        make_table,
    ),
    "codes as rows of a matrix": (
        lambda m, x: torch.cat([F.one_hot(x[:, :4].long(), 5).float() @ m.weight[:5], embed_numbers(m, x[:, 4:])], 1),
        make_table,
    ),
    "a rectified table": (lambda m, x: embed_numbers(m, x.relu()), make_table),
    "ids as floats": (lambda m, x: m.table(x.long()), make_float_ids),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("has_class_token", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_does_not_react_has_the_scores_of_its_token(kind, has_class_token, batch):
    torch.manual_seed(0)
    make_tokens, make_input = KINDS[kind]
    module, x = Reader(make_tokens, has_class_token=has_class_token).eval(), make_input(batch)
    with torch.no_grad():
        tokens = make_tokens(module, x)
    for method in METHODS:
        inside = why.explain(module, x, method, target=1)
        outside = why.explain(OfTokens(module).eval(), tokens, method, target=1)
        torch.testing.assert_close(inside.scores, outside.scores, rtol=1e-4, atol=1e-6)


def test_methods_that_read_slopes_at_the_input_say_that_codes_have_none():
    module = Reader(KINDS["codes and numbers"][0]).eval()
    assert any("as codes" in note for note in why.explain(module, make_table(2), "gradient_x_input", target=1).notes)
    assert not any("as codes" in note for note in why.explain(module, make_table(2), "libragrad", target=1).notes)


def test_the_order_of_values_beside_silent_ones_is_still_checked():
    """Reversed by a way that labels cannot follow, with one step that only a larger change shows."""

    def reverse(m: Reader, x: Tensor) -> Tensor:
        clipped = x.clamp(-3, 3)
        backwards = torch.tensor(clipped.detach().numpy()[:, ::-1].copy())
        return m.linear(backwards + 0 * clipped.mean())

    torch.manual_seed(0)
    module, plain = Reader(reverse).eval(), Reader(lambda m, x: m.linear(x.clamp(-3, 3))).eval()
    plain.load_state_dict(module.state_dict())
    x = make_series(1)
    found, wanted = why.explain(module, x, "rollout", target=1), why.explain(plain, x.flip(1), "rollout", target=1)
    torch.testing.assert_close(found.scores, wanted.scores.flip(1))
