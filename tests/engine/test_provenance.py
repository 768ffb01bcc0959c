"""Labels: after any views, a small label agrees with a full label, entry by entry."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from whyformer._engine.tracing import operations, provenance
from whyformer._engine.tracing.follow import Follower
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import SampleGroups, Trace, attach_trace, label_axis, trace_of

CPU = torch.device("cpu")


# --- a chain of views -----------------------------------------------------------------------------------------------


class Pair:
    """A tensor with small labels and full ones: every operation is applied to all of them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        batch, length = shape[:2]
        samples, tokens = label_axis(0, batch, len(shape), CPU), label_axis(1, length, len(shape), CPU)
        self.follower = Follower(batch)
        self.tensor = attach_trace(torch.zeros(shape), Trace(samples=samples, tokens=tokens))
        self.samples, self.tokens = samples.expand(shape), tokens.expand(shape)

    def do(self, function, *args, **kwargs) -> None:
        result = self.follow_call(function, self.tensor, *args, **kwargs)
        fulls = (full.contiguous() for full in (self.samples, self.tokens))
        self.samples, self.tokens = (function(full, *args, **kwargs) for full in fulls)
        self.tensor = result

    def take(self, function, which: int, *args, **kwargs) -> None:
        """One of several results, e.g. of chunk."""
        results = self.follow_call(function, self.tensor, *args, **kwargs)
        self.samples, self.tokens = (function(full, *args, **kwargs)[which] for full in (self.samples, self.tokens))
        self.tensor = results[which]

    def join(self, function, others: list[str], axis: int) -> None:
        """Concatenated with itself and with constants, whose token is -1 and whose example is that of the rest."""
        parts = [self.tensor if other == "same" else torch.zeros_like(self.tensor) for other in others]
        full = [self.tokens if other == "same" else torch.full_like(self.tokens, -1) for other in others]
        self.tensor = self.follow_call(function, parts, axis)
        self.samples = function([self.samples] * len(others), axis)
        self.tokens = function(full, axis)

    def follow_call(self, function, *args, **kwargs):
        operation = Operation(operations.name_of(function), function, args, kwargs)
        result = operation.run()
        traces = self.follower.follow(operation, result)
        results = [result] if isinstance(result, Tensor) else list(result)
        for tensor, trace in zip(results, traces, strict=True):
            attach_trace(tensor, trace)
        return result

    def check(self) -> None:
        trace = trace_of(self.tensor)
        for small, full in ((trace.samples, self.samples), (trace.tokens, self.tokens)):
            assert small is not None
            assert small.dim() == self.tensor.dim()
            assert torch.equal(small.expand(self.tensor.shape), full)


