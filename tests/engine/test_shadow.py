"""The shadow: computes the same to the last bit and never changes the original."""

import copy
import functools
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import CHEFER
from whyformer._engine.run.shadow import make_shadow, weights_of
from whyformer._model.model import Model
from whyformer._model.unwrap import unwrap
from whyformer.errors import UnsupportedModel


def make_input(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def state_of(module: nn.Module) -> list:
    """Everything about a model that a careless capture could change."""
    found: list = []
    for name, part in module.named_modules():
        found.append((name, id(part), type(part), part.training, sorted(part.__dict__)))
        found.extend(
            (name, key, list(hooks)) for key, hooks in part.__dict__.items() if key.endswith("_hooks") and hooks
        )
    for name, weight in [*module.named_parameters(), *module.named_buffers()]:
        kept = None if weight.grad is None else weight.grad.clone().tolist()
        values = weight.detach().clone().tolist()
        attributes = sorted(getattr(weight, "__dict__", ()))
        found.append((name, id(weight), weight.requires_grad, weight.dtype, weight._version, kept, values, attributes))
    return found


# --- the same answer -------------------------------------------------------------------------------------------------


def test_a_shadow_computes_the_same_to_the_last_bit(family):
    """Against a copy without gradients: for weights that require one torch multiplies in another order."""
    frozen = copy.deepcopy(family.module).requires_grad_(False)
    with torch.no_grad():
        wanted, found = (module(**family.inputs) for module in (frozen, make_shadow(family.module)))
    wanted, found = (getattr(out, "logits", out) for out in (wanted, found))
    assert torch.equal(wanted, found)


def test_a_shadow_is_a_separate_model():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    twin = make_shadow(module)
    assert type(twin) is nn.Sequential and type(twin[0]) is nn.Linear
    assert not {id(m) for m in twin.modules()} & {id(m) for m in module.modules()}
    assert twin[0].weight.data_ptr() == module[0].weight.data_ptr()
    assert twin[0].weight is not module[0].weight
    assert not any(p.requires_grad for p in twin.parameters())


def test_dropout_is_off_in_the_shadow_of_a_model_in_training():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).train()
    twin, x = make_shadow(module), make_input(2, 4)
    assert torch.equal(twin(x), module[0](x))
    assert module.training and module[1].training and not twin[1].training


# --- the original does not notice ------------------------------------------------------------------------------------


def test_nothing_changes_on_the_original(family):
    """Not even after relevance and gradients, whatever state it was in."""
    module = family.module
    module.train()
    first = next(module.parameters())
    first.grad = torch.ones_like(first)
    first.requires_grad_(False)
    handle = module.register_forward_hook(lambda module, args, result: None)
    try:
        before = state_of(module)
        model = Model(module, family.name)
        keep = {"attention", "attention_grad", "attention_relevance", "hidden_grad", "input_relevance"}
        record(model, model.encode(family.inputs), keep=keep, recipes=[CHEFER])
        assert state_of(module) == before
    finally:
        handle.remove()
        first.grad = None
        first.requires_grad_(True)
        module.eval()


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.linear(x)
        raise KeyError("in the middle")


def test_nothing_changes_on_the_original_if_its_forward_fails():
    module = Failing().train()
    before = state_of(module)
    model = Model(module, "failing")
    with pytest.raises(KeyError, match="in the middle"):
        record(model, model.encode({"x": make_input(1, 3, 2)}), keep={"attention_grad"})
    assert state_of(module) == before
    torch.nn.functional.linear(make_input(2), make_input(2, 2))  # no mode is left behind
    assert torch.overrides._get_current_function_mode() is None


def test_changes_to_the_shadow_stay_there():
    module = nn.Sequential(nn.Linear(2, 2))
    before = state_of(module)
    twin = make_shadow(module)
    twin[0].register_forward_hook(lambda *_: None)
    twin[0].register_forward_pre_hook(lambda *_: None)
    twin.extra, twin[0].weight = 5, nn.Parameter(torch.zeros(2, 2))
    twin.add_module("more", nn.ReLU())
    assert state_of(module) == before


# --- what hangs together stays together ------------------------------------------------------------------------------


