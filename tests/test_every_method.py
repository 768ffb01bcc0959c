"""The contract every registered method meets by being registered, on every family of the zoo.

Rows N9, N11, N12, L1 and L2 of what we promise: a batch is its examples one by one, fused attention is eager
attention, a run can be repeated to the bit, the model is not touched (also when something fails), and nothing is kept
alive.
"""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from conftest import FAMILIES, LENGTHS, QUICK, TEXT_FAMILIES, animal

import whyformer as why
from whyformer.method import METHODS

TARGETS = [0, 1, 2]
every_method = pytest.mark.parametrize("method", sorted(METHODS))
every_family = pytest.mark.parametrize("name", FAMILIES)


def scores(module, inputs, method, target=None):
    e = why.explain(why.open(module), inputs, method, target=target, **QUICK.get(method, {}))
    return e.scores if e.pixels is None else e.pixels.flatten(1)


@cache
def together(name, method):
    """The batch of the zoo, explained once for all tests that only look at the result."""
    return scores(animal(name).module, animal(name).inputs, method, TARGETS)


def assert_near(found, wanted, tolerance):
    assert (found - wanted).abs().max() <= tolerance * max(wanted.abs().max(), 1e-300)


# --- what a method gives ---------------------------------------------------------------------------------------------


@every_method
@every_family
def test_gives_a_finite_score_to_every_token(method, name):
    it = animal(name)
    e = why.explain(why.open(it.module), it.inputs, method, target=TARGETS, **QUICK.get(method, {}))
    assert e.scores.shape == (3, 16 if "pixel_values" in it.inputs else 9)
    assert e.scores.isfinite().all()
    if method != "grad_cam":  # a map that is nowhere positive is all zero, by definition
        assert e.scores.abs().sum(1).gt(0).all()


@every_method
@every_family
def test_explains_each_example_as_if_it_were_alone(method, name):
    """N9: mixed lengths, mixed targets, float64."""
    it = animal(name)
    for i, target in enumerate(TARGETS):
        alone = scores(it.module, it.alone(i), method, target)[0]
        assert_near(together(name, method)[i, : len(alone)], alone, 1e-10)


@every_method
@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("order", [[2, 0, 1], [1], [0, 0, 1, 2, 1, 0, 2], [0, 1, 2, 2, 1, 0, 0, 1]], ids=str)
def test_the_order_and_size_of_the_batch_do_not_matter(method, name, order):
    it = animal(name)
    once = together(name, method)
    inputs = {key: value[order] for key, value in it.inputs.items()}
    again = scores(it.module, inputs, method, [TARGETS[i] for i in order])
    assert_near(again, once[order], 1e-10)


@every_method
@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_gives_padding_exactly_nothing(method, name):
    for i, length in enumerate(LENGTHS):
        assert not together(name, method)[i, length:].any()


@every_method
@pytest.mark.parametrize("name", ["encoder", "encoder_token_first", "gpt2", "llama"])
def test_padding_may_stand_on_the_left(method, name):
    """Where the model allows it: not where it reads the first token. An encoder has no positions, decoders are told
    them."""
    it = animal(name)
    right = together(name, method)
    turned = {
        key: torch.stack([row.roll(9 - n) for row, n in zip(value, LENGTHS, strict=True)])
        for key, value in it.inputs.items()
    }
    if name in ("gpt2", "llama"):
        turned["position_ids"] = (turned["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    left = scores(it.module, turned, method, TARGETS)
    for i, length in enumerate(LENGTHS):
        assert not left[i, : 9 - length].any()
        assert_near(left[i, 9 - length :], right[i, :length], 1e-10)


@every_method
@every_family
def test_only_class_specific_methods_see_the_class(method, name):
    other = scores(animal(name).module, animal(name).inputs, method, [3, 3, 3])
    assert torch.equal(other, together(name, method)) is not METHODS[method].class_specific


@every_method
@every_family
def test_only_signed_methods_go_below_zero(method, name):
    if not METHODS[method].signed:
        assert together(name, method).min() >= 0


def in_both_kernels(name, method, dtype):
    modules = (copy.deepcopy(animal(name, kernel).module).to(dtype) for kernel in ("sdpa", "eager"))
    return [scores(module, animal(name).inputs, method, TARGETS).double() for module in modules]


TWO_KERNELS = ["vit", "deit", "dinov2", "beit", "bert", "roberta", "distilbert", "electra", "albert", "gpt2", "llama"]


@every_method
@pytest.mark.parametrize("name", TWO_KERNELS)
def test_fused_attention_is_eager_attention(method, name):
    """N11, in float32: 1e-5 of the largest magnitude. Relevance divides by sums that may nearly cancel, which magnifies
    float32's own rounding; there the two kernels must differ by no more than float32 differs from float64."""
    fused, eager = in_both_kernels(name, method, torch.float32)
    tolerance = 1e-5
    if METHODS[method].recipe is not None:
        exact = together(name, method)
        rounding = max((found - exact).abs().max() / exact.abs().max() for found in (fused, eager))
        tolerance = max(tolerance, 2 * rounding)
    assert_near(fused, eager, tolerance)


@every_method
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "albert", "gpt2"])
def test_fused_relevance_is_eager_relevance_in_float64(method, name):
    """Where eager attention stays in float64 (others cast their softmax to float32)."""
    assert_near(*in_both_kernels(name, method, torch.float64), 1e-9)


# --- what a method leaves behind -------------------------------------------------------------------------------------