def draw_step(draw, pair: Pair) -> None:
    """One random view that fits the shape."""
    shape = list(pair.tensor.shape)
    dims = len(shape)
    axis = draw(st.integers(0, dims - 1))
    kinds = ["permute", "transpose", "unsqueeze", "slice", "roll", "flip", "join", "stack", "index_select"]
    kinds += ["flatten", "reshape", "chunk", "movedim"] if dims > 1 else []
    kinds += ["squeeze"] if 1 in shape and dims > 1 else []
    kinds += ["expand"] if 1 in shape else []
    kinds += ["unflatten"] if shape[axis] % 2 == 0 and shape[axis] > 0 else []
    kinds += ["select", "getitem"] if dims > 2 else []
    match draw(st.sampled_from(kinds)):
        case "permute":
            pair.do(torch.permute, draw(st.permutations(range(dims))))
        case "transpose":
            pair.do(torch.transpose, axis, draw(st.integers(0, dims - 1)))
        case "movedim":
            pair.do(torch.movedim, axis, draw(st.integers(0, dims - 1)))
        case "unsqueeze":
            pair.do(torch.unsqueeze, draw(st.integers(-dims - 1, dims)))
        case "squeeze":
            pair.do(torch.squeeze, shape.index(1))
        case "expand":
            wide = [3 if size == 1 and d == shape.index(1) else -1 for d, size in enumerate(shape)]
            pair.do(torch.Tensor.expand, *wide)
        case "slice":
            start = draw(st.integers(0, shape[axis] - 1))
            index = (slice(None),) * axis + (slice(start, None, draw(st.integers(1, 2))),)
            pair.do(torch.Tensor.__getitem__, index)
        case "getitem":
            place = draw(st.integers(-shape[axis], shape[axis] - 1))
            pair.do(torch.Tensor.__getitem__, (slice(None),) * axis + (place,))
        case "select":
            pair.do(torch.select, axis, draw(st.integers(0, shape[axis] - 1)))
        case "index_select":
            places = draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=3))
            pair.do(torch.index_select, axis, torch.tensor(places))
        case "roll":
            pair.do(torch.roll, draw(st.integers(-2, 2)), axis)
        case "flip":
            pair.do(torch.flip, (axis,))
        case "flatten":
            start = draw(st.integers(0, dims - 2))
            pair.do(torch.flatten, start, draw(st.integers(start, dims - 1)))
        case "reshape":
            pair.do(torch.reshape, draw(st.sampled_from([(-1, shape[-1]), (shape[0], -1), (-1,), (1, *shape)])))
        case "unflatten":
            pair.do(torch.unflatten, axis, (2, -1))
        case "chunk":
            count = len(torch.chunk(pair.tensor, 2, axis))
            pair.take(torch.chunk, draw(st.integers(0, count - 1)), 2, axis)
        case "join":
            forms = [["same", "same"]]
            if trace_of(pair.tensor).samples.size(axis) == 1:  # else a constant belongs to no known example
                forms += [["constant", "same"], ["same", "constant"], ["constant", "same", "same"]]
            pair.join(torch.cat, draw(st.sampled_from(forms)), axis)
        case "stack":
            pair.join(torch.stack, draw(st.sampled_from([["same", "same"], ["same", "constant"]])), axis)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_small_label_agrees_with_a_full_label_after_the_same_views(data):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 4])), label="shape")
    pair = Pair(shape)
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        draw_step(data.draw, pair)
        if pair.tensor.numel() > 3000:
            break
        pair.check()


def test_heads_folded_into_the_batch_keep_their_example():
    """[batch token channel] -> [batch*head token channel], as nn.MultiheadAttention does it."""
    pair = Pair((2, 3, 4))
    pair.do(torch.unflatten, -1, (2, 2))
    pair.do(torch.transpose, 1, 2)
    pair.do(torch.flatten, 0, 1)
    pair.check()
    assert trace_of(pair.tensor).samples.flatten().tolist() == [0, 0, 1, 1]


def test_windows_folded_into_the_batch_keep_their_example_and_tokens():
    """2x2 windows of a 4x4 grid, as Swin cuts them."""
    pair = Pair((2, 16, 3))
    pair.do(torch.reshape, (2, 2, 2, 2, 2, 3))
    pair.do(torch.permute, (0, 1, 3, 2, 4, 5))
    pair.do(torch.reshape, (8, 4, 3))
    pair.check()
    assert trace_of(pair.tensor).tokens[1].flatten().tolist() == [2, 3, 6, 7]


def test_a_view_of_a_label_whose_strides_forbid_it():
    """`view` works on the tensor, not on its expanded label: the label is copied first."""
    pair = Pair((2, 3, 4))
    pair.do(torch.Tensor.view, 6, 4)
    pair.check()


def test_padding_belongs_to_no_token_and_to_its_own_example():
    """Two added channels get the label of their neighbours; two added tokens get -1."""
    for padding, tokens in (((0, 2), [0, 1, 2]), ((0, 0, 0, 2), [0, 1, 2, -1, -1])):
        pair = Pair((2, 3, 4))
        padded = pair.follow_call(torch.nn.functional.pad, pair.tensor, padding)
        trace = trace_of(padded)
        assert trace.samples.expand(padded.shape)[:, 0, 0].tolist() == [0, 1]
        assert trace.samples.expand(padded.shape)[:, -1, -1].tolist() == [0, 1]
        assert trace.tokens.expand(padded.shape)[0, :, -1].tolist() == tokens


def test_a_part_that_is_empty_is_left_out_of_a_concatenation():
    """An empty cache is a tensor of shape [0], which torch.cat accepts next to any shape."""
    pair = Pair((2, 3, 4))
    joined = pair.follow_call(torch.cat, [torch.tensor([]), pair.tensor], 1)
    assert trace_of(joined).tokens.flatten().tolist() == [0, 1, 2]
    assert trace_of(joined).samples.flatten().tolist() == [0, 1]


# --- small pieces ----------------------------------------------------------------------------------------------------


