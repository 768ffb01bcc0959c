"""Layers that do not all have the same tokens: windows, stages that merge, late class tokens, parallel attention.

The reference for windows and stages is another module with the same weights: attention is dense with a mask in place of
windows, and a merged token is computed once for each of its members, so every layer has the same tokens and the usual
path of the engine applies.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import UnsupportedModel

BY_TOKEN = ("transformer_attribution", "generic_attention", "rollout", "raw_attention", "attcat", "grad_cam")
SIDE, HEADS = 4, 2  # of the grid


class Attention(nn.Module):
    """Self-attention of [group token channel], with a mask [group token token] of what is allowed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention in windows of `size` x `size` tokens, shifted by `shift`, or densely over the same pairs of tokens."""

    def __init__(self, width: int, size: int, shift: int) -> None:
        super().__init__()
        self.attention, self.size, self.shift = Attention(width), size, shift
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        moved = x.roll((-self.shift, -self.shift), (1, 2))
        count = side // self.size
        windows = moved.view(batch, count, self.size, count, self.size, width).transpose(2, 3)
        y = self.attention(windows.reshape(batch * count**2, self.size**2, width))
        y = y.view(batch, count, count, self.size, self.size, width).transpose(2, 3)
        x = x + y.reshape(batch, side, side, width).roll((self.shift, self.shift), (1, 2))
        return x + self.mlp(x)


class Dense(nn.Module):
    """The same block over [batch token channel], of the tokens that these belong to in a grid of this side."""

    def __init__(self, block: Block, side: int, of: Tensor) -> None:
        super().__init__()
        self.attention, self.mlp = block.attention, block.mlp
        rows, columns = ((index - block.shift) % side // block.size for index in (of // side, of % side))
        window = rows * side + columns
        self.register_buffer("mask", window[:, None] == window)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, self.mask)
        return x + self.mlp(x)


class Stages(nn.Module):
    """Two stages of windows with a merging of 2 x 2 tokens between them, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 8, 2, stride=2)
        self.fine = nn.ModuleList([Block(8, 2, 0), Block(8, 2, 1)])
        self.merge = nn.Linear(32, 16, bias=False)
        self.coarse = nn.ModuleList([Block(16, 2, 0), Block(16, 1, 0)])
        self.head = nn.Linear(16, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).permute(0, 2, 3, 1)
        for block in self.fine:
            x = block(x)
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        x = self.merge(x)
        for block in self.coarse:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Copies(nn.Module):
    """The same model with four identical copies of each merged token, one for each of its members."""

    def __init__(self, stages: Stages) -> None:
        super().__init__()
        self.embed, self.merge, self.head = stages.embed, stages.merge, stages.head
        token = torch.arange(SIDE**2)
        row, column = token // SIDE, token % SIDE
        coarse = row // 2 * 2 + column // 2
        self.fine = nn.ModuleList([Dense(block, SIDE, token) for block in stages.fine])
        self.coarse = nn.ModuleList([Dense(block, SIDE // 2, coarse) for block in stages.coarse])
        corner = row // 2 * 2 * SIDE + column // 2 * 2
        self.members = [corner + i * SIDE + j for i in (0, 1) for j in (0, 1)]

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).transpose(1, 2)
        for block in self.fine:
            x = block(x)
        x = self.merge(torch.cat([x[:, index] for index in self.members], -1))
        for block in self.coarse:
            x = block(x)
        return self.head(x.mean(1))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def explain(module: nn.Module, images: Tensor, method: str, **settings) -> why.Explanation:
    return why.explain(why.open(module.eval()), images, method, target=1, **settings)


@pytest.mark.parametrize("method", [method for method in BY_TOKEN if method != "grad_cam"])
def test_windows_and_stages_are_as_in_the_model_with_copies(images, method):
    stages = Stages()
    found, wanted = (explain(module, images, method) for module in (stages, Copies(stages)))
    assert found.tokens[0].rows == found.tokens[0].columns == SIDE
    assert float(wanted.scores.abs().max()) > 0
    torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", BY_TOKEN)
def test_matrices_that_are_placed_late_give_the_same(images, method, monkeypatch):
    soon = explain(Stages(), images, method).scores
    monkeypatch.setattr("whyformer._engine.capture.joined_layers.LARGE", 0)
    late = explain(Stages(), images, method).scores
    torch.testing.assert_close(late, soon, rtol=1e-5, atol=1e-9)
    with why.engine(tiles=3):
        torch.testing.assert_close(explain(Stages(), images, method).scores, soon, rtol=1e-5, atol=1e-9)


def test_only_what_keeps_zero_acts_before_a_matrix_is_placed(images, monkeypatch):
    monkeypatch.setattr("whyformer._engine.capture.joined_layers.LARGE", 0)
    model = why.open(Stages().eval())
    attention = why.record(model, model.encode(images), keep={"attention"})["attention"][0]
    whole = attention.whole()
    assert type(attention * 2) is type(attention.mean(dim=1)) is type(attention)
    assert torch.equal((attention + 1).whole(), whole + 1)
    assert torch.equal((2 * attention).clamp(min=0).mean(dim=1).whole(), (2 * whole).clamp(min=0).mean(dim=1))
    assert torch.equal(attention[:, [1]].whole(), whole[:, [1]])
    assert torch.equal((attention == 0).whole(), whole == 0)


def test_attention_and_its_gradient_are_those_of_the_copies(images):
    stages, keep = Stages(), {"attention", "attention_grad"}
    opened = [why.open(module.eval()) for module in (stages, Copies(stages))]
    found, wanted = (why.record(model, model.encode(images), target=1, keep=keep) for model in opened)
    assert len(found["attention"]) == 4
    for layer, weights in enumerate(wanted["attention"]):
        torch.testing.assert_close(found["attention"][layer], weights, rtol=1e-4, atol=1e-7)
        in_window = wanted["attention_grad"][layer] * (weights > 0)  # a model with windows has no other pairs
        torch.testing.assert_close(found["attention_grad"][layer], in_window, rtol=1e-4, atol=1e-7)


def test_grad_cam_takes_the_mean_over_pairs_in_windows(images):
    stages = Stages()
    model = why.open(Copies(stages).eval())
    dense = why.record(model, model.encode(images), target=1, keep={"attention", "attention_grad", "readout"})
    attention, readout = dense["attention"][1], dense["readout"]
    gradient = dense["attention_grad"][1] * (attention > 0)
    row, slope = (torch.einsum("bq,bhqk->bhk", readout, matrix) for matrix in (attention, gradient))
    wanted = (slope.mean(-1, keepdim=True) * row).mean(1).relu()
    found = explain(stages, images, "grad_cam", layer=1).scores
    assert float(wanted.max()) > 0
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", [*BY_TOKEN, "attnlrp", "gradient_x_input", "leave_one_out", "chance"])
def test_each_example_is_explained_as_if_it_were_alone(images, method):
    stages = Stages()
    together, alone = explain(stages, images, method), explain(stages, images[1:], method)
    torch.testing.assert_close(together.scores[1:], alone.scores, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["atman", "value_zeroing", "cat", "alti"])
def test_methods_that_need_the_same_tokens_everywhere_say_so(images, method):
    for module in (Stages(), LateClass()):
        with pytest.raises(UnsupportedModel, match="same tokens"):
            explain(module, images, method)


def test_the_doctor_says_that_tokens_differ(images):
    found = why.diagnose(why.open(Stages().eval()), images[:1], methods=["rollout"]).found
    assert "joined into one sequence" in found["layers"]


def test_relevance_is_conserved(images):
    health = explain(Stages(), images, "attnlrp", health=True).health
    assert float((health.sent - health.arrived - health.absorbed.sum(1)).abs().max()) < 1e-5


class Reduced(nn.Module):
    """Queries are all tokens, keys a smaller grid of them, as in PVT."""

    def __init__(self, side: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.reduce = nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 8, 2, stride=2)
        self.query, self.keys, self.out, self.head = (nn.Linear(8, n) for n in (8, 16, 8, 3))

    def forward(self, pixels: Tensor) -> Tensor:
        grid = self.embed(pixels)
        x, reduced = grid.flatten(2).transpose(1, 2), self.reduce(grid).flatten(2).transpose(1, 2)
        key, value = self.keys(reduced).chunk(2, -1)
        weights = (self.query(x) @ key.mT).softmax(-1)
        return self.head((x + self.out(weights @ value)).mean(1))


def test_what_a_merged_key_gets_is_divided_between_its_members(images):
    module = Reduced()
    scores = explain(module, images, "raw_attention").scores
    grid = module.embed(images)
    x, reduced = grid.flatten(2).mT, module.reduce(grid).flatten(2).mT
    weights = (module.query(x) @ module.keys(reduced).chunk(2, -1)[0].mT).softmax(-1).mean(1)
    wanted = F.interpolate(weights.view(2, 1, 2, 2), scale_factor=2.0) / 4
    torch.testing.assert_close(scores, wanted.flatten(1))


class LateClass(nn.Module):
    """Self-attention of the patches, then a class token that asks them, twice, as in CaiT."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attention = nn.Conv2d(3, 8, 2, stride=2), Attention(8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.query, self.keys = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.query.append(nn.Linear(8, 8))
            self.keys.append(nn.Linear(8, 16))
        self.head = nn.Linear(8, 3)

    def ask(self, layer: int, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([token, x], 1)
        key, value = self.keys[layer](both).chunk(2, -1)
        weights = (self.query[layer](both[:, :1]) @ key.mT).softmax(-1)
        return token + weights @ value, weights

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).transpose(1, 2)
        x = x + self.attention(x)
        token = self.token.expand(len(x), -1, -1)
        for layer in range(2):
            token, _ = self.ask(layer, token, x)
        return self.head(token[:, 0])


def test_a_class_token_that_joins_late_is_asked_in_the_last_layers(images):
    module = LateClass()
    e = explain(module, images, "rollout")
    x = module.embed(images).flatten(2).mT
    query, key, _ = module.attention.qkv(module.attention.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
    own = torch.einsum("bqhc,bkhc->bhqk", query, key).div(2).softmax(-1).mean(1)
    x = x + module.attention(x)
    token, first = module.ask(0, module.token.expand(2, -1, -1), x)
    _, second = module.ask(1, token, x)
    row = torch.zeros(2, 1, 17)
    row[..., 0] = 1
    for weights in (second, first):
        mixing = torch.eye(17).repeat(2, 1, 1)
        mixing[:, :1] = (mixing[:, :1] + weights) / 2
        row = row @ mixing
    wanted = row[..., 1:] @ (own + torch.eye(16)) / 2
    torch.testing.assert_close(e.scores, wanted[:, 0].detach(), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(e.special, row[:, 0, :1].detach(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", BY_TOKEN)
def test_the_class_token_of_one_example_does_not_depend_on_the_others(images, method):
    together, alone = explain(LateClass(), images, method), explain(LateClass(), images[1:], method)
    torch.testing.assert_close(together.scores[1:], alone.scores, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(together.special[1:], alone.special, rtol=1e-3, atol=1e-7)


class Queries(nn.Module):
    """Learned queries attend to the patches; their mean is read, as in CoCa."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attention = nn.Conv2d(3, 8, 2, stride=2), Attention(8)
        self.queries, self.pool = nn.Parameter(torch.randn(3, 8)), nn.MultiheadAttention(8, HEADS, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).transpose(1, 2)
        x = x + self.attention(x)
        pooled, _ = self.pool(self.queries.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.head(pooled.mean(1))


def test_learned_queries_are_tokens_that_the_answer_is_read_at(images):
    module = Queries()
    e = explain(module, images, "raw_attention")
    x = module.embed(images).flatten(2).mT
    x = x + module.attention(x)
    _, weights = module.pool(module.queries.expand(2, -1, -1), x, x)
    torch.testing.assert_close(e.scores, weights.mean(1).detach())
    assert e.special.shape == (2, 3)


class Parallel(nn.Module):
    """Two attentions read the same states, and both are added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 8, 2, stride=2)
        self.layers = nn.ModuleList(nn.ModuleList([Attention(8), Attention(8)]) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).transpose(1, 2)
        for one, other in self.layers:
            x = x + one(x) + other(x)
        return self.head(x.mean(1))


class Wide(nn.Module):
    """The same with one attention of twice the heads."""

    def __init__(self, parallel: Parallel) -> None:
        super().__init__()
        self.embed, self.layers, self.head = parallel.embed, parallel.layers, parallel.head

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).transpose(1, 2)
        for pair in self.layers:
            parts = [a.qkv(a.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4) for a in pair]
            y = F.scaled_dot_product_attention(*torch.cat(parts, 2)).transpose(1, 2).flatten(2)
            weight = torch.cat([a.out.weight for a in pair], 1)
            x = x + F.linear(y, weight, pair[0].out.bias + pair[1].out.bias)
        return self.head(x.mean(1))


@pytest.mark.parametrize("method", ["generic_attention", "rollout", "raw_attention", "grad_cam"])
def test_parallel_attentions_are_heads_of_one(images, method):
    parallel = Parallel()
    found, wanted = (explain(module, images, method) for module in (parallel, Wide(parallel)))
    torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-4, atol=1e-7)


class Differential(nn.Module):
    """Two attentions to the same values, subtracted: of their outputs, or of their weights."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fused, self.embed = fused, nn.Conv2d(3, 8, 2, stride=2)
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(8, 32), nn.Linear(8, 8), nn.Linear(8, 8)]) for _ in "12")
        self.factor, self.head = nn.Parameter(torch.tensor(0.3)), nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).mT
        for project, to_value, out in self.layers:
            one, first, two, second = project(x).unflatten(-1, (4, HEADS, -1)).permute(2, 0, 3, 1, 4)
            value = to_value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            if self.fused:
                attend = F.scaled_dot_product_attention
                y = attend(one, first, value) - self.factor * attend(two, second, value)
            else:
                weights, other = ((q @ k.mT / 2).softmax(-1) for q, k in ((one, first), (two, second)))
                y = (weights - self.factor * other) @ value
            x = x + out(y.transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


@pytest.mark.parametrize("method", ["generic_attention", "rollout", "raw_attention", "attcat", "grad_cam"])
def test_fused_attentions_that_are_subtracted_are_one_attention(images, method):
    found, wanted = (explain(Differential(fused=fused), images, method) for fused in (True, False))
    torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-4, atol=1e-7)


