"""The contract that every registered method has to meet, on every model family of the zoo.

A batch gives the same as its examples one by one (N9), fused attention the same as eager attention (N11), a run is
reproducible to the bit (N12), the model is not changed, even if something fails (L1), and no memory is kept alive (L2).
"""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from conftest import FAMILIES, IMAGE_FAMILIES, IMAGES_ONLY, LENGTHS, QUICK, TEXT_FAMILIES, animal

import whyformer as why
from whyformer._explain.method_call import choose_method
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer.methods._registry import METHODS

TARGETS = [0, 1, 2]
every_method = pytest.mark.parametrize("method", sorted(METHODS))
every_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(autouse=True)
def _on_what_it_explains(request):
    """Image-only methods are tested on images; that they refuse a text is tested with the method."""
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if given.get("method") in IMAGES_ONLY and given.get("name", "bert") not in IMAGE_FAMILIES:
        pytest.skip(f"{given['method']} explains pictures")


def scores(module, inputs, method, target=None):
    """One method on its own, as a user calls it."""
    return flat(why.explain(why.open(module), inputs, method, target=target, **QUICK.get(method, {})))


def flat(e):
    return e.scores if e.pixels is None else e.pixels.flatten(1)


def all_methods(module, inputs, target=None):
    """The results of every method from one run of the model; an exception in place of the result if a method fails.

    That a method gives the same on its own is tested in `test_says_the_same_alone_as_in_company`.
    """
    model = why.open(module)
    encoded = model.encode(inputs)
    chosen = {name: choose_method(name, QUICK.get(name, {})) for name in METHODS}
    capture = record_for_methods(list(chosen.values()), model, encoded, target, None)
    found = {}
    for name, one in chosen.items():
        try:
            found[name] = make_explanation(one, model, encoded, capture)
        except why.WhyformerError as error:
            found[name] = error
    return found


class Results(dict):
    """Scores by method; accessing a method that failed raises its exception."""

    def __getitem__(self, method):
        result = super().__getitem__(method)
        if isinstance(result, Exception):
            raise result
        return flat(result)


@cache
def together(name):
    """The batch of the zoo."""
    return Results(all_methods(animal(name).module, animal(name).inputs, TARGETS))


@cache
def alone(name, i):
    return Results(all_methods(animal(name).module, animal(name).alone(i), TARGETS[i]))


@cache
def for_another_class(name):
    return Results(all_methods(animal(name).module, animal(name).inputs, [3, 3, 3]))


@cache
def reordered(name, order):
    inputs = {key: value[list(order)] for key, value in animal(name).inputs.items()}
    return Results(all_methods(animal(name).module, inputs, [TARGETS[i] for i in order]))


@cache
def padded_on_the_left(name):
    it = animal(name)
    turned = {
        key: torch.stack([row.roll(9 - n) for row, n in zip(value, LENGTHS, strict=True)])
        for key, value in it.inputs.items()
    }
    if name in ("gpt2", "llama"):
        turned["position_ids"] = (turned["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return Results(all_methods(it.module, turned, TARGETS))


@cache
def in_kernel(name, kernel, dtype):
    module = copy.deepcopy(animal(name, kernel).module).to(dtype)
    return Results(all_methods(module, animal(name).inputs, TARGETS))


def assert_near(found, wanted, tolerance):
    assert (found - wanted).abs().max() <= tolerance * max(wanted.abs().max(), 1e-300)


# --- what a method gives ---------------------------------------------------------------------------------------------


@every_method
@every_family
def test_gives_a_finite_score_to_every_token(method, name):
    together(name)[method]
    e = dict.__getitem__(together(name), method)
    assert e.scores.shape == (3, 16 if "pixel_values" in animal(name).inputs else 9)
    assert e.scores.isfinite().all()
    if method not in ("grad_cam", "legrad", "agcam", "bi_attribution"):  # nowhere positive is all zero, by definition
        assert e.scores.abs().sum(1).gt(0).all()


@every_method
@pytest.mark.parametrize("name", ["vit", "bert", "gpt2"])
def test_says_the_same_alone_as_in_company(method, name):
    it = animal(name)
    assert_near(scores(it.module, it.inputs, method, TARGETS), together(name)[method], 1e-12)


@every_method
@every_family
def test_explains_each_example_as_if_it_were_alone(method, name):
    """N9: mixed lengths, mixed targets, float64."""
    for i in range(3):
        by_itself = alone(name, i)[method][0]
        assert_near(together(name)[method][i, : len(by_itself)], by_itself, 1e-10)


@every_method
@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("order", [(2, 0, 1), (1,), (0, 0, 1, 2, 1, 0, 2), (0, 1, 2, 2, 1, 0, 0, 1)], ids=str)
def test_the_order_and_size_of_the_batch_do_not_matter(method, name, order):
    assert_near(reordered(name, order)[method], together(name)[method][list(order)], 1e-10)


@every_method
@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_gives_padding_exactly_nothing(method, name):
    for i, length in enumerate(LENGTHS):
        assert not together(name)[method][i, length:].any()


@every_method
@pytest.mark.parametrize("name", ["encoder", "encoder_token_first", "gpt2", "llama"])
def test_padding_may_stand_on_the_left(method, name):
    """Only for models that do not read the first token. The encoders have no positions; decoders get position_ids."""
    right, left = together(name)[method], padded_on_the_left(name)[method]
    for i, length in enumerate(LENGTHS):
        assert not left[i, : 9 - length].any()
        assert_near(left[i, 9 - length :], right[i, :length], 1e-10)


@every_method
@every_family
def test_only_class_specific_methods_see_the_class(method, name):
    is_same = torch.equal(for_another_class(name)[method], together(name)[method])
    assert is_same is not METHODS[method].class_specific


@every_method
@every_family
def test_only_signed_methods_go_below_zero(method, name):
    if not METHODS[method].signed:
        assert together(name)[method].min() >= 0


TWO_KERNELS = ["vit", "deit", "dinov2", "beit", "bert", "roberta", "distilbert", "electra", "albert", "gpt2", "llama"]


@every_method
@pytest.mark.parametrize("name", TWO_KERNELS)
def test_fused_attention_is_eager_attention(method, name):
    """N11, in float32: within 1e-5 of the largest magnitude. Relevance divides by sums that may nearly cancel, and
    perturbation methods subtract nearly equal answers: both magnify float32 rounding errors. For these, the two kernels
    may differ by no more than float32 differs from float64.
    """
    fused, eager = (in_kernel(name, kernel, torch.float32)[method].double() for kernel in ("sdpa", "eager"))
    tolerance = 1e-5
    if METHODS[method].recipe is not None or not METHODS[method].is_quick:
        exact = together(name)[method]
        rounding = max((found - exact).abs().max() / exact.abs().max() for found in (fused, eager))
        tolerance = max(tolerance, 2 * rounding)
    assert_near(fused, eager, tolerance)


@every_method
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "albert", "gpt2"])
def test_fused_relevance_is_eager_relevance_in_float64(method, name):
    """Where eager attention stays in float64 (others cast their softmax to float32)."""
    fused, eager = (in_kernel(name, kernel, torch.float64)[method] for kernel in ("sdpa", "eager"))
    assert_near(fused, eager, 1e-9)


