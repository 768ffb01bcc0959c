"""Refusals lead somewhere: every method that refuses a model names others, and those that it names work."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from conftest import QUICK
from families.cases import build_model, list_classes
from families.inputs import make_inputs
from test_odd_models import Block, Chain, TwoTowers
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.tracing import operations
from whyformer.errors import ModelError, UnsupportedModel, WhyformerError
from whyformer.methods._registry import METHODS

Case = tuple[nn.Module, dict[str, Tensor]]
STATES = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Windows(nn.Module):
    """Attention in two windows, folded into the batch, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.block, self.head = Block(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.block(x.unflatten(1, (2, -1)).flatten(0, 1))
        return self.head(parts.unflatten(0, (len(x), 2)).flatten(1, 2).mean(1))


class NoAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(x).relu().mean(1))


class OwnKernel(Chain):
    """An activation in a kernel of its own, which has a gradient but no relevance rule."""

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            context.save_for_backward(x)
            return x * x.sigmoid() + x.sin()

        @staticmethod
        def backward(context: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
            (x,) = context.saved_tensors
            return grad * (x.sigmoid() * (1 + x * (1 - x.sigmoid())) + x.cos())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.Swish.apply(x))


class Looking(nn.Module):
    """A vision-language model: patches of an image take the place of tokens of a text, which goes on from there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.see, self.cut, self.embed = Block(), nn.Conv2d(3, 16, 4, stride=4), nn.Embedding(20, 16)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 20)

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        seen = self.see(self.cut(pixel_values).flatten(2).mT)
        x = torch.cat([seen, self.embed(input_ids)], 1)
        return self.head(self.blocks(x)[:, seen.size(1) :])


def make_encoder_decoder() -> Case:
    """An encoder of images whose decoder reads tokens."""
    from transformers import BertConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    parts = ViTConfig(image_size=16, patch_size=8, **sizes), BertConfig(vocab_size=20, **sizes)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return VisionEncoderDecoderModel(config=config), {
        "pixel_values": pixels,
        "decoder_input_ids": torch.tensor([[1, 5]]),
    }


KERNELS = torch.library.Library("refused", "DEF")  # autograd knows nothing of its operation
KERNELS.define("swish(Tensor x) -> Tensor")
KERNELS.impl("swish", lambda x: F.silu(x.detach()), "CPU")


class CompiledKernel(Chain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.ops.refused.swish(x))


def make_vision_language() -> Case:
    ids = torch.randint(1, 20, (2, 5), generator=torch.Generator().manual_seed(0))
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Looking().double(), {"input_ids": ids, "pixel_values": pixels}


CASES: dict[str, Callable[[], Case]] = {
    "encoder and decoder": make_encoder_decoder,
    "vision and language": make_vision_language,
    "windows": lambda: (Windows().double(), {"x": STATES}),
    "two towers": lambda: (TwoTowers().double(), {"x": STATES}),
    "no attention": lambda: (NoAttention().double(), {"x": STATES}),
    "own kernel": lambda: (OwnKernel().double(), {"x": STATES}),
    "compiled kernel": lambda: (CompiledKernel().double(), {"x": STATES}),
}

FAST = ("encoder and decoder", "windows", "own kernel")


def read_named_methods(message: str) -> list[str]:
    """Every method that a message names, except the one that refused, which may say its own name."""
    return [word for word in re.findall(r"[a-z_0-9]+", message) if word in METHODS]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else [pytest.mark.slow]) for c in CASES])
def test_what_a_refusal_names_works(case):
    """No message sends a user to a method that refuses the same model."""
    module, inputs = CASES[case]()
    model = why.open(module.eval())
    works: dict[str, bool] = {}

    def tries(name: str, **target: object) -> str:
        try:
            why.explain(model, inputs, name, **QUICK.get(name, {}), **target)
        except WhyformerError as error:
            works[name] = False
            return str(error)
        works[name] = True
        return ""

    messages = {name: tries(name) for name in sorted(METHODS)}
    assert not all(works.values())
    for name, message in messages.items():
        refers = [other for other in read_named_methods(message) if other != name]
        if "With a function of what the model returns as target" in message:
            assert refers and not any(tries(other, target=lambda out: out[:, -1, -1]) for other in refers), message
            continue
        assert all(works[other] for other in refers), f"{name} names {refers}: {message}"
        if message and "E_OPTION" not in message:
            assert (
                refers or "No method works on this model" in message or re.search(r"fill=|readout=|target=", message)
            ), message


def test_a_refusal_says_which_methods_work():
    with pytest.raises(UnsupportedModel, match=r"Methods that work here: attnlrp, gradient_x_input\.$"):
        why.explain(Windows().double().eval(), {"x": STATES}, "rollout", target=0)


def test_a_refused_default_says_which_methods_work():
    module, inputs = CASES["compiled kernel"]()
    with pytest.raises(ModelError, match=r"Methods that work here: rollout, leave_one_out, rise\.$"):
        why.explain(module.eval(), inputs)


def test_a_refusal_of_everything_says_so():
    module, inputs = make_encoder_decoder()
    with pytest.raises(WhyformerError, match=r"No method works on this model\.$"):
        why.explain(module.eval(), inputs, "rollout")


# --- the doctor -------------------------------------------------------------------------------------------------------


def collect_refusals(model: why.Model, inputs: object, checks: why.Diagnosis) -> dict[str, str]:
    """What explain() raises for each method of a diagnosis, "" where it works."""
    refusals = {}
    for check in checks:
        refusals[check.method] = ""
        try:
            why.explain(model, inputs, check.method, **check.settings)
        except WhyformerError as error:
            refusals[check.method] = str(error)
    return refusals


def describe_default(model: why.Model, inputs: object) -> list[str]:
    """How the doctor may describe what explain() does without a method."""
    try:
        explanation = why.explain(model, inputs)
    except WhyformerError as error:
        return [f"{name}, which does not work here: {error}" for name in ("gamma_attribution", "libragrad")]
    return [explanation.method, *explanation.notes]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else [pytest.mark.slow]) for c in CASES])
def test_the_doctor_says_what_explain_says(case):
    """Word for word, for every method and for the default."""
    module, inputs = CASES[case]()
    model = why.open(module.eval())
    tried = sorted(METHODS) if case not in FAST else ["gamma_attribution", "libragrad", "rollout", "leave_one_out"]
    diagnosis = why.diagnose(model, inputs, tried)
    assert {check.method: check.reason for check in diagnosis} == collect_refusals(model, inputs, diagnosis)
    assert any(check.reason for check in diagnosis)
    assert diagnosis.found["default method"] in describe_default(model, inputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "Qwen3NextForCausalLM",
        "LlavaForConditionalGeneration",
        "T5ForConditionalGeneration",
        "SwinForImageClassification",
        "BloomForCausalLM",
    ],
)
def test_the_doctor_agrees_with_explain_on_families(name):
    chosen = next(one for one in list_classes() if one.name == name)
    module = build_model(chosen)
    inputs, model = make_inputs(module, chosen.task, chosen.architecture), why.open(module)
    diagnosis = why.diagnose(model, inputs)
    assert {check.method: check.reason for check in diagnosis} == collect_refusals(model, inputs, diagnosis)


# --- what nobody foresaw ----------------------------------------------------------------------------------------------


def test_a_bug_of_ours_is_reported_as_one(monkeypatch):
    def fail(*_: object) -> None:
        return [][0]

    monkeypatch.setattr("whyformer._engine.tracing.follow.Follower.follow_reduction", fail)
    failing = re.escape("whyformer failed on Chain at ")
    monkeypatch.setitem(fail.__globals__, "__name__", "whyformer._engine.planted")
    with pytest.raises(UnsupportedModel, match=failing) as raised:
        why.explain(Chain().double().eval(), {"x": STATES}, "rollout", target=0)
    assert raised.value.code == "E_INTERNAL" and raised.value.exit_code == 1
    assert isinstance(raised.value.__cause__, IndexError)


def test_what_a_model_raises_itself_is_left_alone():
    class Failing(Chain):
        def forward(self, x: Tensor) -> Tensor:
            raise LookupError("my own")

    with pytest.raises(LookupError, match="my own"):
        why.explain(Failing().double().eval(), {"x": STATES}, "rollout", target=0)


@pytest.mark.parametrize("name", ["flash_attn_func", "memory_efficient_attention_forward"])
def test_a_kernel_that_hides_its_attention_is_refused(name):
    assert operations.hides_attention(name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_flex_attention_of_transformers_gives_the_scores_of_fused_attention():
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**settings, intermediate_size=32, pad_token_id=0)
    module = LlamaForCausalLM._from_config(config, attn_implementation="flex_attention").eval()
    inputs = {"input_ids": torch.arange(1, 7)[None]}
    found = [why.explain(module, inputs, method).scores for method in ("rollout", "attnlrp", "leave_one_out")]
    module.set_attn_implementation("sdpa")
    wanted = [why.explain(module, inputs, method).scores for method in ("rollout", "attnlrp", "leave_one_out")]
    torch.testing.assert_close(found, wanted)


# --- modules of one's own ---------------------------------------------------------------------------------------------


class OwnModel(nn.Module):
    """Embeddings, a block and a head, each used as a subclass likes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.block, self.head = nn.Embedding(20, 16), Block(), nn.Linear(16, 3)