class PoolsPatches(nn.Module):
    """A learned query pools the patches, without the class token that they were processed with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attention = nn.Conv2d(3, 8, 2, stride=2), Attention(8)
        self.token, self.query = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 1, 8))
        self.pool, self.head = nn.MultiheadAttention(8, HEADS, batch_first=True), nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = (x + self.attention(x))[:, 1:]
        pooled, _ = self.pool(self.query.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.head(pooled[:, 0])


def test_a_query_that_pools_some_of_the_tokens_is_the_readout(images):
    module = PoolsPatches().eval()
    model = why.open(module)
    readout = why.record(model, model.encode(images), keep={"readout"})["readout"]
    x = torch.cat([module.token.expand(2, -1, -1), module.embed(images).flatten(2).mT], 1)
    x = (x + module.attention(x))[:, 1:]
    _, weights = module.pool(module.query.expand(2, -1, -1), x, x)
    torch.testing.assert_close(readout, F.pad(weights[:, 0], (1, 0)).detach())


class TwoResolutions(nn.Module):
    """Merged tokens attend, and those that they were merged from attend after them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.merge = nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 8, 2, stride=2)
        self.first, self.fine, self.coarse, self.head = Attention(8), Attention(8), Attention(8), nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels).flatten(2).mT
        x = x + self.first(x)
        merged = self.merge(x.mT.unflatten(2, (SIDE, SIDE))).flatten(2).mT
        merged = merged + self.coarse(merged)
        return self.head((x + self.fine(x)).mean(1) + merged.mean(1))


