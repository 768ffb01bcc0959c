"""Interception: every way to write an operation is recognised, and what interception cannot see is refused.

Small models of one or two blocks, in float64. Different ways of writing the same operation must give the same values,
gradients and relevance.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._engine.capture.capture import Capture
from whyformer._engine.capture.sites import SITES
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import CHEFER, CHEFER_BASELINE, RECIPES
from whyformer._engine.tracing.composites import multi_head_attention
from whyformer._explain.explain import explain
from whyformer._model.model import Model
from whyformer.errors import NoAttention, UnknownOperation, UnsupportedModel

WIDTH, HEADS, LENGTH, BATCH = 8, 2, 5, 3
Way = Callable[..., Tensor]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fill_weights(module: nn.Module) -> nn.Module:
    """The module with weights that depend only on their shapes."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(0.4 * draw(i, *parameter.shape) + (parameter.dim() == 1))
    return module.double().eval()


class Calling(nn.Module):
    """A module without parameters that calls one function."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way

    def forward(self, *given: Tensor) -> Tensor:
        return self.way(*given)


class Attention(nn.Module):
    """Projections around a function of queries, keys and values [batch head token channel]."""

    def __init__(self, way: Way, keys: int = HEADS) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.way, self.keys = way, keys
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, keys * size), nn.Linear(WIDTH, keys * size)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = (f(x).unflatten(-1, (self.keys, -1)).transpose(1, 2) for f in (self.key, self.value))
        return self.out(self.way(query, key, value).transpose(1, 2).flatten(2))


class Mixer(nn.Module):
    """nn.MultiheadAttention as the attention of a block."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.call = {k: settings.pop(k) for k in ("need_weights", "average_attn_weights") if k in settings}
        self.batch_first = settings.get("batch_first", False)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **settings)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.attention(x, x, x, **self.call)[0]
        return x if self.batch_first else x.transpose(0, 1)


class Block(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module, norm: Way) -> None:
        super().__init__()
        self.attention, self.mlp, self.up, self.down = attention, mlp, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.before, self.between = norm(), norm()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(self.mlp(self.up(self.between(x))))