# --- what a method leaves behind -------------------------------------------------------------------------------------


def state(module):
    """Everything that must be unchanged: weights, hooks, flags, attributes."""
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
@pytest.mark.parametrize("name", ["vit", "bert", "llama", "gpt"])
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


FAILURES = ["target", "forward", "interrupt", "memory", "hook", "backward"]
RELEVANCE = "transformer_attribution"  # uses all passes


@pytest.mark.parametrize(
    ("method", "how"),
    [
        (m, how)
        for m in sorted(METHODS)
        for how in (FAILURES if m == RELEVANCE or not METHODS[m].is_quick else ["hook"])
    ],
)
def test_leaves_the_model_as_it_was_when_something_fails(method, how):
    """L1, six failures: all of them for a method that uses all passes and for perturbation methods, one for each of the
    others. A method without a backward pass is not affected by a failing backward.
    """
    module = broken_bert(how)
    before = state(module)
    if how == "backward" and "backward" not in METHODS[method].cost and METHODS[method].recipe is None:
        scores(module, animal("bert").inputs, method, TARGETS)
    else:
        with pytest.raises(BaseException):  # noqa: B017, PT011 (each failure has its own)
            scores(module, animal("bert").inputs, method, [0, 1, 99] if how == "target" else TARGETS)
    assert_untouched(module, before)
    sane = animal("bert")
    assert_near(scores(sane.module, sane.inputs, method, TARGETS), together("bert")[method], 1e-12)


@every_method
def test_the_model_can_still_be_pickled(method):
    module = copy.deepcopy(animal("encoder").module)
    scores(module, animal("encoder").inputs, method, TARGETS)
    again = pickle.loads(pickle.dumps(module))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


@cache
def in_threads(name):
    """Two batches, four times each: one after the other, and in four threads at once."""
    it = animal(name)
    run = lambda i: Results(all_methods(it.module, it.inputs, TARGETS if i % 2 else TARGETS[::-1]))  # noqa: E731
    serial = [run(0), run(1)]
    with ThreadPoolExecutor(4) as pool:
        return serial * 2, list(pool.map(run, range(4)))


@every_method
@pytest.mark.parametrize("name", ["vit", "bert", "encoder_token_first"])
def test_four_threads_agree_with_one(method, name):
    for one, another in zip(*in_threads(name), strict=True):
        assert torch.equal(one[method], another[method])


@every_method
@pytest.mark.parametrize("name", ["vit", "bert", "encoder_token_first"])
def test_twice_is_the_same_to_the_bit(method, name):
    """N12."""
    assert torch.equal(in_threads(name)[0][1][method], together(name)[method])


@every_method
@pytest.mark.parametrize("name", ["vit", "bert", "gpt"])
def test_frees_the_graph_without_the_garbage_collector(method, name):
    """L2."""
    it = animal(name)
    module = copy.deepcopy(it.module)
    kept = []
    block = next(m for path, m in module.named_modules() if path.rpartition(".")[2] == "1")
    block.register_forward_hook(lambda _, __, out: kept.append(weakref.ref(out[0] if isinstance(out, tuple) else out)))
    gc.disable()
    try:
        scores(module, it.inputs, method, TARGETS)
        assert kept
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()


@every_method
def test_what_is_saved_can_be_loaded(method, tmp_path):
    """Including details: a file that cannot be read later has lost the explanation."""
    it = animal("vit")
    e = why.explain(why.open(it.module), it.inputs, method, target=TARGETS, **QUICK.get(method, {}))
    for suffix in ("json", "safetensors"):
        e.save(tmp_path / f"e.{suffix}")
        loaded = why.load(tmp_path / f"e.{suffix}")
        assert torch.equal(loaded.scores, e.scores) and loaded.details.keys() == e.details.keys()
        assert all(torch.equal(loaded.details[name], found) for name, found in e.details.items())
