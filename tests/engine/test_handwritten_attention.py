"""What looks like attention that is written out, or computed in parts, and is not; and where blocks begin."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.record import record
from whyformer._model.model import Model
from whyformer.errors import NoAttention, UnsupportedModel, WhyformerError

WIDTH, HEADS, LENGTH = 8, 2, 5
X = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def softmax(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k) @ v


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> list[Tensor]:
        return [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)]


class Written(nn.Module):
    """Layers without modules around them. `arrange(x, branch)` adds what the attention of a layer returns."""

    def __init__(self, attend: Attend = plain, arrange: Callable | None = None, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(depth)), nn.Linear(WIDTH, 3)
        self.attend, self.arrange = attend, arrange or (lambda x, branch, value: x + branch)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        self.states = [x]
        for layer in self.layers:
            q, k, v = layer.split(x)
            x = self.arrange(x, layer.out(self.attend(q, k, v).transpose(1, 2).flatten(2)), v)
            self.states.append(x)
        return self.head(x[:, 0])


def capture_of(module: nn.Module, *keep: str):
    model = Model(module, "written")
    return record(model, model.encode(X), target=1, keep=set(keep))


# --- what is not attention -------------------------------------------------------------------------------------------


def exponentials_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A kernel that is never normalised."""
    return (q @ k.mT).exp() @ v


def another_total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Divided by the total of other exponentials."""
    return (q @ k.mT).exp() / (k @ q.mT).exp().sum(-1, keepdim=True) @ v


def features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention with exponential features: no matrix of queries and keys."""
    q, k = q.exp(), k.exp()
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


@pytest.mark.parametrize("attend", [exponentials_alone, another_total, features], ids=lambda f: f.__name__)
def test_exponentials_that_are_no_softmax_are_no_attention(attend):
    with pytest.raises(NoAttention):
        capture_of(Written(attend), "attention")


