"""A model is made to compute something else without its parameters being touched: what is explained is the new model.

Each change is one that users make between two calls: a registered attention, a replaced helper, a swapped `__code__`, a
number that `forward` reads. Before it, programs, lessons and shortcuts have been used; after it, the default must be
what a run of the model itself gives.
"""

import math
from types import FunctionType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import transformers.integrations.sdpa_attention as sdpa
import transformers.masking_utils as masks
import transformers.modeling_utils as utils
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM
from transformers.models.bert import modeling_bert
from transformers.models.llama import modeling_llama
from watched_programs import watch_programs

import whyformer as why
from whyformer._engine.capture.capture import RunSetting, run_setting
from whyformer._engine.program import replay

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
CALLS = 5  # a plan is learnt and tried in the first three
IDS = torch.randint(1, 50, (1, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True, params=["program", "plan"])
def faster(request, monkeypatch):
    """What runs in place of the full engine: programs, as on a GPU, from the second call on, or planned runs."""
    monkeypatch.setattr(replay, "RECORDED_AT", 1)
    monkeypatch.setattr(replay, "is_worth_it", lambda device: True)
    token = run_setting.set(RunSetting(replay=None, plan=False if request.param == "program" else None))
    replay.KNOWN.clear()
    CHANGE_CLOSURE(1.0)
    yield request.param
    replay.KNOWN.clear()
    run_setting.reset(token)


def make_bert(attention: str = "sdpa") -> nn.Module:
    torch.manual_seed(0)
    return BertForSequenceClassification._from_config(BertConfig(**SIZES), attn_implementation=attention).eval()


def make_llama() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)).eval()


def explain(module: nn.Module, method: str = "gradient_x_input") -> why.Explanation:
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    return why.explain(module, inputs, method, target=0)


def check_change(module: nn.Module, change, method: str = "gradient_x_input") -> None:
    """The program is used before the change, is not used after it, and the scores are those of the changed model."""
    before = [explain(module, method) for _ in range(CALLS)][-1]
    assert before.engine.name in ("program", "plan"), "neither a program nor a plan was used"
    change(module)
    for _ in range(CALLS):
        found = explain(module, method)
        with why.engine(replay=False, plan=False):
            plain = explain(module, method)
        torch.testing.assert_close(found.scores, plain.scores, rtol=1e-5, atol=1e-6)
        assert found.targets[0].label == plain.targets[0].label
        assert found.targets[0].score == pytest.approx(plain.targets[0].score, rel=1e-5)
        assert float(found.targets[0].score) != float(before.targets[0].score), "the change changes nothing"


# --- library models, by default --------------------------------------------------------------------------------------


def sharpen(old):
    """An attention with sharper weights and larger values."""

    def attend(module, query, key, value, mask, **options):
        return old(module, query * 6, key, value * 3, mask, **options)

    return attend


def register_attention(patch):
    patch.setitem(utils.AttentionInterface._global_mapping, "sdpa", sharpen(sdpa.sdpa_attention_forward))


def override_attention(patch):
    patch.setitem(utils.ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", sharpen(sdpa.sdpa_attention_forward))


def hide_last_key(*args, **options):
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool)
    mask[..., 4] = False
    return mask


def register_mask(patch):
    patch.setitem(masks.AttentionMaskInterface._global_mapping, "sdpa", hide_last_key)


def replace_fused_kernel(patch):
    old = F.scaled_dot_product_attention
    patch.setattr(F, "scaled_dot_product_attention", lambda q, *rest, **options: old(q * 5, *rest, **options))


def replace_method_of_tensors(patch):
    old = Tensor.softmax
    patch.setattr(Tensor, "softmax", lambda self, *args, **options: old(self * 3, *args, **options), raising=False)


def replace_twice(patch):
    """The second function may have the address of the first."""
    old, registry = sdpa.sdpa_attention_forward, utils.AttentionInterface._global_mapping
    patch.setitem(registry, "sdpa", sharpen(old))
    for _ in range(40):
        registry["sdpa"] = sharpen(old)


@pytest.mark.parametrize(
    "change", [register_attention, override_attention, register_mask, replace_fused_kernel, replace_twice]
)
@pytest.mark.parametrize("make", [make_bert, make_llama])
def test_a_replaced_attention_or_mask(monkeypatch, change, make):
    check_change(make(), lambda _: change(monkeypatch))


@pytest.mark.parametrize("method", ["libragrad", "transformer_attribution", "rollout"])
def test_other_methods_too(monkeypatch, method):
    module = make_bert()
    for _ in range(CALLS):
        before = explain(module, method)
    register_attention(monkeypatch)
    for _ in range(CALLS):
        found = explain(module, method)
        with why.engine(replay=False, plan=False):
            plain = explain(module, method)
        torch.testing.assert_close(found.scores, plain.scores, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found.scores, before.scores)