def test_constant_axes_are_reduced_to_one():
    label = label_axis(1, 3, 3, CPU).expand(2, 3, 4)
    assert provenance.squeeze_constant(label).shape == (1, 3, 1)
    assert provenance.squeeze_constant(label.contiguous()).shape == (1, 3, 1)


@pytest.mark.parametrize(
    ("shape", "wanted"), [((2, 3, 4), (2, 1, 1)), ((5, 2, 3, 4), (1, 2, 1, 1)), ((3, 3, 4), None), ((2, 4), None)]
)
def test_labels_align_from_the_right(shape, wanted):
    found = provenance.broadcast_label(label_axis(0, 2, 3, CPU), torch.Size(shape))
    assert (tuple(found.shape) if found is not None else None) == wanted


def test_parts_without_a_label_take_that_of_the_others_if_they_agree():
    """Examples are along axis 0: a class token added along axis 1 belongs to them, one along axis 0 does not."""
    label, parts = label_axis(0, 2, 3, CPU), [torch.zeros(2, 1, 4), torch.zeros(2, 3, 4)]
    assert torch.equal(provenance.join_labels([None, label], parts, 1, None), label)
    assert provenance.join_labels([None, label], [torch.zeros(1, 3, 4), torch.zeros(2, 3, 4)], 0, None) is None
    assert provenance.join_labels([None, None], parts, 1, None) is None


def test_the_newest_tokens_win():
    old, new = Trace(tokens=label_axis(0, 2, 1, CPU), epoch=1), Trace(tokens=label_axis(0, 3, 1, CPU), epoch=2)
    samples = label_axis(0, 1, 1, CPU)
    assert provenance.pick_newest_trace([old, new]) is new
    assert provenance.pick_newest_trace([new, old]) is new
    assert provenance.pick_newest_trace([Trace(samples=samples), new]).samples is samples
    assert trace_of("not a tensor") is provenance.EMPTY_TRACE


# --- sums per example ------------------------------------------------------------------------------------------------