def test_a_total_with_a_small_number_added_is_still_a_softmax():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = (q @ k.mT / math.sqrt(q.size(-1))).exp()
        return (e / (e.sum(-1, keepdim=True) + 1e-9)) @ v

    found, wanted = (capture_of(Written(f), "attention", "attention_grad") for f in (attend, plain))
    for name in ("attention", "attention_grad"):
        for one, other in zip(found[name], wanted[name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


# --- parts that do not make a whole ----------------------------------------------------------------------------------


def added_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The outputs of two heads are added, so what each of them adds is not known from the sum."""
    heads = [plain(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1]) for h in range(HEADS)]
    return (heads[0] + heads[1]).expand(-1, HEADS, -1, -1)


def reversed_chunks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Chunks of queries in the wrong order."""
    return torch.cat([plain(q[:, :, 3:], k, v), plain(q[:, :, :3], k, v)], 2)


def chunks_of_both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Chunks that attend only to themselves: windows."""
    return torch.cat([plain(*(t[:, :, part] for t in (q, k, v))) for part in (slice(0, 2), slice(2, LENGTH))], 2)


@pytest.mark.parametrize("attend", [added_heads, reversed_chunks, chunks_of_both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("method", ["rollout", "attcat", "grad_cam"])
def test_parts_that_are_no_self_attention_together_are_refused(attend, method):
    with pytest.raises(UnsupportedModel, match=r"is not self-attention over one sequence|do not support windows"):
        why.explain(why.open(Written(attend)), X, method, target=1)


def test_one_query_at_a_time():
    one_by_one = lambda q, k, v: torch.cat([plain(q[:, :, i : i + 1], k, v) for i in range(LENGTH)], 2)  # noqa: E731
    found, wanted = (capture_of(Written(f), "attention", "attention_grad", "readout") for f in (one_by_one, plain))
    for name in ("attention", "attention_grad"):
        for one, other in zip(found[name], wanted[name], strict=True):
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(found["readout"], wanted["readout"])


def test_chunks_of_heads_within_a_loop_over_groups():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = []
        for h in range(HEADS):
            parts = [plain(part, k[:, h : h + 1], v[:, h : h + 1]) for part in q[:, h : h + 1].split(2, 2)]
            made.append(torch.cat(parts, 2))
        return torch.cat(made, 1)

    found, wanted = (capture_of(Written(f), "attention", "attention_grad", "value") for f in (attend, plain))
    for name in ("attention", "attention_grad", "value"):
        for one, other in zip(found[name], wanted[name], strict=True):
            torch.testing.assert_close(one, other)


# --- where blocks begin ----------------------------------------------------------------------------------------------

ARRANGEMENTS = {
    "plain": lambda x, branch, value: x + branch,
    "branch first": lambda x, branch, value: branch + x,
    "beside another branch": lambda x, branch, value: branch + value.transpose(1, 2).flatten(2) + x,
    "scaled state": lambda x, branch, value: 1.5 * x + branch,
    "scaled branch": lambda x, branch, value: x + 0.1 * branch.tanh(),
    "norm of the branch": lambda x, branch, value: x + torch.nn.functional.layer_norm(branch, (WIDTH,)),
}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("way", ARRANGEMENTS)
def test_boundaries_are_the_states_that_attention_is_added_to(way, depth):
    module = Written(arrange=ARRANGEMENTS[way], depth=depth)
    capture = capture_of(module, "hidden", "hidden_grad")
    x = X.clone().requires_grad_()
    wanted = torch.autograd.grad(module(x)[:, 1].sum(), module.states)
    assert len(capture["hidden"]) == depth + 1
    for layer, state in enumerate(module.states):
        torch.testing.assert_close(capture["hidden"][layer], state.detach())
        torch.testing.assert_close(capture["hidden_grad"][layer], wanted[layer])


def test_boundaries_are_the_same_without_a_gradient():
    module = Written()
    module(X)
    for one, other in zip(capture_of(module, "hidden")["hidden"], module.states, strict=True):
        torch.testing.assert_close(one, other)


class InList(nn.Module):
    """One attention in a list of modules, its residual outside: the module is not the block."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList([Calling()]), nn.Linear(WIDTH, 3)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        self.end = x + self.layers[0](x)
        return self.head(self.end[:, 0])


class Calling(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(plain(*self.split(x)).transpose(1, 2).flatten(2))


def test_an_attention_module_is_not_taken_for_a_block():
    module = InList()
    module(X)
    hidden = capture_of(module, "hidden")["hidden"]
    torch.testing.assert_close(hidden[1], module.end.detach())


def test_no_note_says_that_a_feed_forward_module_lacks_attention():
    pairs = nn.ModuleList([nn.ModuleList([Calling(), nn.Linear(WIDTH, WIDTH)])])

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs, self.head = pairs, nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            for attention, linear in self.pairs:
                x = attention(x) + x
                x = linear(x) + x
            return self.head(x[:, 0])

    assert why.explain(why.open(Pairs().double().eval()), X, "rollout", target=1).notes == ()


# --- patches ---------------------------------------------------------------------------------------------------------


class Patches(nn.Module):
    """4 x 3 patches of 2 x 2 pixels, cut by a convolution or by reshaping."""

    def __init__(self, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.by, self.conv = by, nn.Conv2d(3, WIDTH, 2, 2)
        self.layer, self.head = Layer(), nn.Linear(WIDTH, 3)
        self.double().eval()

    def embed(self, x: Tensor) -> Tensor:
        if self.by == "convolution":
            return self.conv(x).flatten(2).transpose(1, 2)
        x = x.unflatten(3, (3, 2)).unflatten(2, (4, 2))  # batch channel row y column x
        if self.by == "columns first":
            rows = x.permute(0, 4, 2, 1, 3, 5).flatten(1, 2).flatten(2)
        else:
            rows = x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)
        return nn.functional.linear(rows, self.conv.weight.flatten(1), self.conv.bias)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.embed(pixel_values)
        x = x + self.layer.out(plain(*self.layer.split(x)).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


@pytest.mark.parametrize(
    ("by", "method"),
    [("reshaping", "rollout"), ("columns first", "rollout"), ("reshaping", "leave_one_out"), ("reshaping", "attnlrp")],
)
def test_patches_cut_by_reshaping_are_those_of_a_convolution(by, method):
    """Patches that the model takes column by column are put back in their places."""
    image = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, wanted = (why.explain(why.open(Patches(how)), image, method, target=1) for how in (by, "convolution"))
    assert (found.tokens[0].rows, found.tokens[0].columns) == (4, 3)
    if method != "attnlrp":  # pixels take another rule at a convolution of the image
        torch.testing.assert_close(found.scores, wanted.scores)


def test_what_cannot_be_cut_into_a_grid_has_no_patches():
    class Ragged(Patches):
        def embed(self, x: Tensor) -> Tensor:
            rows = x.flatten(2).transpose(1, 2).flatten(1)[:, : 12 * 12].unflatten(1, (12, 12)).roll(5, -1)
            return nn.functional.linear(rows, self.conv.weight.flatten(1), self.conv.bias)

    image = torch.randn(1, 3, 8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with pytest.raises(WhyformerError, match="patches of this image are unknown"):
        why.explain(why.open(Ragged("reshaping")), image, "leave_one_out", target=1)