class Knotted(nn.Module):
    """Shared modules, tied weights, bound methods, lists and dictionaries of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.ones(4))
        self.tied.register_buffer("shift", self.shift)
        self.bound = self.first.forward
        self.listed = [self.first, self.tied]
        self.nested = {"pair": (self.tied, [self.first]), "number": 3}
        self.parent_of_itself = [self]

    def forward(self, x: Tensor) -> Tensor:
        x = self.bound(self.again(x)) * self.scale + self.shift
        for layer in self.listed:
            x = layer(x)
        return self.nested["pair"][1][0](x)


def test_shared_modules_stay_shared_and_tied_weights_tied():
    twin = make_shadow(Knotted())
    assert twin.first is twin.again
    assert twin.first.weight is twin.tied.weight
    assert twin.first.bias is not twin.tied.bias
    assert twin.shift is twin.tied.shift


def test_bound_methods_and_containers_are_redirected():
    module = Knotted()
    twin = make_shadow(module)
    assert twin.bound.__self__ is twin.first
    assert twin.listed == [twin.first, twin.tied]
    assert twin.nested["pair"][0] is twin.tied and twin.nested["pair"][1] == [twin.first]
    assert twin.parent_of_itself == [twin]
    assert module.bound.__self__ is module.first and module.listed[0] is module.first
    x = make_input(2, 4)
    assert torch.equal(twin(x), module(x))


def test_weights_are_known_under_all_their_names():
    module = Knotted()
    known = weights_of(module)
    assert known[id(module.scale)] == "scale"
    assert known[id(module.first.weight)] in ("first.weight", "again.weight", "tied.weight")


def test_a_weight_under_a_parametrization_is_computed_in_the_shadow():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    twin, x = make_shadow(module), make_input(4, 3)
    assert torch.equal(twin(x), module(x))
    assert not twin(x).requires_grad


# --- hooks -----------------------------------------------------------------------------------------------------------


def test_forward_hooks_of_the_user_are_part_of_the_model():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = make_input(2, 3)
    plain = module(x)
    module[0].register_forward_pre_hook(lambda part, args: (args[0] * 2,))
    module[1].register_forward_hook(lambda part, args, result: result + 1)
    module[1].register_forward_hook(lambda part, args, kwargs, result: result * 3, with_kwargs=True)
    assert torch.equal(make_shadow(module)(x), module(x))
    assert not torch.equal(module(x), plain)


def test_backward_hooks_of_the_user_are_not_copied():
    module, seen = nn.Sequential(nn.Linear(3, 3)), []
    module[0].register_full_backward_hook(lambda *_: seen.append("full"))
    module[0].register_full_backward_pre_hook(lambda *_: seen.append("before"))
    x = make_input(2, 3).requires_grad_()
    make_shadow(module)(x).sum().backward()
    assert not seen
    module(x).sum().backward()
    assert seen == ["before", "full"]


# --- other types -----------------------------------------------------------------------------------------------------


def test_a_shadow_of_another_dtype_does_not_change_the_original():
    module = Knotted().half()
    module.register_buffer("places", torch.arange(3))
    before = state_of(module)
    twin = make_shadow(module, torch.float32)
    assert {p.dtype for p in twin.parameters()} == {torch.float32} and twin.shift.dtype == torch.float32
    assert twin.places.dtype == torch.int64
    assert twin.first.weight is twin.tied.weight
    twin.first.weight.data.fill_(7)
    assert state_of(module) == before


# --- wrappers --------------------------------------------------------------------------------------------------------


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")


def wrapped() -> Iterator[tuple[str, object]]:
    yield "torch.compile", compiled
    yield "DataParallel", nn.DataParallel
    yield "both", lambda module: nn.DataParallel(compiled(module))


@pytest.mark.parametrize("wrap", [pytest.param(wrap, id=name) for name, wrap in wrapped()])
def test_wrappers_are_unwrapped(wrap):
    module, x = nn.Sequential(nn.Linear(3, 3)), make_input(2, 3)
    assert unwrap(wrap(module)) is module
    assert torch.equal(make_shadow(wrap(module))(x), module(x))


def test_a_module_compiled_in_place_runs_plainly():
    module = nn.Sequential(nn.Linear(3, 3))
    module.compile(backend="eager")
    assert make_shadow(module)._compiled_call_impl is None
    assert module._compiled_call_impl is not None


def test_a_compiled_part_is_unwrapped():
    module, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), make_input(2, 3)
    wanted = module(x)
    module[0] = compiled(module[0])
    twin = make_shadow(module)
    assert not any(hasattr(part, "_orig_mod") for part in twin.modules())
    assert torch.equal(twin(x), wanted)


def scripted(how: str, module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module) if how == "script" else torch.jit.trace(module, make_input(2, 3))


@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_scripted_model_is_refused(how):
    module = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(UnsupportedModel, match=r"is a scripted model, whose operations cannot be followed"):
        make_shadow(scripted(how, module))


def test_a_scripted_part_is_refused():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module[0] = scripted("script", module[0])
    with pytest.raises(UnsupportedModel, match=r"Pass the nn.Module it was scripted from"):
        make_shadow(module)


# --- what cannot be followed -----------------------------------------------------------------------------------------


class Leaking(nn.Module):
    """Keeps a path to its own weights that no shadow can follow."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = inner = nn.Linear(2, 2)
        weight = inner.weight
        self.leak = {
            "closure over a weight": lambda x: x @ weight,
            "closure over a module": lambda x: inner(x),
            "partial": functools.partial(inner.forward),
        }[how]

    def forward(self, x: Tensor) -> Tensor:
        return self.leak(x)


def test_a_partial_is_pointed_at_the_shadow():
    """accelerate replaces the forward of a module by a partial of it."""
    module = Leaking("partial")
    shadow = make_shadow(module)
    assert shadow.leak.func.__self__ is shadow.inner
    assert module.leak.func.__self__ is module.inner
    assert torch.equal(shadow(make_input(1, 3, 2)), module(make_input(1, 3, 2)))


@pytest.mark.parametrize("how", ["closure over a weight", "closure over a module"])
def test_a_run_that_reaches_a_weight_of_the_original_is_refused(how):
    model = Model(Leaking(how), "leaking")
    with pytest.raises(UnsupportedModel, match=r"used the weight 'inner\.weight' of the model itself"):
        record(model, model.encode({"x": make_input(1, 3, 2)}), keep={"attention"})


class Mended(Leaking):
    """What the refusal asks for: the function as a method that uses attributes."""

    def __init__(self) -> None:
        super().__init__("partial")
        del self.leak

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x).softmax(-1) @ x

    def use(self, x: Tensor) -> Tensor:
        return self.inner(x) @ x.mT


def test_the_way_out_of_a_leak_works():
    model = Model(Mended(), "mended")
    assert len(record(model, model.encode({"x": make_input(1, 3, 2)}), keep={"attention"})["attention"]) == 1
