"""Models of other libraries with quantised weights: unchanged after they were explained, and exact or refused.

Skipped where the library is not installed.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import TEXT
from others.cases_quantised import quantise_bitsandbytes, replace_linears
from torch import Tensor, nn

import whyformer as why

METHODS = ["gradient_x_input", "attnlrp", "rollout", "leave_one_out"]
IDS = torch.randint(5, 40, (2, 7), generator=torch.Generator().manual_seed(0))
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
pytestmark = pytest.mark.filterwarnings("ignore")


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def build_bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(**TEXT | sizes)).eval()


def quantise_to_4_bits() -> nn.Module:
    from bitsandbytes.nn import Linear4bit

    def make(linear: nn.Linear) -> nn.Module:
        return Linear4bit(linear.in_features, linear.out_features, compute_dtype=torch.float32, quant_type="nf4")

    return replace_linears(build_bert(), make).to("cpu").eval()


def quantise_to_8_bits() -> nn.Module:
    from bitsandbytes.nn import Linear8bitLt

    def make(linear: nn.Linear) -> nn.Module:
        return Linear8bitLt(linear.in_features, linear.out_features, has_fp16_weights=False)

    return replace_linears(build_bert(), make).to("cpu").eval()


def quantise_by_torchao(config: str) -> nn.Module:
    from torchao import quantization

    module = build_bert()
    quantization.quantize_(module, getattr(quantization, config)())
    return module


def run(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module(**INPUTS).logits


def restore_linears(module: nn.Module) -> nn.Module:
    """The same model with plain weights: what the codes stand for."""
    from bitsandbytes.functional import dequantize_4bit

    plain = build_bert()
    weights = plain.state_dict()
    for name, layer in module.named_modules():
        if type(layer).__name__ == "Linear8bitLt":
            weights[f"{name}.weight"] = layer.weight.data.float() * layer.weight.SCB[:, None] / 127
            weights[f"{name}.bias"] = layer.bias
        if type(layer).__name__ == "Linear4bit":
            weights[f"{name}.weight"] = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
            weights[f"{name}.bias"] = layer.bias
    plain.load_state_dict(weights)
    return plain


@needs("bitsandbytes")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("has_run", [False, True])
def test_4_bits_are_unchanged_and_right(method, has_run):
    """On CPU the first forward repacks the weights; a shadow that shared them used to change the model's answer."""
    wanted = run(quantise_to_4_bits())
    plain = why.explain(restore_linears(quantise_to_4_bits()), INPUTS, method, target=1)
    module = quantise_to_4_bits()
    if has_run:
        run(module)
    found = why.explain(module, INPUTS, method, target=1)
    assert torch.equal(run(module), wanted)
    torch.testing.assert_close(found.scores, plain.scores, rtol=0.05, atol=0.02 * float(plain.scores.abs().max()))
    assert found.targets[0].score == pytest.approx(float(wanted[0, 1]), abs=1e-2 * float(wanted.abs().max()))


@needs("bitsandbytes")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("has_run", [False, True])
def test_8_bits_are_unchanged_and_right(method, has_run):
    """Values are those of the layers, which round what they are applied to; slopes are those of their weights."""
    wanted, module = run(quantise_to_8_bits()), quantise_to_8_bits()
    plain = why.explain(restore_linears(module), INPUTS, method, target=1)
    if has_run:
        run(module)
    found = why.explain(module, INPUTS, method, target=1)
    torch.testing.assert_close(found.scores, plain.scores, rtol=0.05, atol=0.02 * float(plain.scores.abs().max()))
    assert found.targets[0].score == pytest.approx(float(wanted[0, 1]), rel=1e-5)
    assert torch.equal(run(module), wanted)


@needs("bitsandbytes")
def test_gradients_through_8_bits_are_those_of_the_layers():
    module = quantise_to_8_bits()
    words = module.get_input_embeddings()(IDS).detach().requires_grad_()
    module(inputs_embeds=words, attention_mask=INPUTS["attention_mask"]).logits[:, 1].sum().backward()
    found = why.explain(module, INPUTS, "gradient_x_input", target=1)
    torch.testing.assert_close(found.scores, (words * words.grad).sum(-1).detach(), rtol=1e-3, atol=1e-6)