def swap_code(function: FunctionType, by: FunctionType, patch) -> None:
    patch.setattr(function, "__code__", by.__code__)


def repeat_heads(patch):
    """Groups of heads are repeated by a helper, which doubles them."""
    patch.setattr(sdpa, "use_gqa_in_sdpa", lambda *_: False)
    patch.setattr(sdpa, "repeat_kv", lambda x, n: x.repeat_interleave(n, 1) * 2)


def hide_by_causal_mask(patch):
    """The mask is made, though a causal kernel needs none, and hides a token."""
    patch.setattr(masks, "_ignore_causal_mask_sdpa", lambda *_, **__: False)
    patch.setattr(masks, "causal_mask_function", lambda b, h, q, k: (k <= q) & (k != 4))


def rotate_less(x):
    return x * 0.5


def add_nothing(self, hidden_states, input_tensor):
    return self.LayerNorm(self.dense(hidden_states))


def rotate_twice(q, k, cos, sin, unsqueeze_dim=1):
    return q * 2, k * cos.unsqueeze(unsqueeze_dim)


CHANGES_OF_HELPERS = {
    "helper of the model's file": (make_llama, lambda p: p.setattr(modeling_llama, "rotate_half", rotate_less)),
    "rotary helper": (make_llama, lambda p: p.setattr(modeling_llama, "apply_rotary_pos_emb", rotate_twice)),
    "helper of the attention's file": (make_llama, repeat_heads),
    "function that makes masks": (
        make_bert,
        lambda p: p.setattr(modeling_bert, "create_bidirectional_mask", hide_last_key),
    ),
    "function inside the file of masks": (make_llama, hide_by_causal_mask),
    "code of a method": (
        make_bert,
        lambda p: swap_code(modeling_bert.BertSelfOutput.forward, add_nothing, p),
    ),
    "code of a helper": (make_llama, lambda p: swap_code(modeling_llama.rotate_half, rotate_less, p)),
    "eager attention": (
        lambda: make_bert("eager"),
        lambda p: p.setattr(modeling_bert, "eager_attention_forward", sharpen(modeling_bert.eager_attention_forward)),
    ),
    "function of torch": (
        lambda: make_bert("eager"),
        lambda p: p.setattr(F, "softmax", lambda x, dim=-1, dtype=None: torch.softmax(x * 4, dim, dtype)),
    ),
    "method of tensors": (lambda: make_bert("eager"), replace_method_of_tensors),
    "method of a module": (
        make_bert,
        lambda p: p.setattr(nn.Linear, "forward", lambda m, x: F.linear(x, m.weight * 2)),
    ),
}


@pytest.mark.parametrize("name", CHANGES_OF_HELPERS)
def test_a_replaced_helper(monkeypatch, name):
    make, change = CHANGES_OF_HELPERS[name]
    check_change(make(), lambda _: change(monkeypatch))


def test_what_replaced_something_is_watched_too(monkeypatch):
    """A registered function, a number of its own file, and that number changed."""
    module = make_bert()
    register_own = lambda m, q, k, v, mask, **o: sdpa.sdpa_attention_forward(m, q * FACTOR, k, v, mask, **o)  # noqa: E731
    monkeypatch.setitem(utils.AttentionInterface._global_mapping, "sdpa", register_own)
    with why.engine(replay=True):
        for _ in range(CALLS):
            explain(module)
        monkeypatch.setitem(globals(), "FACTOR", 7.0)
        found = explain(module)
    with why.engine(replay=False, plan=False):
        torch.testing.assert_close(found.scores, explain(module).scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("faster", ["program"], indirect=True)
def test_a_change_that_is_taken_back_brings_the_program_back(monkeypatch):
    module = make_bert()
    for _ in range(3):
        before = explain(module)
    outcomes = watch_programs(monkeypatch)
    old = modeling_bert.create_bidirectional_mask
    modeling_bert.create_bidirectional_mask = hide_last_key
    try:
        explain(module)
    finally:
        modeling_bert.create_bidirectional_mask = old
    for _ in range(2):
        found = explain(module)
    assert torch.equal(found.scores, before.scores)
    assert outcomes[0] == "ran" and outcomes[-1] == "replayed"


# --- models of users, where replay is asked for ----------------------------------------------------------------------

FACTOR = 1.0
TABLE = {"factor": 1.0}
SETTINGS = SimpleNamespace(factor=1.0)


def make_scaler():
    factor = 1.0

    def scale(x: Tensor) -> Tensor:
        return x * factor

    def change(to: float) -> None:
        nonlocal factor
        factor = to

    return scale, change


SCALE, CHANGE_CLOSURE = make_scaler()


def scale_by_default(x: Tensor, factor: float = 1.0) -> Tensor:
    return x * factor


class Scaled(nn.Module):
    """Attention with a factor from somewhere."""

    of_class = 1.0

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.words, self.head = how, nn.Embedding(50, 8), nn.Linear(8, 3)
        self.maps = nn.Linear(8, 24)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("scales", torch.tensor([1.0, 1.0]))
        self.settings, self.table = SimpleNamespace(factor=1.0), {"factor": 1.0}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(input_ids)
        q, k, v = self.maps(x).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v)
        return self.head(self.apply_factor(x).mean(1).tanh())

    def apply_factor(self, x: Tensor) -> Tensor:
        if self.how == "function":
            return SCALE(x)
        if self.how == "default":
            return scale_by_default(x)
        return x * READ[self.how](self)


