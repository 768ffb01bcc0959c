"""What people write around inference changes no number: gradient, autocast, device, dtype, determinism, anomaly."""

from functools import cache

import pytest
import torch
from attack.odd import MODES, describe_torch
from conftest import animal, build
from torch import nn

import whyformer as why
from whyformer._engine.run.forward import run_forward
from whyformer._engine.run.graph import compute_gradients
from whyformer._plain.torch_state import leave_inference, neutral_torch
from whyformer.errors import InputError, NonFinite, UnsupportedModel

METHODS = {
    "gradient_x_input": {},
    "attnlrp": {},
    "rollout": {},
    "leave_one_out": {},
    "integrated_gradients": {"steps": 2},
}


@cache
def plain_scores(name, method):
    it = animal(name)
    return why.explain(it.module, it.inputs, method, target=0, **METHODS[method]).scores


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "method"), [("bert", method) for method in METHODS] + [("vit", "attnlrp"), ("gpt", "integrated_gradients")]
)
def test_a_mode_of_the_caller_changes_no_number_and_stays(name, method, mode):
    it, plain = animal(name), plain_scores(name, method)
    with MODES[mode]():
        before = describe_torch()
        e = why.explain(it.module, it.inputs, method, target=0, **METHODS[method])
        assert str(e) and describe_torch() == before
    rtol = 1e-9 if method == "attnlrp" else 0  # the first calls run the full engine, later ones a plan: other rounding
    torch.testing.assert_close(e.scores, plain, rtol=rtol, atol=rtol * float(plain.abs().max()))
    assert not e.scores.is_inference()


@pytest.mark.parametrize("mode", MODES)
def test_compare_record_and_encode_work_in_every_mode(mode):
    it = animal("bert")
    model = why.open(it.module)
    plain = why.record(model, model.encode(it.inputs), keep={"input_grad"})["input_grad"]
    with MODES[mode]():
        encoded = model.encode(it.inputs)
        found = why.record(model, encoded, keep={"input_grad"})["input_grad"]
        compared = why.compare(model, encoded, ["gradient_x_input", "rollout"], target=0)
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
    for e in compared:
        torch.testing.assert_close(
            e.scores, why.explain(model, it.inputs, e.method, target=0).scores, rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_is_as_before_after_an_error(mode):
    it = animal("bert")
    with MODES[mode]():
        before = describe_torch()
        with pytest.raises(why.WhyformerError):
            why.explain(it.module, it.inputs, target=99)
        assert describe_torch() == before


@pytest.mark.parametrize("method", ["rollout", "gradient_x_input", "attnlrp", "leave_one_out"])
def test_weights_and_inputs_made_in_inference_mode_are_copied(method):
    it = animal("bert")
    with torch.inference_mode():
        module = build("bert")
        inputs = {key: value.clone() for key, value in it.inputs.items()}
    e = why.explain(module, inputs, method, target=0)
    torch.testing.assert_close(e.scores, why.explain(build("bert"), it.inputs, method, target=0).scores)
    assert any("inference_mode" in note for note in e.notes)


def test_a_batch_encoded_in_inference_mode_can_be_explained():
    it = animal("vit")
    model = why.open(it.module)
    with torch.inference_mode():
        encoded = model.encode({"pixel_values": it.inputs["pixel_values"].clone()})
        assert why.explain(model, encoded, "gradient_x_input").scores.isfinite().all()


def test_a_tensor_that_is_no_inference_tensor_is_not_copied():
    tensor = torch.ones(2)
    assert leave_inference(tensor) is tensor


def test_neutral_means_gradients_no_autocast_and_the_cpu():
    with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu"), neutral_torch():
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert torch.ones(1).device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def test_a_run_is_neutral_and_its_end_restores():
    it = animal("bert")
    model = why.open(it.module)
    with torch.no_grad():
        with run_forward(model, model.encode(it.inputs), asks_gradient=True) as run:
            assert run.output.requires_grad and torch.is_grad_enabled()
        assert not torch.is_grad_enabled()


def test_a_gradient_that_anomaly_detection_refuses_is_not_finite():
    x = torch.zeros(1, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True), pytest.raises(NonFinite, match="Anomaly detection"):
        compute_gradients(x.sqrt() * 0, [x])


class Undeterministic(torch.autograd.Function):
    """As torch says it on a GPU."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, arriving):
        raise RuntimeError("cumsum has no deterministic implementation: use_deterministic_algorithms(...)")


def test_what_deterministic_mode_refuses_is_told():
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(UnsupportedModel, match="use_deterministic_algorithms") as raised:
        compute_gradients(Undeterministic.apply(x), [x])
    assert raised.value.code == "E_DEVICE"


class Wrapped(nn.Module):
    """A BERT, and something that happens before it."""

    def __init__(self, before):
        super().__init__()
        self.inner, self.before = build("bert"), before

    def forward(self, input_ids, attention_mask):
        self.before(input_ids)
        return self.inner(input_ids, attention_mask)


def refuse_deterministically(_):
    raise RuntimeError("my own use_deterministic_algorithms")


def test_an_exception_of_the_users_module_passes_unchanged():
    with pytest.raises(RuntimeError, match="my own"):
        why.explain(Wrapped(refuse_deterministically), animal("bert").inputs)


def test_an_error_of_torch_in_the_forward_names_the_inputs():
    with pytest.raises(InputError, match=r"Wrapped cannot run on these inputs: input_ids int64 \[3, 9\]") as raised:
        why.explain(Wrapped(lambda ids: ids @ ids), animal("bert").inputs)
    assert raised.value.code == "E_TENSOR" and raised.value.__cause__ is not None