def test_tokens_beside_those_they_were_merged_into_are_refused(images):
    with pytest.raises(UnsupportedModel, match="two resolutions"):
        explain(TwoResolutions(), images, "rollout")
    assert explain(TwoResolutions(), images, "leave_one_out").scores.shape == (2, SIDE**2)


class Stem(nn.Module):
    """Patches from a convolution and a maximum pool of overlapping parts, which do not divide the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=3, padding=1))
        self.attention, self.head = Attention(8), nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.cut(pixels).flatten(2).mT
        return self.head((x + self.attention(x)).mean(1))


def test_a_pool_in_the_stem_cuts_the_patches(images):
    for method in ("rollout", "attnlrp", "leave_one_out"):
        e = explain(Stem(), images, method)
        assert (e.tokens[0].rows, e.tokens[0].columns) == (3, 3)
        torch.testing.assert_close(e.scores[1:], explain(Stem(), images[1:], method).scores, rtol=1e-3, atol=1e-6)


class Shifted(nn.Module):
    """Patches of the image and of copies shifted by a pixel, as in shifted patch tokenisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attention, self.head = nn.Linear(36, 8), Attention(8), nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        both = torch.cat([pixels, F.pad(pixels, (1, -1, 0, 0)), F.pad(pixels, (0, 0, -1, 1))], 1)
        patches = both.unflatten(3, (SIDE, 2)).unflatten(2, (SIDE, 2)).permute(0, 2, 4, 3, 5, 1)
        x = self.embed(patches.reshape(len(pixels), SIDE**2, 36))
        return self.head((x + self.attention(x)).mean(1))


def test_shifted_copies_have_the_patches_of_the_image(images):
    e = explain(Shifted(), images, "leave_one_out")
    assert (e.tokens[0].rows, e.tokens[0].columns) == (SIDE, SIDE)