READ = {
    "item of a weight": lambda m: m.scale.item(),
    "item of what is computed from a weight": lambda m: (m.scale * 2).exp().item(),
    "float of a weight": lambda m: float(m.scale),
    "list of a buffer": lambda m: m.scales.tolist()[1],
    "comparison with a weight": lambda m: 3.0 if bool(m.scale > 1.5) else 1.0,
    "global": lambda m: FACTOR,
    "global table": lambda m: TABLE["factor"],
    "global object": lambda m: SETTINGS.factor,
    "object of the module": lambda m: m.settings.factor,
    "table of the module": lambda m: m.table["factor"],
    "class": lambda m: m.of_class,
}

CHANGES_OF_NUMBERS = {
    "item of a weight": lambda m, p: m.scale.data.fill_(2.0),
    "item of what is computed from a weight": lambda m, p: m.scale.data.fill_(2.0),
    "float of a weight": lambda m, p: m.scale.data.fill_(2.0),
    "list of a buffer": lambda m, p: m.scales.data.fill_(2.0),
    "comparison with a weight": lambda m, p: m.scale.data.fill_(2.0),
    "global": lambda m, p: p.setitem(globals(), "FACTOR", 2.0),
    "global table": lambda m, p: p.setitem(TABLE, "factor", 2.0),
    "global object": lambda m, p: p.setattr(SETTINGS, "factor", 2.0),
    "object of the module": lambda m, p: setattr(m.settings, "factor", 2.0),
    "table of the module": lambda m, p: m.table.update(factor=2.0),
    "class": lambda m, p: p.setattr(Scaled, "of_class", 2.0),
    "function": lambda m, p: CHANGE_CLOSURE(2.0 + math.pi * (torch.rand(()).item())),
    "default": lambda m, p: p.setattr(scale_by_default, "__defaults__", (2.0,)),
}


@pytest.mark.parametrize("how", CHANGES_OF_NUMBERS)
def test_a_number_that_forward_reads(monkeypatch, how):
    module = Scaled(how).eval()
    with why.engine(replay=True):
        for _ in range(CALLS):
            before = explain(module)
        CHANGES_OF_NUMBERS[how](module, monkeypatch)
        for _ in range(CALLS):
            found = explain(module)
    with why.engine(replay=False, plan=False):
        plain = explain(module)
    torch.testing.assert_close(found.scores, plain.scores, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(found.scores, before.scores), "the change changes nothing"


@pytest.mark.parametrize("faster", ["program"], indirect=True)
def test_a_weight_that_is_read_and_not_changed_is_replayed(monkeypatch):
    module = Scaled("item of a weight").eval()
    outcomes = watch_programs(monkeypatch)
    with why.engine(replay=True):
        for _ in range(3):
            explain(module)
    assert outcomes == ["ran", "replayed", "replayed"]


# --- what else is kept about a model ---------------------------------------------------------------------------------


def test_a_lesson_is_learnt_again(monkeypatch):
    """The same operations in another order: no step of the lesson differs."""
    module = make_llama()
    with why.engine(plan=True):
        explain(module, "attnlrp")
        monkeypatch.setattr(
            modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin, **_: (k.repeat_interleave(2, 1), q[:, ::2])
        )
        found = explain(module, "attnlrp")
    with why.engine(plan=False), why.engine(replay=False):
        plain = explain(module, "attnlrp")
    torch.testing.assert_close(found.scores, plain.scores, rtol=1e-4, atol=1e-6)


def test_a_shortcut_is_tried_again(monkeypatch):
    """Tokens after a removed one are computed alone where attention is causal; then it is not any more."""
    module = make_llama()
    ids = torch.randint(1, 50, (1, 60), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    why.explain(module, inputs, "leave_one_out", target=0)
    monkeypatch.setattr(masks, "_ignore_causal_mask_sdpa", lambda *_, **__: False)
    monkeypatch.setattr(masks, "causal_mask_function", lambda b, h, q, k: (k <= q) | (k > 50))
    found = why.explain(module, inputs, "leave_one_out", target=0)
    fresh = make_llama()
    plain = why.explain(fresh, inputs, "leave_one_out", target=0)
    torch.testing.assert_close(found.scores, plain.scores, rtol=1e-4, atol=1e-6)