def state(module):
    """All that must be as before: weights, hooks, flags, attributes."""
    hooks = [
        (name, key, len(value))
        for name, part in module.named_modules()
        for key, value in part.__dict__.items()
        if key.endswith("_hooks") and isinstance(value, dict)
    ]
    flags = [(name, part.training, sorted(part.__dict__), type(part).forward) for name, part in module.named_modules()]
    weights = [(key, value.clone()) for key, value in module.state_dict().items()]
    gradients = [(key, p.requires_grad, p.grad, p._version) for key, p in module.named_parameters()]
    return hooks, flags, weights, gradients


def assert_untouched(module, before):
    hooks, flags, weights, gradients = state(module)
    assert hooks == before[0]
    assert flags == before[1]
    assert gradients == before[3]
    for (key, now), (_, then) in zip(weights, before[2], strict=True):
        assert torch.equal(now, then), key
    assert not any(hasattr(p, "_whyformer") for p in module.parameters())
    copy.deepcopy(module)


@every_method
@pytest.mark.parametrize("name", ["vit", "dinov2", "bert", "albert", "llama", "gpt", "encoder_token_first"])
def test_leaves_the_model_as_it_was(method, name):
    """L1."""
    it = animal(name)
    before = state(it.module)
    with torch.no_grad():
        answer = it.module(**it.inputs)
    scores(it.module, it.inputs, method, TARGETS)
    assert_untouched(it.module, before)
    with torch.no_grad():
        again = it.module(**it.inputs)
    assert torch.equal(getattr(again, "logits", again), getattr(answer, "logits", answer))
    assert not any(hasattr(value, "_whyformer") for value in it.inputs.values())


@every_method
def test_leaves_a_training_model_with_gradients_as_it_was(method):
    module = copy.deepcopy(animal("bert").module).train()
    for parameter in list(module.parameters())[::2]:
        parameter.grad = torch.ones_like(parameter)
    module.register_forward_hook(lambda *_: None)
    before = state(module)
    scores(module, animal("bert").inputs, method, TARGETS)
    assert_untouched(module, before)
    assert module.training


class Broken(torch.nn.Module):
    """Fails while it runs."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, *_, **__):
        raise self.error


class FailsGoingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("going back")


def broken_bert(how):
    module = copy.deepcopy(animal("bert").module)
    if how == "forward":
        module.bert.encoder.layer[1].output = Broken(ValueError("in forward"))
    if how == "interrupt":
        module.bert.encoder.layer[1].output = Broken(KeyboardInterrupt())
    if how == "memory":
        module.bert.encoder.layer[1].output = Broken(torch.OutOfMemoryError("no memory"))
    if how == "hook":
        module.bert.encoder.layer[2].register_forward_hook(lambda *_: 1 / 0)
    if how == "backward":
        module.bert.encoder.layer[1].register_forward_hook(lambda _, __, out: FailsGoingBack.apply(out))
    return module


@every_method
@pytest.mark.parametrize("how", ["target", "forward", "interrupt", "memory", "hook", "backward"])
def test_leaves_the_model_as_it_was_when_something_fails(method, how):
    """L1, the six failures. A method that makes no backward pass does not meet the one that fails there."""
    module = broken_bert(how)
    before = state(module)
    if how == "backward" and not METHODS[method].needs_gradient and METHODS[method].recipe is None:
        scores(module, animal("bert").inputs, method, TARGETS)
    else:
        with pytest.raises(BaseException):  # noqa: B017, PT011 (each failure has its own)
            scores(module, animal("bert").inputs, method, [0, 1, 99] if how == "target" else TARGETS)
    assert_untouched(module, before)
    sane = animal("bert")
    assert torch.equal(scores(sane.module, sane.inputs, method, TARGETS), together("bert", method))


@every_method
def test_the_model_can_still_be_pickled(method):
    module = copy.deepcopy(animal("encoder").module)
    scores(module, animal("encoder").inputs, method, TARGETS)
    again = pickle.loads(pickle.dumps(module))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


@every_method
@pytest.mark.parametrize("name", ["vit", "bert", "gpt", "encoder_token_first"])
def test_four_threads_agree_with_one(method, name):
    it = animal(name)
    model = why.open(it.module)

    def run(i):
        target = TARGETS if i % 2 else TARGETS[::-1]
        return why.explain(model, it.inputs, method, target=target, **QUICK.get(method, {})).scores

    serial = [run(0), run(1)] * 4
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(run, range(8)))
    for a, b in zip(serial, threaded, strict=True):
        assert torch.equal(a, b)


@every_method
@pytest.mark.parametrize("name", ["dinov2", "bert", "gpt", "encoder_token_first"])
def test_twice_is_the_same_to_the_bit(method, name):
    """N12."""
    assert torch.equal(together(name, method), scores(animal(name).module, animal(name).inputs, method, TARGETS))


@every_method
@pytest.mark.parametrize("name", ["vit", "bert", "gpt", "encoder"])
def test_frees_the_graph_without_the_garbage_collector(method, name):
    """L2."""
    it = animal(name)
    module = copy.deepcopy(it.module)
    kept = []
    block = next(m for path, m in module.named_modules() if path.rpartition(".")[2] == "1")
    block.register_forward_hook(lambda _, __, out: kept.append(weakref.ref(out[0] if isinstance(out, tuple) else out)))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            scores(module, it.inputs, method, TARGETS)
        assert kept
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()