LAYOUTS = {
    "batch first": lambda t: t,
    "token first": lambda t: t.transpose(0, 1),
    "heads folded": lambda t: t.unflatten(-1, (2, 2)).transpose(1, 2).flatten(0, 1),
    "tokens folded": lambda t: t.flatten(0, 1),
    "everything folded": lambda t: t.flatten(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_per_example_in_every_layout(layout):
    lay = LAYOUTS[layout]
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    label = provenance.squeeze_constant(lay(label_axis(0, 3, 3, CPU).expand(3, 5, 4)).contiguous())
    samples = SampleGroups(label, 3)
    torch.testing.assert_close(samples.sum(lay(x)), x.sum((1, 2)))
    values = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    torch.testing.assert_close(lay(x) * samples.spread(values), lay(x * values.view(3, 1, 1)))


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_plain_labels_give_the_sums_that_any_label_gives(axis):
    """Without adding entry by entry, which a GPU does in any order."""
    plain = provenance.PlainLabels().label_axis(axis, 3, 3, CPU)
    x = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    quick, slow = SampleGroups(plain, 3), SampleGroups(plain.clone(), 3)
    assert quick.is_plain and not slow.is_plain
    torch.testing.assert_close(quick.sum(x), slow.sum(x))
    torch.testing.assert_close(quick.sum_magnitudes(x), slow.sum_magnitudes(x))
    torch.testing.assert_close(quick.spread(x[0, 0]), slow.spread(x[0, 0]))


def test_a_plain_label_of_fewer_numbers_than_examples_is_not_taken_for_one():
    """A slice of the batch: the examples that are missing have a sum of zero."""
    samples = SampleGroups(provenance.PlainLabels().label_axis(0, 2, 2, CPU), 3)
    assert samples.sum(torch.ones(2, 4)).tolist() == [4.0, 4.0, 0.0]


def test_a_plain_label_with_more_axes_is_plain():
    plain = provenance.PlainLabels().label_axis(0, 3, 2, CPU)
    wide = provenance.broadcast_label(plain, torch.Size((5, 3, 4)))
    assert wide.shape == (1, 3, 1) and provenance.is_plain(wide)
    assert not provenance.is_plain(provenance.broadcast_label(plain.clone(), torch.Size((5, 3, 4))))


def test_a_single_example_gets_everything():
    samples = SampleGroups(torch.zeros(1, 1, dtype=torch.int32), 1)
    x = torch.arange(6.0).view(2, 3)
    assert samples.sum(x).tolist() == [15.0]
    assert samples.spread(torch.tensor([7.0])).tolist() == [[7.0]]


# --- how much of each token is read ----------------------------------------------------------------------------------


def test_what_was_pooled_is_what_is_read():
    read = torch.tensor([[0.25, 0.75]])
    assert provenance.compute_pooling_weights(Trace(read=read), torch.Size((1, 4)), 1, 2) is read


def test_one_token_is_read_where_the_label_is_constant():
    trace = Trace(samples=label_axis(0, 2, 2, CPU), tokens=torch.tensor([[2]], dtype=torch.int32))
    assert provenance.compute_pooling_weights(trace, torch.Size((2, 4)), 2, 3).tolist() == [[0, 0, 1], [0, 0, 1]]


def test_each_example_may_read_another_token():
    trace = Trace(samples=label_axis(0, 2, 2, CPU), tokens=torch.tensor([[2], [0]], dtype=torch.int32))
    assert provenance.compute_pooling_weights(trace, torch.Size((2, 4)), 2, 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_tokens_count_by_their_entries():
    """Three channels of token 0 and one of token 1; an entry without a token does not count."""
    tokens = torch.tensor([[0, 0, 0, 1, -1]], dtype=torch.int32)
    trace = Trace(samples=label_axis(0, 1, 2, CPU), tokens=tokens)
    assert provenance.compute_pooling_weights(trace, torch.Size((1, 5)), 1, 2).tolist() == [[0.75, 0.25]]


def test_pooling_weights_need_labels():
    assert provenance.compute_pooling_weights(Trace(), torch.Size((2, 4)), 2, 3) is None
    tokens_only = Trace(tokens=torch.tensor([[0]], dtype=torch.int32))
    assert provenance.compute_pooling_weights(tokens_only, torch.Size((2, 4)), 2, 3) is None
    nowhere = Trace(samples=label_axis(0, 2, 2, CPU), tokens=torch.tensor([[-1]], dtype=torch.int32))
    assert provenance.compute_pooling_weights(nowhere, torch.Size((2, 4)), 2, 3) is None


VIEWS = {
    "heads": (lambda x: x.view(2, 3, 2, 2).transpose(1, 2), (2, 3, 4)),
    "folded": (lambda x: x.reshape(6, 4), (2, 3, 4)),
    "turned": (lambda x: x.transpose(0, 1), (2, 3, 4)),
    "flipped": (lambda x: x.flip(1), (2, 3, 4)),
    "split": (lambda x: x.split(1, 1), (2, 3, 4)),
    "scalar": (lambda x: x.squeeze(), (1, 1)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_plain_labels_are_those_of_labels(name, axis):
    view, shape = VIEWS[name]
    labels = provenance.PlainLabels()
    plain = labels.label_axis(axis, shape[axis], len(shape), CPU)
    found = labels.replay_view(plain, torch.Size(shape), view, name)
    wanted = provenance.replay_view(label_axis(axis, shape[axis], len(shape), CPU), torch.Size(shape), view)
    found_parts, wanted_parts = (each if isinstance(each, list) else [each] for each in (found, wanted))
    assert all(torch.equal(a, b) for a, b in zip(found_parts, wanted_parts, strict=True))
    again = labels.replay_view(plain, torch.Size(shape), lambda _: pytest.fail("computed twice"), name)
    assert again is found


def test_the_labels_of_every_layer_are_the_same_tensors():
    labels = provenance.PlainLabels()
    label = start = labels.label_axis(0, 2, 3, CPU)
    for shape, view in (((2, 3, 4), lambda x: x.view(2, 3, 2, 2)), ((2, 3, 2, 2), lambda x: x.flatten(2))):
        label = labels.replay_view(label, torch.Size(shape), view, str(shape))
    assert label is start


def test_the_view_of_another_label_is_not_taken_from_those_that_are_known():
    labels, shape = provenance.PlainLabels(), torch.Size((2, 3))
    plain, other = labels.label_axis(1, 3, 2, CPU), torch.tensor([[2, 0, 1]], dtype=torch.int32)
    for label in (plain, other):
        found = labels.replay_view(label, shape, lambda x: x.transpose(0, 1), "transpose")
        assert torch.equal(found, label.transpose(0, 1))
    assert provenance.is_plain(labels.replay_view(plain, shape, lambda x: x.transpose(0, 1), "transpose"))
    assert not provenance.is_plain(other)