class Tiny(nn.Module):
    """Blocks between given vectors and a mean over tokens."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        x = inputs_embeds
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    scores = query @ key.transpose(-1, -2) * (scale or query.size(-1) ** -0.5)
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ value


def packed(qkv: Tensor) -> Tensor:
    query, key, value = qkv
    return by_hand(query, key, value)


def layer_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


def tiny(attention: nn.Module | Way = by_hand, mlp: Way = F.gelu, norm: Way = layer_norm, blocks: int = 1) -> nn.Module:
    made = []
    for _ in range(blocks):
        inner = attention if isinstance(attention, nn.Module) else Attention(attention)
        made.append(Block(inner, mlp if isinstance(mlp, nn.Module) else Calling(mlp), norm))
    return fill_weights(Tiny(*made))


X = draw(99, BATCH, LENGTH, WIDTH)
EVERYTHING = frozenset(
    "attention attention_grad attention_relevance attention_output_grad hidden hidden_grad hidden_relevance input_grad "
    "input_relevance value readout".split()
)
WITHOUT_RELEVANCE = frozenset(name for name in EVERYTHING if not SITES[name].is_relevance)


def record_tiny(module: nn.Module, keep=EVERYTHING, x: Tensor = X, recipe=CHEFER, **more: Any) -> Capture:
    model = Model(module, "tiny")
    return record(model, model.encode({"inputs_embeds": x}), target=1, keep=keep, recipes=[recipe], **more)


def values(capture: Capture, recipe=CHEFER) -> dict[str, Tensor]:
    found = {"logits": capture.logits}
    for name, rule in capture.values:
        site = capture.get(name, rule)
        if isinstance(site, Tensor):
            found[name] = site
        elif name != "fingerprint" and len(site):  # one stream has no sites of two
            found[name] = torch.stack(list(site))
    return found


def assert_same(one: nn.Module, other: nn.Module, keep=EVERYTHING, recipe=CHEFER) -> None:
    found, wanted = (values(record_tiny(module, keep, recipe=recipe)) for module in (one, other))
    assert found.keys() == wanted.keys() and set(keep) <= found.keys()
    for name in wanted:
        torch.testing.assert_close(
            found[name], wanted[name], rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}"
        )


def assert_true(module: nn.Module, keep=WITHOUT_RELEVANCE) -> None:
    """The captured output and input gradient equal those of a plain forward and backward."""
    x = X.clone().requires_grad_()
    plain = module(x)
    (gradient,) = torch.autograd.grad(plain[:, 1].sum(), x)
    capture = record_tiny(module, keep)
    torch.testing.assert_close(capture.logits, plain.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(capture["input_grad"], gradient, rtol=1e-9, atol=1e-12)


# --- ways to write attention -----------------------------------------------------------------------------------------

ALLOWED = draw(7, LENGTH, LENGTH) > -0.5
ALLOWED[:, 0] = True
BIAS = draw(8, 1, HEADS, LENGTH, LENGTH)
LOW = torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(~ALLOWED, -math.inf)
CAUSAL = torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -math.inf)
sdpa = F.scaled_dot_product_attention

WAYS: dict[str, tuple[Way, Way]] = {  # a way to write it, and the plain way
    "fused": (sdpa, by_hand),
    "fused, causal": (
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda q, k, v: by_hand(q, k, v, CAUSAL),
    ),
    "fused, bool mask": (lambda q, k, v: sdpa(q, k, v, ALLOWED), lambda q, k, v: by_hand(q, k, v, LOW)),
    "fused, mask of -inf": (lambda q, k, v: sdpa(q, k, v, attn_mask=LOW), lambda q, k, v: by_hand(q, k, v, LOW)),
    "fused, learned bias": (lambda q, k, v: sdpa(q, k, v, attn_mask=BIAS), lambda q, k, v: by_hand(q, k, v, BIAS)),
    "fused, scale": (lambda q, k, v: sdpa(q, k, v, scale=0.2), lambda q, k, v: by_hand(q, k, v, scale=0.2)),
    "fused, by name": (lambda q, k, v: sdpa(query=q, key=k, value=v, dropout_p=0.0), by_hand),
    "einsum": (
        lambda q, k, v: torch.einsum(
            "bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5).softmax(-1), v
        ),
        by_hand,
    ),
    "functions": (
        lambda q, k, v: torch.matmul(
            F.dropout(F.softmax(torch.matmul(q, k.mT).div(math.sqrt(q.size(-1))), dim=-1), 0.1, training=False), v
        ),
        by_hand,
    ),
    "scaled queries": (lambda q, k, v: (q / math.sqrt(q.size(-1)) @ k.permute(0, 1, 3, 2)).softmax(-1) @ v, by_hand),
    "softmax in float64 and back": (
        lambda q, k, v: (q @ k.mT * 0.5).softmax(-1, dtype=torch.float64).to(v.dtype).clone() @ v,
        by_hand,
    ),
    "masked_fill": (
        lambda q, k, v: (q @ k.mT * 0.5).masked_fill(~ALLOWED, -math.inf).softmax(-1) @ v,
        lambda q, k, v: by_hand(q, k, v, LOW),
    ),
    "finfo.min": (
        lambda q, k, v: by_hand(q, k, v, LOW.clamp(min=torch.finfo(torch.float64).min)),
        lambda q, k, v: by_hand(q, k, v, LOW),
    ),
    "unpacked": (lambda q, k, v: packed(torch.stack([q, k, v])), by_hand),
    "cosine": (
        lambda q, k, v: by_hand(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v),
        lambda q, k, v: by_hand(q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v),
    ),
    "where": (
        lambda q, k, v: torch.where(ALLOWED, q @ k.mT * 0.5, -1e30).softmax(-1) @ v,
        lambda q, k, v: by_hand(q, k, v, LOW),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_recognised_in_every_form(way):
    written, plain = WAYS[way]
    assert_same(tiny(written, blocks=2), tiny(plain, blocks=2))
    assert_true(tiny(written))


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_gives_each_example_what_it_gets_alone(way):
    module = tiny(WAYS[way][0])
    together = values(record_tiny(module))
    for i in range(BATCH):
        alone = values(record_tiny(module, x=X[i : i + 1]))
        for name in ("input_relevance", "input_grad"):
            torch.testing.assert_close(together[name][i], alone[name][0], rtol=1e-9, atol=1e-11)
        for name in ("attention_relevance", "attention_grad", "attention"):
            torch.testing.assert_close(together[name][:, i], alone[name][:, 0], rtol=1e-9, atol=1e-11)


class Explicit(Attention):
    """Keeps its attention matrix, so that autograd can compute its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        key, value = (t.repeat_interleave(HEADS // self.keys, 1) for t in (key, value))
        self.matrix = self.way(query, key)
        return self.out((self.matrix @ value).transpose(1, 2).flatten(2))


MATRICES: dict[str, tuple[Way, Way, int]] = {
    "plain": (sdpa, lambda q, k: (q @ k.mT / 2).softmax(-1), 2),
    "causal": (lambda *qkv: sdpa(*qkv, is_causal=True), lambda q, k: (q @ k.mT / 2 + CAUSAL).softmax(-1), 2),
    "bool mask": (lambda *qkv: sdpa(*qkv, ALLOWED), lambda q, k: (q @ k.mT / 2 + LOW).softmax(-1), 2),
    "float mask": (lambda *qkv: sdpa(*qkv, BIAS), lambda q, k: (q @ k.mT / 2 + BIAS).softmax(-1), 2),
    "scale": (lambda *qkv: sdpa(*qkv, scale=0.1), lambda q, k: (q @ k.mT * 0.1).softmax(-1), 2),
    "grouped": (lambda *qkv: sdpa(*qkv, enable_gqa=True), lambda q, k: (q @ k.mT / 2).softmax(-1), 1),
}


@pytest.mark.parametrize("form", MATRICES)
def test_a_fused_matrix_and_its_gradient_are_those_of_autograd(form):
    """Against softmax by hand, and the gradient by an explicit attention matrix."""
    fused, matrix, keys = MATRICES[form]
    explicit = tiny(Explicit(matrix, keys))
    x = X.clone().requires_grad_()
    score = explicit(x)[:, 1].sum()
    wanted = explicit.blocks[0].attention.matrix
    (gradient,) = torch.autograd.grad(score, wanted)
    capture = record_tiny(tiny(Attention(fused, keys)))
    torch.testing.assert_close(capture["attention"][0], wanted.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(capture["attention_grad"][0], gradient, rtol=1e-9, atol=1e-12)


def test_grouped_queries_have_the_relevance_of_repeated_keys():
    repeat = lambda q, k, v: by_hand(q, *(t.repeat_interleave(2, 1) for t in (k, v)))  # noqa: E731
    fused = lambda q, k, v: sdpa(q, k, v, enable_gqa=True)  # noqa: E731
    assert_same(tiny(Attention(fused, 1)), tiny(Attention(repeat, 1)))


@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_bias_per_key_is_the_same_for_fused_and_plain_attention(heads):
    """[1 head 1 key], as ALiBi for one query; with one head it has as many numbers as a bias per channel."""
    bias = draw(5, 1, heads, 1, LENGTH)
    assert_same(tiny(lambda q, k, v: sdpa(q, k, v, bias)), tiny(lambda q, k, v: by_hand(q, k, v, bias)))


def test_an_attention_bias_that_depends_on_the_input_is_an_addition():
    bias = lambda q, k: q.mean(-1, keepdim=True).expand(-1, -1, -1, k.size(-2))  # noqa: E731
    fused, plain = (tiny(lambda q, k, v, way=way: way(q, k, v, bias(q, k))) for way in (sdpa, by_hand))
    assert_same(fused, plain)
    assert_true(fused)


def test_heads_folded_into_the_batch_by_hand():
    """[batch*head token channel] and bmm: the number of heads comes from the labels."""

    def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.reshape(-1, LENGTH, WIDTH // HEADS) for t in (q, k, v))
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(0.5).softmax(-1), v).unflatten(0, (-1, HEADS))

    keep = {"input_grad", "input_relevance", "hidden_relevance", "attention", "attention_grad"}
    assert_same(tiny(folded), tiny(), keep)


def test_baddbmm_is_a_product_and_an_addition():
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(zero, q, k.mT, beta=0, alpha=0.5)
        return torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, HEADS))

    assert_same(tiny(fused), tiny(), {"input_grad", "input_relevance"})


# --- torch's own modules ---------------------------------------------------------------------------------------------

FORMS = [
    dict(batch_first=first, need_weights=weights, bias=bias)
    for first, weights, bias in ((True, True, True), (True, False, True), (False, True, True), (False, False, False))
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_multi_head_attention_is_recognised(form):
    module = tiny(Mixer(**form))
    capture = record_tiny(module)
    inner = module.blocks[0].attention.attention
    x = module.blocks[0].before(X)
    x = x if form["batch_first"] else x.transpose(0, 1)
    with torch.no_grad():
        _, wanted = inner(x, x, x, need_weights=True, average_attn_weights=False)
    assert len(capture["attention"]) == 1
    torch.testing.assert_close(capture["attention"][0], wanted.detach(), rtol=1e-10, atol=1e-12)
    assert_true(module)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_multi_head_attention_is_the_same_in_every_form(form):
    plain = dict(batch_first=True, need_weights=False, bias=form["bias"])
    assert_same(tiny(Mixer(**form)), tiny(Mixer(**plain)))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_multi_head_attention_keeps_examples_apart(form):
    module = tiny(Mixer(**form))
    together = record_tiny(module)
    for i in range(BATCH):
        alone = record_tiny(module, x=X[i : i + 1])
        one, other = (c.get("input_relevance", CHEFER) for c in (together, alone))
        torch.testing.assert_close(one[i], other[0], rtol=1e-9, atol=1e-11)


class Encoder(nn.Module):
    """nn.TransformerEncoder with an even number of heads: without gradients torch would use its fast path."""

    def __init__(self, nested: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        return self.head(self.encoder(inputs_embeds)[:, 0])


@pytest.mark.parametrize("nested", [False, True])
def test_the_fast_path_of_an_encoder_layer_hides_nothing(nested):
    """Recording only attention runs without gradients, where torch prefers one opaque kernel."""
    module = fill_weights(Encoder(nested))
    with torch.no_grad(), torch.profiler.profile() as seen:
        wanted = module(X)
    assert any("_transformer_encoder_layer_fwd" in event.name for event in seen.events())
    without, with_gradient = (record_tiny(module, keep) for keep in ({"attention"}, {"attention", "attention_grad"}))
    assert len(without["attention"]) == 2
    torch.testing.assert_close(without["attention"].stack(), with_gradient["attention"].stack())
    torch.testing.assert_close(without.logits, wanted, rtol=1e-10, atol=1e-12)


def test_the_private_copy_touches_nothing_global():
    before = dict(F.__dict__)
    record_tiny(tiny(Mixer(batch_first=True)))
    assert F.__dict__.keys() == before.keys()
    assert all(F.__dict__[name] is value for name, value in before.items())
    assert multi_head_attention.__globals__ is not F.multi_head_attention_forward.__globals__
    assert multi_head_attention.__code__ is F.multi_head_attention_forward.__code__


# --- softmaxes that are no attention ---------------------------------------------------------------------------------


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        mixed = torch.stack([expert(x) for expert in self.experts], -2)
        return (weights.unsqueeze(-1) * mixed).sum(-2)


def test_a_router_is_not_attention():
    module = tiny(mlp=Router(), blocks=2)
    capture = record_tiny(module)
    assert len(capture["attention"]) == 2
    assert capture["attention"][0].shape == (BATCH, HEADS, LENGTH, LENGTH)
    assert_true(module)


def test_attention_of_a_model_without_any_is_refused():
    with pytest.raises(NoAttention, match="Tiny ran without reaching attention"):
        record_tiny(tiny(Router()))


# --- operations that write into their operand ------------------------------------------------------------------------


def plus(h: Tensor, x: Tensor) -> Tensor:
    return h + x


def assigned(h: Tensor, x: Tensor) -> Tensor:
    h += x
    return h


def bare(h: Tensor, x: Tensor) -> Tensor:
    h.add_(x)
    return h


def through_another_name(h: Tensor, x: Tensor) -> Tensor:
    kept = h
    h += x
    return kept


def first_half_doubled(h: Tensor, x: Tensor) -> Tensor:
    """`q *= scale` where q and k are halves of one tensor: the other half is not touched."""
    first, second = h[..., :4], h[..., 4:]
    first *= 2
    return torch.cat([second, first], -1)


def first_half_new(h: Tensor, x: Tensor) -> Tensor:
    return torch.cat([h[..., 4:], h[..., :4] * 2], -1)


class Adding(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way, self.inner, self.linear = way, Attention(by_hand), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        h = self.way(h, x)
        return self.inner(h)


WIDE = torch.linspace(-1, 1, LENGTH * WIDTH, dtype=torch.float64).view(LENGTH, WIDTH)
IN_PLACE: dict[str, tuple[Way, Way]] = {
    "h += x": (assigned, plus),
    "h.add_(x)": (bare, plus),
    "kept = h; h += x": (through_another_name, plus),
    "h -= x": (lambda h, x: h.sub_(x), lambda h, x: h - x),
    "h *= 2": (lambda h, x: h.mul_(2), lambda h, x: h * 2),
    "h *= x": (lambda h, x: h.__imul__(x), lambda h, x: h * x),
    "h /= 2": (lambda h, x: h.div_(2), lambda h, x: h / 2),
    "h += x; h += x": (lambda h, x: assigned(assigned(h, x), x), lambda h, x: h + x + x),
    "one half *= 2": (first_half_doubled, first_half_new),
    "h += 1": (lambda h, x: h.__iadd__(1.0), lambda h, x: h + 1.0),
    "h.relu_()": (lambda h, x: h.relu_(), lambda h, x: h.relu()),
    "relu(h, inplace=True)": (lambda h, x: F.relu(h, inplace=True), lambda h, x: F.relu(h)),
    "relu(h, True)": (lambda h, x: F.relu(h, True), lambda h, x: F.relu(h)),
    "silu(h, inplace=True), old name": (lambda h, x: (F.silu(h, inplace=True), h)[1], lambda h, x: F.silu(h)),
}
GATES = [draw(20 + i, 3 * WIDTH, WIDTH) for i in range(2)] + [draw(22 + i, 3 * WIDTH) for i in range(2)]


def gate(h: Tensor, x: Tensor) -> Tensor:
    return torch.gru_cell(x.flatten(0, -2), h.flatten(0, -2), *GATES).view_as(h)


def gate_by_hand(h: Tensor, x: Tensor) -> Tensor:
    of_x, of_h, bias_x, bias_h = (table.chunk(3) for table in GATES)
    from_x = [F.linear(x, weight, bias) for weight, bias in zip(of_x, bias_x, strict=True)]
    from_h = [F.linear(h, weight, bias) for weight, bias in zip(of_h, bias_h, strict=True)]
    reset, kept = (torch.sigmoid(from_x[i] + from_h[i]) for i in range(2))
    return torch.tanh(from_x[2] + reset * from_h[2]) * (1 - kept) + h * kept


COMPOSED: dict[str, tuple[Way, Way]] = {
    "gru_cell": (gate, gate_by_hand),
    "glu": (lambda h, x: F.glu(torch.cat((h, x), -1)), lambda h, x: h * torch.sigmoid(x)),
    "lerp": (lambda h, x: torch.lerp(h, x, 0.25), lambda h, x: h * 0.75 + x * 0.25),
    "add alpha": (lambda h, x: torch.add(h, x, alpha=0.5), lambda h, x: h + 0.5 * x),
    "sub alpha": (lambda h, x: torch.sub(h, x, alpha=0.5), lambda h, x: h + -0.5 * x),
    "rsub alpha": (lambda h, x: torch.rsub(h, x, alpha=0.5), lambda h, x: x + -0.5 * h),
    "add alpha of a constant": (lambda h, x: torch.add(h, WIDE, alpha=0.5), lambda h, x: h + 0.5 * WIDE),
}


ROWS = torch.tensor([0, 0, 2, 1, 4])
PICK = F.one_hot(ROWS, LENGTH).double().T  # row i sums the rows that go to i
SYSTEM = torch.eye(LENGTH, dtype=torch.float64) + draw(7, LENGTH, LENGTH).tril(-1)
ANGLES = torch.linspace(0, 2, LENGTH * WIDTH // 2, dtype=torch.float64).view(LENGTH, -1)


def rotate_complex(h: Tensor, x: Tensor) -> Tensor:
    turned = torch.view_as_complex(h.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(ANGLES), ANGLES)
    return torch.view_as_real(turned).flatten(-2)


def rotate_real(h: Tensor, x: Tensor) -> Tensor:
    a, b = h[..., ::2], h[..., 1::2]
    cosine, sine = ANGLES.cos(), ANGLES.sin()
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1).flatten(-2)


def solve(matrix: Tensor, h: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(matrix, h, upper=False, unitriangular=True)


LINEAR: dict[str, tuple[Way, Way]] = {
    "cumsum": (lambda h, x: h.cumsum(1), lambda h, x: torch.ones(LENGTH, LENGTH).double().tril() @ h),
    "index_add onto zeros": (lambda h, x: torch.zeros_like(h).index_add(1, ROWS, h), lambda h, x: PICK @ h),
    "index_add": (lambda h, x: x.index_add(1, ROWS, h), lambda h, x: x + PICK @ h),
    "index_add_": (lambda h, x: h.clone().index_add_(1, ROWS, x), lambda h, x: h + PICK @ x),
    "scatter_add": (
        lambda h, x: torch.zeros_like(h).scatter_add(1, ROWS[:, None].expand_as(h), h),
        lambda h, x: PICK @ h,
    ),
    "solve_triangular": (lambda h, x: solve(SYSTEM, h), lambda h, x: SYSTEM.inverse() @ h),
    "complex rotation": (rotate_complex, rotate_real),
    "maximum": (torch.maximum, lambda h, x: torch.where(h.detach() > x.detach(), h, x)),
    "masked_scatter": (
        lambda h, x: h.masked_scatter(x.detach() > 0, x[x.detach() > 0]),
        lambda h, x: torch.where(x.detach() > 0, x, h),
    ),
    "scatter": (
        lambda h, x: h.scatter(1, torch.zeros(BATCH, 1, WIDTH, dtype=torch.long), x[:, 1:2]),
        lambda h, x: torch.cat((x[:, 1:2], h[:, 1:]), 1),
    ),
}


@pytest.mark.parametrize("form", LINEAR)
def test_an_operation_that_is_linear_is_the_same_as_a_product_with_a_constant(form):
    composed, plain = LINEAR[form]
    assert_same(tiny(Adding(composed)), tiny(Adding(plain)))
    assert_true(tiny(Adding(composed)))


def decay_by_cumulative_sum(h: Tensor, x: Tensor, hold: Way = lambda decay: decay) -> Tensor:
    total = -F.softplus(x.mean(-1)).cumsum(-1)
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(~ALLOWED, -torch.inf).exp()
    return hold(decay) @ h


HELD: dict[str, tuple[Way, Way]] = {
    "decays": (decay_by_cumulative_sum, lambda h, x: decay_by_cumulative_sum(h, x, torch.Tensor.detach)),
    "a sink": (
        lambda h, x: h * (torch.logsumexp(x, -1) - 1.0).sigmoid()[..., None],
        lambda h, x: h * (torch.logsumexp(x, -1) - 1.0).sigmoid()[..., None].detach(),
    ),
    "a system": (
        lambda h, x: solve(SYSTEM + 0.1 * (x @ x.mT).tril(-1), h),
        lambda h, x: (SYSTEM + 0.1 * (x @ x.mT).tril(-1)).detach().inverse() @ h,
    ),
}


@pytest.mark.parametrize("recipe", ["chefer", "attnlrp"])
@pytest.mark.parametrize("form", HELD)
def test_the_weights_of_a_recurrence_are_held_constant_by_relevance_only(form, recipe):
    """The relevance is that of a layer whose decays are numbers; the gradient is the true one, in the same run."""
    free, held = (tiny(Adding(way)) for way in HELD[form])
    ours, wanted = (values(record_tiny(module, recipe=RECIPES[recipe])) for module in (free, held))
    for name in ("input_relevance", "hidden_relevance", "attention_relevance"):
        torch.testing.assert_close(ours[name], wanted[name], rtol=1e-9, atol=1e-11)
    assert_true(free, EVERYTHING)
    assert not torch.allclose(ours["input_grad"], wanted["input_grad"])


@pytest.mark.parametrize("form", COMPOSED)
def test_a_composed_operation_is_the_same_as_its_parts(form):
    composed, parts = COMPOSED[form]
    assert_same(tiny(Adding(composed)), tiny(Adding(parts)))
    assert_true(tiny(Adding(composed)))


def test_a_resized_sequence_keeps_its_relevance():
    """A linear operation: each entry gets what it contributed."""
    twice = lambda x: F.interpolate(x.mT, scale_factor=2).mT[:, ::2]  # noqa: E731
    assert_same(tiny(mlp=twice), tiny(mlp=lambda x: x.clone()))


@pytest.mark.parametrize("form", IN_PLACE)
def test_an_in_place_change_is_the_same_as_a_new_tensor(form):
    written, plain = IN_PLACE[form]
    assert_same(tiny(Adding(written)), tiny(Adding(plain)))
    assert_true(tiny(Adding(written)))
    assert torch.equal(
        record_tiny(tiny(Adding(written)), {"attention"}).logits, record_tiny(tiny(Adding(plain)), {"attention"}).logits
    )


class Residual(Block):
    """The residual in place, across a module boundary: the caller's tensor is modified."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        h = self.attention(h)
        x = x.clone()
        x += h
        x.add_(self.down(self.mlp(self.up(self.between(x)))))
        return x


def test_a_residual_in_place_gives_the_same_hidden_states():
    made = [
        fill_weights(Tiny(*(kind(Attention(by_hand), Calling(F.gelu), layer_norm) for _ in range(2))))
        for kind in (Residual, Block)
    ]
    assert_same(*made)


class Ending(Tiny):
    """The output is modified in place at the very end."""

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        answer = super().forward(inputs_embeds)
        answer.mul_(2.0)
        return answer


def test_an_output_that_is_modified_last_is_the_output():
    module = fill_weights(Ending(Block(Attention(by_hand), Calling(F.gelu), layer_norm)))
    assert_true(module)
    once, twice = (record_tiny(m).get("input_grad") for m in (tiny(), module))
    torch.testing.assert_close(twice, 2 * once)


def view_then_base(h: Tensor, x: Tensor) -> Tensor:
    first = h[:, 0]
    first += 1.0
    return h


def base_then_view(h: Tensor, x: Tensor) -> Tensor:
    flat = h.view(-1, WIDTH)
    h += x
    return flat.view_as(h)


def one_view_then_another(h: Tensor, x: Tensor) -> Tensor:
    flat, first = h.view(-1, WIDTH), h[:, 0]
    first += 1.0
    return flat.view_as(h)


def set_first(h: Tensor, x: Tensor) -> Tensor:
    h[:, 0] = 0.5
    return h


def copy_into_halves(h: Tensor, x: Tensor) -> Tensor:
    whole = h.new_empty(h.shape)
    whole[..., :3].copy_(h[..., :3])
    whole[..., 3:].copy_(x[:, :1, 3:])
    return whole


def fill_in_a_loop(h: Tensor, x: Tensor) -> Tensor:
    """The form of a recurrence: what was written is read before the next write."""
    states = torch.zeros_like(h)
    for i in range(LENGTH):
        states[:, i] = h[:, i] + (states[:, i - 1] if i else 0)
    return states


def add_up(h: Tensor, x: Tensor) -> Tensor:
    rows = [h[:, 0] + 0]
    for i in range(1, LENGTH):
        rows.append(h[:, i] + rows[-1])
    return torch.stack(rows, 1)


def fill_in_parts(h: Tensor, x: Tensor) -> Tensor:
    """More writes than a tensor is put together from: they are joined on the way."""
    states = torch.zeros_like(h)
    for i in range(LENGTH):
        for part in (slice(0, 3), slice(3, 5), slice(5, None)):
            states[:, i, part] = h[:, i, part]
    return states


def set_masked(h: Tensor, x: Tensor) -> Tensor:
    h[x.detach() > 0] = x[x.detach() > 0]
    return h


def write_twice(h: Tensor, x: Tensor) -> Tensor:
    first = h[:, 0]
    first += 1.0
    h += x
    h[:, :2] *= 2.0
    return h


def write_then_change_the_source(h: Tensor, x: Tensor) -> Tensor:
    whole, part = torch.zeros_like(h), h * 2
    whole[:] = part
    part += x
    return whole + part


def prepend(first: Tensor, rest: Tensor) -> Tensor:
    return torch.cat((first.expand(BATCH, 1, WIDTH), rest), 1)


def view_between_writes(h: Tensor, x: Tensor) -> Tensor:
    h[:, 0] = 0.5
    flat = h.view(-1, WIDTH)
    h[:, 1] = x[:, 1]
    return flat.view_as(h)


HALF = torch.full((), 0.5, dtype=torch.float64)
THROUGH_VIEWS: dict[str, tuple[Way, Way]] = {
    "view, then base": (view_then_base, lambda h, x: prepend((h[:, 0] + 1.0)[:, None], h[:, 1:])),
    "base, then view": (base_then_view, plus),
    "view, then view": (one_view_then_another, lambda h, x: prepend((h[:, 0] + 1.0)[:, None], h[:, 1:])),
    "h[:, 0] = 0.5": (set_first, lambda h, x: prepend(HALF, h[:, 1:])),
    "h[mask] = x[mask]": (set_masked, lambda h, x: torch.where(x.detach() > 0, x, h)),
    "copy_ into halves": (
        copy_into_halves,
        lambda h, x: torch.cat((h[..., :3], x[:, :1, 3:].expand(-1, LENGTH, -1)), -1),
    ),
    "a view between writes": (
        view_between_writes,
        lambda h, x: prepend(HALF, torch.cat((x[:, 1][:, None], h[:, 2:]), 1)),
    ),
    "a loop": (fill_in_a_loop, add_up),
    "a loop of many parts": (fill_in_parts, lambda h, x: h.clone()),
    "write twice": (
        write_twice,
        lambda h, x: (lambda new: torch.cat((new[:, :2] * 2.0, new[:, 2:]), 1))(
            prepend((h[:, 0] + 1.0)[:, None], h[:, 1:]) + x
        ),
    ),
    "the source changes later": (write_then_change_the_source, lambda h, x: h * 2 + (h * 2 + x)),
    "masked_fill_": (
        lambda h, x: h.masked_fill_(ALLOWED[:, :1], 0.0),
        lambda h, x: h.masked_fill(ALLOWED[:, :1], 0.0),
    ),
    "clamp_": (lambda h, x: torch.clamp_(h, min=0.0), lambda h, x: torch.clamp(h, min=0.0)),
    "tanh_": (lambda h, x: h.tanh_(), lambda h, x: h.tanh()),
    "copy_": (lambda h, x: h.copy_(x), lambda h, x: x.clone()),
}


@pytest.mark.parametrize("form", THROUGH_VIEWS)
def test_what_is_written_into_a_tensor_is_seen_through_all_its_views(form):
    written, plain = THROUGH_VIEWS[form]
    assert_same(tiny(Adding(written)), tiny(Adding(plain)))
    assert_true(tiny(Adding(written)))


@pytest.mark.parametrize(
    "keep", [{"attention"}, WITHOUT_RELEVANCE, EVERYTHING], ids=["attention", "gradient", "relevance"]
)
@pytest.mark.parametrize("form", THROUGH_VIEWS)
def test_a_model_that_writes_gives_its_own_answer(form, keep):
    module = tiny(Adding(THROUGH_VIEWS[form][0]))
    torch.testing.assert_close(record_tiny(module, keep).logits, module(X), rtol=1e-12, atol=1e-12)


def use_a_stale_view(h: Tensor, x: Tensor) -> Tensor:
    first = h[:, 0]
    first += 1.0
    early = h.contiguous()  # torch returns h itself, interception what it put together
    first += 1.0
    return early.view_as(h)


def test_a_view_that_a_later_write_does_not_reach_is_refused():
    """Either the result is right, or the model is refused."""
    with pytest.raises(UnknownOperation, match=r"blocks\.0\.attention.* uses a view again after"):
        record_tiny(tiny(Adding(use_a_stale_view)))


# --- operations without a rule ---------------------------------------------------------------------------------------

UNKNOWN: dict[str, Way] = {
    "cumprod": lambda x: x.cumprod(1),
    "fft_rfft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=LENGTH, dim=1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, -1),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(WIDTH, WIDTH, WIDTH, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_operation_is_named_with_its_module(name):
    module = tiny(mlp=UNKNOWN[name])
    with pytest.raises(UnknownOperation, match=rf"No relevance rule for {name}, called in blocks\.0\.mlp\."):
        record_tiny(module)
    assert_true(module)


class Stranger(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone() * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def test_a_custom_autograd_function_is_refused_with_relevance():
    module = tiny(mlp=Stranger.apply)
    with pytest.raises(
        UnknownOperation,
        match=r"The model calls Stranger, a torch\.autograd\.Function of its own, which has no relevance rule",
    ):
        record_tiny(module)
    assert_true(module)


def test_a_weight_that_depends_on_the_input_has_no_rule():
    module = tiny(mlp=lambda x: F.linear(x, x[0, :1].expand(WIDTH, WIDTH)))
    with pytest.raises(UnknownOperation, match=r"No relevance rule for linear, called in blocks\.0\.mlp"):
        record_tiny(module)


def test_a_kernel_that_hides_its_attention_is_refused():
    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((q, k, v)):
            return torch.overrides.handle_torch_function(flash_attn_func, (q, k, v), q, k, v)
        return by_hand(q, k, v)

    with pytest.raises(
        UnsupportedModel, match=r"blocks\.0\.attention calls flash_attn_func, a kernel that does not expose"
    ):
        record_tiny(tiny(flash_attn_func), {"attention"})


# --- norms and activations in primitives -----------------------------------------------------------------------------


class Norm(nn.Module):
    """A norm of a given formula, with weight and bias as nn.LayerNorm has them."""

    def __init__(self, way: Way, has_bias: bool = True) -> None:
        super().__init__()
        self.way, self.weight = way, nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.weight * self.way(x)
        return x + self.bias if self.bias is not None else x


EPS = 1e-5


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


LAYER_NORMS: dict[str, Way] = {
    "var": lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + EPS),
    "mean of squares": lambda x: centred(x) * torch.rsqrt(centred(x).pow(2).mean(-1, keepdim=True) + EPS),
    "mean by name": lambda x: (
        (x - x.mean(dim=-1, keepdim=True)) / (x.var(dim=-1, keepdim=True, correction=0) + EPS) ** 0.5
    ),
    "functions": lambda x: torch.div(centred(x), torch.sqrt(torch.add(torch.var(x, -1, False, True), EPS))),
}
RMS_NORMS: dict[str, Way] = {
    "llama": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS),
    "squares": lambda x: x / ((x * x).mean(-1, keepdim=True) + EPS).sqrt(),
    "square()": lambda x: x * (x.square().mean(dim=-1, keepdim=True) + EPS).rsqrt(),
    "sum": lambda x: x / torch.sqrt((x**2).sum(-1, keepdim=True) / WIDTH + EPS),
}


@pytest.mark.parametrize("way", LAYER_NORMS)
def test_a_layer_norm_in_primitives_is_a_layer_norm(way):
    assert_same(tiny(norm=lambda: Norm(LAYER_NORMS[way])), tiny())


@pytest.mark.parametrize("way", RMS_NORMS)
def test_an_rms_norm_in_primitives_is_an_rms_norm(way):
    assert_same(tiny(norm=lambda: Norm(RMS_NORMS[way], has_bias=False)), tiny(norm=lambda: nn.RMSNorm(WIDTH, eps=EPS)))


def handmade_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, tuple[Way, Way]] = {
    "gelu, tanh": (handmade_gelu, lambda x: F.gelu(x, approximate="tanh")),
    "gelu, other order": (
        lambda x: (1 + torch.tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x))) * x * 0.5,
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "gelu, erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), F.gelu),
    "silu": (lambda x: x * torch.sigmoid(x), F.silu),
    "silu by division": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "quick gelu": (lambda x: x * (1.702 * x).sigmoid(), lambda x: F.silu(1.702 * x) / 1.702),
    "squared relu": (lambda x: F.relu(x).square(), lambda x: F.relu(x) ** 2),
    "clamped": (lambda x: x.clamp(min=0), F.relu),
}


@pytest.mark.parametrize("way", ACTIVATIONS)
def test_an_activation_in_primitives_is_an_activation(way):
    written, plain = ACTIVATIONS[way]
    assert_same(tiny(mlp=written), tiny(mlp=plain))


class SwiGLU(nn.Module):
    def __init__(self, gate: Way = F.silu) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.way = gate

    def forward(self, x: Tensor) -> Tensor:
        self.parts = self.way(self.gate(x)), self.up(x)
        return self.down(self.parts[0] * self.parts[1])


def test_a_gated_mlp_gives_half_to_each_part():
    """The two factors of a product get half of its relevance each."""
    torch.manual_seed(0)
    halves: list[Tensor] = []

    class Watching(SwiGLU):
        def forward(self, x: Tensor) -> Tensor:
            a, b = self.way(self.gate(x)), self.up(x)
            product = a * b
            for tensor in (a, b, product):
                tensor.register_hook(lambda g: halves.append(g.clone()))
            return self.down(product)

    record_tiny(tiny(mlp=Watching()), {"input_relevance"})
    product, *parts = halves[:3]
    assert product.abs().sum() > 0
    for part in parts:
        torch.testing.assert_close(part, product / 2)


def test_the_gate_of_an_mlp_may_be_in_primitives():
    assert_same(tiny(mlp=SwiGLU(lambda x: x * x.sigmoid())), tiny(mlp=SwiGLU()))


def turned(q: Tensor) -> Tensor:
    """Rotary positions as Llama writes them."""
    angles = torch.arange(LENGTH, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1] * 2, dtype=torch.float64)
    a, b = q.chunk(2, -1)
    return q * angles.cos() + torch.cat((-b, a), -1) * angles.sin()


@pytest.mark.parametrize("attend", [by_hand, sdpa])
def test_rotary_positions_run_and_relevance_adds_up(attend):
    module = tiny(lambda q, k, v: attend(turned(q), turned(k), v))
    assert_true(module)
    assert_adds_up(module)


# --- relevance adds up -----------------------------------------------------------------------------------------------


def assert_adds_up(module: nn.Module, recipe=CHEFER) -> None:
    """Relevance at the input plus absorbed relevance is the 1 that was sent, for each example."""
    capture = record_tiny(module, {"input_relevance"}, recipe=recipe, track_absorbed=True)
    arrived = capture.get("input_relevance", recipe).sum((1, 2))
    lost = sum(entry.amount for entry in capture.absorbed[recipe])
    torch.testing.assert_close(arrived + lost, torch.ones(BATCH, dtype=torch.float64), rtol=0, atol=1e-9)


PIECES: dict[str, Way] = {
    "scaling": lambda x: x * torch.linspace(0, 1, WIDTH, dtype=torch.float64),
    "table - x": lambda x: draw(1, LENGTH, WIDTH) - x,
    "x - table": lambda x: x - draw(1, LENGTH, WIDTH),
    "1 - x": lambda x: 1 - x,
    "x - y": lambda x: x - x.flip(1),
    "x * y": lambda x: x * x.flip(1),
    "x / y": lambda x: x / (2 + x.flip(1) ** 2),
    "mean": lambda x: x.mean(1, keepdim=True).expand(-1, LENGTH, -1),
    "concatenation": lambda x: torch.cat([draw(2, BATCH, 1, WIDTH)[: x.size(0)], x[:, 1:]], 1),
    "stack": lambda x: torch.stack([x, x.flip(1)], 1).sum(1),
    "roll": lambda x: x.roll(1, 1),
    "max": lambda x: torch.cat([x.max(1, keepdim=True).values, x[:, 1:]], 1),
    "amax": lambda x: torch.cat([x.amax(1, keepdim=True), x[:, 1:]], 1),
    "matmul with a constant": lambda x: draw(3, LENGTH, LENGTH) @ x,
    "einsum with a constant": lambda x: torch.einsum("btc,dc->btd", x, draw(3, WIDTH, WIDTH)),
    "average pooling": lambda x: F.avg_pool1d(x.mT, 3, 1, 1).mT,
    "addmm": lambda x: torch.addmm(torch.ones(WIDTH).double(), x.flatten(0, 1), draw(3, WIDTH, WIDTH)).view_as(x),
}


@pytest.mark.parametrize("recipe", [CHEFER, CHEFER_BASELINE], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("piece", PIECES)
def test_relevance_adds_up_over_every_kind_of_operation(piece, recipe):
    module = tiny(mlp=PIECES[piece])
    assert_true(module)
    assert_adds_up(module, recipe)


@pytest.mark.parametrize("piece", PIECES)
def test_every_kind_of_operation_keeps_examples_apart(piece):
    module = tiny(mlp=PIECES[piece])
    together = record_tiny(module).get("input_relevance", CHEFER)
    if piece == "concatenation":  # its constant differs per example
        return
    for i in range(BATCH):
        alone = record_tiny(module, x=X[i : i + 1]).get("input_relevance", CHEFER)
        torch.testing.assert_close(together[i], alone[0], rtol=1e-9, atol=1e-11)


TABLE = draw(1, LENGTH, WIDTH)
SAME: dict[str, tuple[Way, Way]] = {
    "table - x": (lambda x: TABLE - x, lambda x: TABLE + -x),
    "rsub": (lambda x: torch.rsub(x, TABLE), lambda x: TABLE + -x),
    "x - y": (lambda x: x - x.flip(1), lambda x: x + -x.flip(1)),
    "x - table": (lambda x: x - TABLE, lambda x: x + -TABLE),
    "add by name": (lambda x: torch.add(x, other=TABLE), lambda x: x + TABLE),
    "sub by name": (lambda x: x.sub(other=TABLE), lambda x: x + -TABLE),
    "mul by name": (lambda x: torch.mul(x, other=TABLE * (TABLE > 0)), lambda x: x * (TABLE * (TABLE > 0))),
    "x / 2": (lambda x: x / 2, lambda x: x * 0.5),
    "max": (lambda x: x - x.max(-1, keepdim=True).values, lambda x: x - x.amax(-1, keepdim=True)),
}


FORMS_AND_RECIPES = [
    pytest.param(form, recipe, id=f"{form}, {recipe.name}") for recipe in (CHEFER, CHEFER_BASELINE) for form in SAME
]


@pytest.mark.parametrize(("form", "recipe"), FORMS_AND_RECIPES)
def test_two_ways_to_write_an_operation_give_the_same(form, recipe):
    assert_same(*(tiny(mlp=way) for way in SAME[form]), {"input_grad", "input_relevance"}, recipe)


# --- where the input enters ------------------------------------------------------------------------------------------


class Reading(nn.Module):
    """Token ids, an embedding, and a function that computes the sum of embeddings."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.words, self.places, self.way = nn.Embedding(9, WIDTH), nn.Embedding(LENGTH, WIDTH), way
        self.blocks = nn.ModuleList([Block(Attention(by_hand), Calling(F.gelu), layer_norm)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.way(self.words(input_ids), self.places(torch.arange(LENGTH)))
        return self.head(self.blocks[0](x)[:, 0])


IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 1, 2]])


def read(way: Way, keep=frozenset(("input", "input_grad", "input_relevance", "hidden", "hidden_grad"))) -> Capture:
    model = Model(fill_weights(Reading(way)), "reading")
    return record(model, model.encode({"input_ids": IDS}), target=1, keep=keep, recipes=[CHEFER])


def in_place(words: Tensor, places: Tensor) -> Tensor:
    words += places
    return words


@pytest.mark.parametrize(
    "way",
    [
        lambda words, places: places + words,
        in_place,
        lambda words, places: F.dropout(words + places, 0.1, False),
        lambda words, places: words + places.unsqueeze(0),
    ],
)
def test_the_explained_input_is_the_sum_of_embeddings(way):
    found, plain = (values(read(w)) for w in (way, lambda words, places: words + places))
    assert found.keys() == plain.keys()
    for name in plain:
        torch.testing.assert_close(found[name], plain[name], rtol=1e-10, atol=1e-12)
    module = fill_weights(Reading(lambda words, places: words + places))
    torch.testing.assert_close(found["hidden"][0], module.words(IDS) + module.places.weight)


@pytest.mark.parametrize(
    "keep",
    [pytest.param({"attention"}, id="attention"), pytest.param({"input_grad"}, id="gradient")],
)
def test_writing_into_embeddings_happens_once(keep):
    """tanh(tanh(x)) would not be the same."""
    way = lambda words, places: words.tanh_() + places  # noqa: E731
    module = fill_weights(Reading(way))
    with torch.no_grad():
        wanted = module(IDS)
    torch.testing.assert_close(read(way, keep).logits, wanted, rtol=1e-10, atol=1e-12)


class Unfolding(nn.Module):
    """Patches cut by nn.Unfold instead of a convolution, as in many ViTs."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.embed = nn.Unfold(2, stride=2), nn.Linear(12, WIDTH)
        self.blocks = nn.ModuleList([Block(Attention(by_hand), Calling(F.gelu), layer_norm)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.blocks[0](self.embed(self.cut(pixel_values).transpose(1, 2))).mean(1))


def test_patches_may_be_cut_by_unfolding():
    module, pixels = fill_weights(Unfolding()), draw(4, 2, 3, 4, 6).requires_grad_()
    model = Model(module, "unfolding")
    (wanted,) = torch.autograd.grad(module(pixels)[:, 1].sum(), pixels)
    found = record(model, model.encode({"pixel_values": pixels.detach()}), target=1, keep={"attention", "input_grad"})
    torch.testing.assert_close(found["input_grad"], wanted.permute(0, 2, 3, 1))
    assert found["attention"][0].shape == (2, HEADS, 6, 6)


class Twice(nn.Module):
    """Embeds its text twice and never adds the two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.others, self.norm = nn.Embedding(9, WIDTH), nn.Embedding(9, WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.head = Attention(by_hand), nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x, y = (self.norm(embed(input_ids)) for embed in (self.words, self.others))
        return self.head(self.attention(x + y).mean(1))


def test_a_second_embedding_of_the_same_tokens_is_constant_and_noted():
    model = Model(fill_weights(Twice()), "twice")
    notes = explain(model, {"input_ids": IDS}, "gradient_x_input", target=0).notes
    assert any("second" in note and "embedding" in note for note in notes), notes
