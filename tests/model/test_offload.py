"""Weights that a hook loads before a module runs, as accelerate does; tests/others has the same with accelerate."""

import functools
import weakref

import pytest
import torch
from conftest import TEXT
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import whyformer as why
from whyformer._model.offload import find_device, find_unloaded_weights
from whyformer.errors import IncompleteModel

IDS = {"input_ids": torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])}


class LoadingHook:
    """Loads the weights of a module before it runs and drops them afterwards."""

    offload, place_submodules, execution_device = True, False, torch.device("cpu")

    def __init__(self, module: nn.Module) -> None:
        self.weights_map = {name: weight.detach() for name, weight in module.named_parameters(recurse=False)}
        self.tied_params_map: dict[int, dict] = {}
        self.loaded: list[int] = []
        self.drop(module)

    def load(self, module: nn.Module) -> None:
        self.loaded.append(id(module))
        for name, weight in self.weights_map.items():
            dtype = module._parameters[name].dtype
            module._parameters[name] = nn.Parameter(weight.to(dtype), requires_grad=False)

    def drop(self, module: nn.Module) -> None:
        for name in self.weights_map:
            empty = torch.empty_like(module._parameters[name], device="meta")
            module._parameters[name] = nn.Parameter(empty, requires_grad=False)


def run_with_hook(module: nn.Module, *args, **kwargs):
    module._hf_hook.load(module)
    answer = module._old_forward(*args, **kwargs)
    module._hf_hook.drop(module)
    return answer


def build(offloads: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**TEXT)).eval()
    for part in model.modules() if offloads else ():
        if part._parameters:
            part._old_forward, part._hf_hook = part.forward, LoadingHook(part)
            part.forward = functools.update_wrapper(functools.partial(run_with_hook, part), part.forward)
    return model


@pytest.mark.parametrize("method", ["rollout", "attnlrp", "gradient_x_input", "leave_one_out"])
def test_an_offloaded_model_gives_the_scores_of_the_plain_one(method):
    ours, theirs = (why.explain(build(offloads), IDS, method, target=1).scores for offloads in (True, False))
    assert torch.equal(ours, theirs)


def test_hooks_load_the_weights_of_the_shadow_only():
    model = build()
    why.explain(model, IDS, "attnlrp", target=1, health=True)
    assert all(weight.is_meta for weight in model.parameters())
    loads = [part._hf_hook.loaded for part in model.modules() if hasattr(part, "_hf_hook")]
    assert all(id(part) not in part._hf_hook.loaded for part in model.modules() if hasattr(part, "_hf_hook")) and loads


def test_rounding_is_measured_on_offloaded_weights_too():
    """health=True runs once more with every weight moved by one rounding, also those that a hook loads."""
    ours, theirs = (
        why.explain(build(offloads), IDS, "attnlrp", target=1, health=True).details for offloads in (True, False)
    )
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_device_is_that_of_the_hook():
    assert find_device(build()) == torch.device("cpu")
    assert find_device(nn.Linear(1, 1, device="meta")) == torch.device("meta")


def test_weights_that_nothing_loads_are_refused():
    model = build()
    del model.classifier._hf_hook
    model.classifier.forward = model.classifier._old_forward
    assert find_unloaded_weights(model) == ["classifier.weight", "classifier.bias"]
    with pytest.raises(IncompleteModel, match="parameters on the meta device"):
        why.open(model)


# --- a decoder, layer by layer ----------------------------------------------------------------------------------------


class CountingHook(LoadingHook):
    """Counts the bytes of loaded weights that are there at a time, of all modules."""

    def __init__(self, module: nn.Module, alive: list) -> None:
        super().__init__(module)
        self.alive, self.most = alive, []

    def load(self, module: nn.Module) -> None:
        super().load(module)
        for name, weight in self.weights_map.items():
            module._parameters[name] = nn.Parameter(weight.clone(), requires_grad=False)
            self.alive.append(weakref.ref(module._parameters[name]))
        self.most.append(sum(weight().nbytes for weight in self.alive if weight() is not None))


def build_decoder(offloads: bool = True) -> nn.Module:
    torch.manual_seed(0)
    sizes = TEXT | {"num_attention_heads": 2, "num_hidden_layers": 6, "num_key_value_heads": 1}
    model, alive = LlamaForCausalLM(LlamaConfig(**sizes)).eval(), []
    for part in model.modules() if offloads else ():
        if part._parameters:
            part._old_forward, part._hf_hook = part.forward, CountingHook(part, alive)
            part.forward = functools.update_wrapper(functools.partial(run_with_hook, part), part.forward)
    return model


@pytest.mark.parametrize(
    ("method", "share"),
    [
        ("gradient_x_input", 0.1),
        ("leave_one_out", 0.1),
        ("rollout", 0.1),
        ("integrated_gradients", 0.1),
        ("attnlrp", 1),
    ],
)
def test_weights_of_a_decoder_are_there_one_layer_at_a_time(method, share):
    """In the forward pass and for the backward pass, which loads them again; relevance keeps all of them."""
    offloaded, plain = build_decoder(), build_decoder(offloads=False)
    ours, theirs = (why.explain(model, IDS, method, target=3).scores for model in (offloaded, plain))
    assert torch.equal(ours, theirs)
    most = max(max(part._hf_hook.most) for part in offloaded.modules() if part.__dict__.get("_hf_hook"))
    assert most <= share * sum(weight.nbytes for weight in plain.parameters())
