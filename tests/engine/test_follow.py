"""Traces: at which tokens the answer is read, and labels after products and reductions."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import CHEFER
from whyformer._engine.tracing.follow import Follower, map_label_axes
from whyformer._engine.tracing.operations import Operation, name_of
from whyformer._engine.tracing.provenance import Trace, attach_trace, label_axis
from whyformer._model.model import Model
from whyformer.errors import UnsupportedModel

CPU = torch.device("cpu")
WIDTH, LENGTH = 8, 6
LENGTHS = (6, 4)
MASK = torch.arange(LENGTH)[None] < torch.tensor(LENGTHS)[:, None]


class Pooling(nn.Module):
    """One attention block, and a function that pools its tokens."""

    def __init__(self, way: Callable[..., Tensor]) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(20, WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm, self.one, self.other = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)
        self.both, self.way = nn.Linear(2 * WIDTH, 3), way

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids)
        x = x + self.attention(x, x, x, key_padding_mask=attention_mask == 0)[0]
        return self.way(self, self.norm(x), attention_mask)


def inputs() -> dict[str, Tensor]:
    ids = torch.arange(2 * LENGTH).view(2, LENGTH) % 17 + 1
    return {"input_ids": ids * MASK, "attention_mask": MASK.long()}


def record_pooling(way: Callable[..., Tensor], keep=frozenset(("readout",)), **more):
    torch.manual_seed(0)
    model = Model(Pooling(way).double().eval(), "pooling")
    return record(model, model.encode(inputs()), target=0, keep=keep, **more)


def one_hot(*places: int) -> Tensor:
    return F.one_hot(torch.tensor(places), LENGTH).double()


def even_over(allowed: Tensor) -> Tensor:
    weights = (allowed & MASK).double()
    return weights / weights.sum(-1, keepdim=True)


EVERY = torch.ones(2, LENGTH, dtype=torch.bool)
REST = EVERY & (torch.arange(LENGTH) > 0)
FIRST = one_hot(0, 0)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1)


def without_first(mask: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(mask[:, :1]), mask[:, 1:]], 1)


READOUTS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "first": (lambda m, x, mask: m.one(x[:, 0]), FIRST),
    "first, all axes": (lambda m, x, mask: m.one(x[:, 0, :]), FIRST),
    "first, select": (lambda m, x, mask: m.one(x.select(1, 0)), FIRST),
    "first, squeezed": (lambda m, x, mask: m.one(x[:, :1].squeeze(1)), FIRST),
    "first, index_select": (lambda m, x, mask: m.one(x.index_select(1, torch.tensor([0])).flatten(1)), FIRST),
    "first, after the head": (lambda m, x, mask: m.one(x)[:, 0], FIRST),
    "first, token first": (lambda m, x, mask: m.one(x.transpose(0, 1)[0]), FIRST),
    "first, pooler": (lambda m, x, mask: m.one(torch.tanh(F.linear(x[:, 0], torch.eye(WIDTH).to(x)))), FIRST),
    "first, padded": (lambda m, x, mask: m.both(F.pad(x[:, 0], (0, WIDTH))), FIRST),
    "first, twice": (lambda m, x, mask: m.both(torch.cat([x[:, 0], x[:, 0]], -1)), FIRST),
    "third": (lambda m, x, mask: m.one(x[:, 2]), one_hot(2, 2)),
    "last, by index tensors": (lambda m, x, mask: m.one(x[torch.arange(2), mask.sum(-1) - 1]), one_hot(5, 3)),
    "last, gather": (
        lambda m, x, mask: m.one(x.gather(1, (mask.sum(-1) - 1)[:, None, None].expand(-1, 1, WIDTH)).squeeze(1)),
        one_hot(5, 3),
    ),
    "mean": (lambda m, x, mask: m.one(x.mean(1)), even_over(EVERY)),
    "mean, by name": (lambda m, x, mask: m.one(x.mean(dim=1, keepdim=True).squeeze(1)), even_over(EVERY)),
    "mean, as a sum": (lambda m, x, mask: m.one(torch.sum(x, 1) / x.size(1)), even_over(EVERY)),
    "mean, token first": (lambda m, x, mask: m.one(x.transpose(0, 1).mean(0)), even_over(EVERY)),
    "mean of answers": (lambda m, x, mask: m.one(x).mean(1), even_over(EVERY)),
    "mean, adaptive pooling": (
        lambda m, x, mask: m.one(F.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1)),
        even_over(EVERY),
    ),
    "mean without the first": (lambda m, x, mask: m.one(x[:, 1:].mean(1)), even_over(REST)),
    "masked mean": (lambda m, x, mask: m.one(masked_mean(x, mask)), even_over(EVERY)),
    "masked mean without the first": (lambda m, x, mask: m.one(masked_mean(x, without_first(mask))), even_over(REST)),
    "first and mean, concatenated": (
        lambda m, x, mask: m.both(torch.cat([x[:, 0], x[:, 1:].mean(1)], -1)),
        None,  # filled in below
    ),
    "first, and a quarter of mean": (
        lambda m, x, mask: m.both(torch.cat([x[:, 0], x[:, 0, :4], x[..., :4].mean(1)], -1)),
        None,
    ),
    "two heads, averaged": (lambda m, x, mask: (m.one(x[:, 0]) + m.other(x[:, 1])) / 2, (FIRST + one_hot(1, 1)) / 2),
    "first plus mean": (lambda m, x, mask: m.one(x[:, 0] + x.mean(1)), None),
    "first plus third, then a residual": (
        lambda m, x, mask: (lambda p: m.one(p + p.tanh()))(x[:, 0] + x[:, 2]),
        (FIRST + one_hot(2, 2)) / 2,
    ),
}  # fmt: skip


def mix_readouts(way: str) -> Tensor:
    """Part of the answer is read at the first token, the rest at all real tokens."""
    spread = REST.double() / (LENGTH - 1) if "concatenated" in way else torch.full((2, LENGTH), 1 / LENGTH).double()
    part = 0.25 if "quarter" in way else 0.5
    weights = (FIRST * (1 - part) + spread * part) * MASK
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("way", READOUTS)
def test_the_readout_is_found(way):
    pooling, wanted = READOUTS[way]
    wanted = mix_readouts(way) if wanted is None else wanted
    torch.testing.assert_close(record_pooling(pooling)["readout"], wanted)


@pytest.mark.parametrize("way", READOUTS)
def test_the_readout_is_found_with_rules_in_the_graph(way):
    pooling, _ = READOUTS[way]
    found = record_pooling(pooling, {"readout", "input_relevance"}, recipes=[CHEFER])["readout"]
    torch.testing.assert_close(found, record_pooling(pooling)["readout"])


UNSEEN: dict[str, Callable[..., Tensor]] = {
    "learned weights": lambda m, x, mask: m.one((x @ m.one.weight[0]).sigmoid().unsqueeze(1) @ x).squeeze(1),
    "learned weights of both signs": lambda m, x, mask: m.one((x * (x @ m.one.weight[0])[..., None]).sum(1)),
    "sorted": lambda m, x, mask: m.one(x.sort(1).values[:, 0]),
}


@pytest.mark.parametrize("way", UNSEEN)
def test_an_unknown_readout_is_refused(way):
    with pytest.raises(UnsupportedModel, match=r"At which tokens the answer is read is not known"):
        record_pooling(UNSEEN[way])


def test_relevance_passes_a_maximum_over_tokens_and_a_residual_after_it():
    """Examples stay separate after `max`, which returns values and indices."""

    def way(m: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        p = x.max(1).values
        return m.one(p + F.linear(p, m.both.weight[:, :WIDTH].repeat(3, 1)[:WIDTH]))

    found = record_pooling(way, {"input_relevance"}, recipes=[CHEFER], track_absorbed=True)
    lost = sum(entry.amount for entry in found.absorbed[CHEFER])
    total = found.get("input_relevance", CHEFER).sum((1, 2)) + lost
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64))


def half_and_half(places: list[int], rest: list[int], length: int) -> Tensor:
    weights = torch.zeros(3, length, dtype=torch.float64)
    weights[:, places], weights[:, rest] = 0.5 / len(places), 0.5 / len(rest)
    return weights


def test_the_readout_of_every_family(family):
    length = (
        9 if "pixel_values" not in family.inputs else {"vit": 17, "beit": 17, "deit": 18, "dinov2": 21}[family.name]
    )
    first = F.one_hot(torch.zeros(3, dtype=torch.long), length).double()
    mask = family.inputs.get("attention_mask", torch.ones(3, length)).double()
    last = F.one_hot(mask.sum(-1).long() - 1, length).double()
    patches = torch.cat([torch.zeros(1), torch.ones(16)]).double().expand(3, 17) / 16
    wanted = {
        "deit": lambda: half_and_half([0], [1], 18),
        "dinov2": lambda: half_and_half([0], list(range(5, 21)), 21),
        "beit": lambda: patches,
        "encoder": lambda: mask / mask.sum(-1, keepdim=True),
        "encoder_token_first": lambda: mask / mask.sum(-1, keepdim=True),
        "gpt": lambda: last,
        "gpt2": lambda: last,
        "llama": lambda: last,
    }.get(family.name, lambda: first)()
    model = Model(family.module, family.name)
    capture = record(model, model.encode(family.inputs), keep={"readout"})
    torch.testing.assert_close(capture["readout"].double(), wanted)


# --- products and reductions -----------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_einsum_keeps_the_label_of_each_letter(data):
    """The label changes along one letter; in the output it changes along the same letter, or is lost with it."""
    letters = "".join(data.draw(st.permutations("abcd")))[: data.draw(st.integers(1, 4))]
    output = "".join(data.draw(st.permutations(letters + "xy")))[: data.draw(st.integers(1, len(letters) + 2))]
    sizes = {letter: i + 2 for i, letter in enumerate("abcdxy")}
    counted = data.draw(st.sampled_from(letters))
    label = label_axis(letters.index(counted), sizes[counted], len(letters), CPU)
    found = map_label_axes(label, letters, output)
    if counted not in output:
        assert found is None
        return
    assert found is not None
    wanted = label_axis(output.index(counted), sizes[counted], len(output), CPU)
    assert torch.equal(found, wanted)


def traced(shape: tuple[int, ...]) -> Tensor:
    samples, tokens = label_axis(0, shape[0], len(shape), CPU), label_axis(1, shape[1], len(shape), CPU)
    return attach_trace(torch.zeros(shape), Trace(samples=samples, tokens=tokens))


def follow(function: Callable[..., Tensor], *args, **kwargs) -> tuple[Trace, Tensor]:
    operation = Operation(name_of(function), function, args, kwargs)
    result = operation.run()
    return Follower(args[0].size(0)).follow(operation, result)[0], result


REDUCTIONS = {
    "channels": (lambda x: follow(torch.mean, x, -1), True, True),
    "channels, kept": (lambda x: follow(torch.Tensor.mean, x, dim=-1, keepdim=True), True, True),
    "tokens": (lambda x: follow(torch.sum, x, 1), True, False),
    "tokens and channels": (lambda x: follow(torch.mean, x, (1, 2)), True, False),
    "examples": (lambda x: follow(torch.mean, x, dim=0), False, True),
    "everything": (lambda x: follow(torch.sum, x), False, False),
    "largest channel": (lambda x: follow(torch.amax, x, -1, True), True, True),
    "norm of channels": (lambda x: follow(torch.norm, x, 2, -1, True), True, True),
    "adaptive, channels": (lambda x: follow(F.adaptive_avg_pool1d, x, 1), True, True),
}


@pytest.mark.parametrize("form", REDUCTIONS)
def test_a_reduction_keeps_labels_it_does_not_mix(form):
    reduce, keeps_samples, keeps_tokens = REDUCTIONS[form]
    trace, result = reduce(traced((2, 3, 4)))
    assert (trace.samples is not None) == keeps_samples
    assert (trace.tokens is not None) == keeps_tokens
    for label, count in ((trace.samples, 2), (trace.tokens, 3)):
        if label is not None:
            assert label.dim() == result.dim()
            assert label.flatten().tolist() == list(range(count))


@pytest.mark.parametrize(
    ("way", "is_statistic"),
    [
        (lambda x: follow(torch.mean, x, -1, keepdim=True), True),
        (lambda x: follow(torch.var, x, -1, keepdim=True), True),
        (lambda x: follow(torch.linalg.vector_norm, x, 2, -1, True), True),
        (lambda x: follow(torch.mean, x, -1), False),
        (lambda x: follow(torch.mean, x, 1, keepdim=True), False),
    ],
)
def test_a_statistic_is_one_number_for_all_channels(way, is_statistic):
    assert way(traced((2, 3, 4)))[0].is_statistic == is_statistic


def test_a_product_has_the_rows_of_its_first_factor():
    x = traced((2, 3, 4))
    trace, _ = follow(torch.matmul, x, torch.zeros(4, 5))
    assert trace.samples.shape == (2, 1, 1) and trace.tokens.shape == (1, 3, 1)
    mixing = Operation("matmul", torch.matmul, (torch.zeros(5, 3), x), {})
    (trace,) = Follower(2).follow(mixing, mixing.run())
    assert trace.samples.shape == (2, 1, 1) and trace.tokens is None


def test_patches_are_numbered_row_by_row():
    pixels = attach_trace(torch.zeros(2, 3, 8, 12), Trace(samples=label_axis(0, 2, 4, CPU), is_pixels=True))
    operation = Operation("conv2d", F.conv2d, (pixels, torch.zeros(5, 3, 4, 4)), {"stride": 4})
    follower = Follower(2)
    (trace,) = follower.follow(operation, operation.run())
    assert follower.grid == (2, 3)
    assert trace.tokens.tolist() == [[[[0, 1, 2], [3, 4, 5]]]]
    assert trace.samples.shape == (2, 1, 1, 1)