class FrozenBackbone(OwnModel):
    def forward(self, input_ids: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.block(self.embed(input_ids))
        return self.head(x[:, 0])


class FrozenBehindImage(OwnModel):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 16, 4, stride=4)

    def forward(self, pixel_values: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.block(self.cut(pixel_values).flatten(2).mT)
        return self.head(x.mean(1))


class Detached(OwnModel):
    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.block(self.embed(input_ids)).detach()[:, 0])


class FrozenScale(OwnModel):
    """Only a factor is computed without a gradient, from the embeddings themselves."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        with torch.no_grad():
            scale = x.norm(dim=-1).mean()
        return self.head(self.block(x / scale)[:, 0])


IDS = {"input_ids": torch.arange(1, 7)[None]}
PIXELS = {"pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("method", [None, "gradient_x_input", "attnlrp", "generic_attention"])
@pytest.mark.parametrize(("kind", "inputs"), [(FrozenBackbone, IDS), (FrozenBehindImage, PIXELS)])
def test_a_backbone_without_gradients_is_explained_and_noted(kind, inputs, method):
    found = why.explain(kind().eval(), inputs, method, target=0)
    assert found.scores.any() and any("switches gradients off" in note for note in found.notes)


@pytest.mark.parametrize("method", [None, "gradient_x_input"])
def test_detached_states_are_explained_and_noted(method):
    found = why.explain(Detached().eval(), IDS, method, target=0)
    assert found.scores.any() and any("calls detach()" in note for note in found.notes)


def test_a_factor_without_a_gradient_is_a_constant():
    module = FrozenScale().double().eval()
    x = module.embed(IDS["input_ids"]).detach().requires_grad_()
    module.head(module.block(x / x.detach().norm(dim=-1).mean())[:, 0])[0, 0].backward()
    scores = why.explain(module, IDS, "gradient_x_input", target=0).scores
    torch.testing.assert_close(scores, (x * x.grad).sum(-1).detach())


@pytest.mark.slow
def test_a_signal_of_no_frames_is_not_a_bug():
    """A tensor that the model folds in its own way: refused in our words, by every method."""

    class Folded(Chain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x, (0, 4)).reshape(len(x), 3, 16))

    model, x = why.open(Folded().double().eval()), torch.randn(2, 44, dtype=torch.float64)
    for name in METHODS:
        raised = None
        try:
            why.explain(model, {"x": x}, name, target=0, **QUICK.get(name, {}))
        except WhyformerError as error:
            raised = error
        assert raised is None or raised.code != "E_INTERNAL", raised