@needs("bitsandbytes")
@pytest.mark.parametrize("bits", [4, 8])
def test_planned_runs_give_what_the_full_engine_does_and_keep_no_weight(bits):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, vocab_size=50)
    module = quantise_bitsandbytes(bits, LlamaForCausalLM(LlamaConfig(**sizes)).eval()).eval()
    inputs = {"input_ids": torch.randint(1, 50, (1, 24), generator=torch.Generator().manual_seed(0))}
    pack, kept = torch.autograd.graph.saved_tensors_hooks, list[Tensor]()
    with why.engine(plan=True), pytest.MonkeyPatch.context() as patch:
        why.explain(module, inputs, "attnlrp")
        patch.setattr(torch.autograd.graph, "saved_tensors_hooks", lambda keep, load: pack(note_kept(keep, kept), load))
        ours = why.explain(module, inputs, "attnlrp")
    with why.engine(plan=False):
        theirs = why.explain(module, inputs, "attnlrp")
    assert ours.engine.name == "plan" and (ours.scores - theirs.scores).abs().max() < 1e-4 * theirs.scores.abs().max()
    assert kept and not [tensor for tensor in kept if tensor.shape in {(64, 64), (192, 64), (64, 192)}]


def note_kept(keep: Callable[[Tensor], Any], kept: list[Tensor]) -> Callable[[Tensor], Any]:
    """Also notes the tensors that autograd keeps as they are."""

    def note(tensor: Tensor) -> Any:
        found = keep(tensor)
        kept.extend([found] if isinstance(found, Tensor) else [])
        return found

    return note


@needs("torchao")
@pytest.mark.parametrize("method", METHODS)
def test_weight_only_torchao_is_unchanged_and_exact(method):
    module = quantise_by_torchao("Int8WeightOnlyConfig")
    wanted, plain = run(module), build_bert()
    weights = {name: weight.dequantize() for name, weight in module.state_dict().items() if weight.is_floating_point()}
    plain.load_state_dict(weights, strict=False)
    found = why.explain(module, INPUTS, method, target=1)
    expected = why.explain(plain, INPUTS, method, target=1)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-5)
    assert torch.equal(run(module), wanted)


@needs("torchao")
def test_planned_runs_of_weight_only_torchao_give_what_the_full_engine_does():
    from torchao import quantization
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
    module = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    quantization.quantize_(module, quantization.Int8WeightOnlyConfig())
    inputs = {"input_ids": torch.randint(1, 50, (1, 24), generator=torch.Generator().manual_seed(0))}
    with why.engine(plan=True):
        ours = why.explain(module, inputs, "attnlrp")
    with why.engine(plan=False):
        theirs = why.explain(module, inputs, "attnlrp")
    assert ours.engine.name == "plan" and (ours.scores - theirs.scores).abs().max() < 1e-4 * theirs.scores.abs().max()
    assert any("as restored from fewer bits" in note for note in ours.notes)


@needs("torchao")
@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp", "rollout"])
def test_torchao_that_quantises_activations_has_the_slopes_of_its_weights(method):
    """Close to the same model with plain weights: what differs is the rounding of activations to 8 bits."""
    module, plain = quantise_by_torchao("Int8DynamicActivationInt8WeightConfig"), build_bert()
    weights = {name: weight.dequantize() for name, weight in module.state_dict().items() if weight.is_floating_point()}
    plain.load_state_dict(weights, strict=False)
    found, expected = (why.explain(one, INPUTS, method, target=1) for one in (module, plain))
    torch.testing.assert_close(found.scores, expected.scores, rtol=0.1, atol=0.05 * float(expected.scores.abs().max()))
    assert found.targets[0].score == pytest.approx(float(run(module)[0, 1]), rel=1e-5)


@needs("hqq")
@pytest.mark.parametrize("method", METHODS)
def test_hqq_is_exact(method):
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    module, plain = build_bert(), build_bert()
    config = BaseQuantizeConfig(nbits=4, group_size=64)
    for path, linear in list(module.named_modules()):
        if isinstance(linear, nn.Linear) and "encoder" in path:
            layer = HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu", del_orig=False)
            module.set_submodule(path, layer)
            plain.get_submodule(path).weight.data = layer.dequantize()
    wanted = run(module)
    found, expected = (why.explain(one, INPUTS, method, target=1) for one in (module, plain))
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-5)
    assert torch.equal(run(module), wanted)
