"""DecompX: parts of every state, against gradients with everything held and against the rules written slowly."""

import copy

import pytest
import torch
from conftest import FAMILIES, HandmadeGPT, animal, handmade_gelu
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.capture import decompose
from whyformer._engine.capture.decompose import compute_secant_slope, share_bias
from whyformer._engine.record import record
from whyformer.errors import UnsupportedModel

IDS = torch.tensor([[5, 6, 7, 8], [9, 5, 8, 6]])


def test_a_bias_is_shared_out_by_hand():
    """Parts (1, 0) and (0, 2) of a sum that is (2, 4): the bias (1, 2) has the dot products 1 and 4 with them, so they
    get a fifth and four fifths of it."""
    given = torch.tensor([[1.0, 0.0], [0.0, 2.0]])[:, None]
    found = share_bias(given, torch.tensor([[2.0, 4.0]]))
    assert_close(found[:, 0], torch.tensor([[1.2, 0.4], [0.8, 3.6]]))


def test_a_token_with_no_part_gets_no_bias():
    given = torch.tensor([[1.0, 1.0], [0.0, 0.0]])[:, None]
    assert_close(share_bias(given, torch.tensor([[2.0, 3.0]]))[1, 0], torch.zeros(2))


def test_the_line_through_zero_by_hand():
    assert_close(
        compute_secant_slope(torch.tensor([3.0, 0.0, 5.0]), torch.tensor([2.0, 0.0, -1.0])),
        torch.tensor([1.5, 0.0, -5.0]),
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_all_tokens_together_are_the_output(name):
    """Special ones included. Llama computes its norms in float32."""
    it = animal(name)
    model = why.open(it.module)
    held = record(model, model.encode(it.inputs), target=[0, 1, 2], keep={"answer_parts", "released_answer_parts"})
    wanted = torch.tensor([target.score for target in held.targets], dtype=torch.double)
    for form in ("answer_parts", "released_answer_parts"):
        assert_close(held[form].sum(-1), wanted, atol=1e-6 if name == "llama" else 1e-12, rtol=0)


def test_a_contrast_is_the_difference():
    it = animal("bert")
    model = why.open(it.module)
    e = why.explain(model, it.inputs, "decompx", target=1, versus=[3, None, 3])
    one, other = (why.explain(model, it.inputs, "decompx", target=t).scores for t in (1, 3))
    assert_close(e.scores[[0, 2]], (one - other)[[0, 2]])
    assert_close(e.scores[1], one[1])


def without_biases():
    torch.manual_seed(1)
    module = HandmadeGPT().double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.zeros_like(parameter) if "bias" in name else torch.randn_like(parameter) * 0.3)
    return module


def held_forward(module, x):
    """The model with attention, deviations and slopes as constants; gradients flow through the rest."""

    def norm(layer, x):
        scale = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).rsqrt().detach()
        return (x - x.mean(-1, keepdim=True)) * scale * layer.weight + layer.bias

    for block in module.h:
        entered = norm(block.ln_1, x)
        batch, length, width = x.shape
        query, key, value = (
            t.view(batch, length, 3, -1).transpose(1, 2) for t in block.attn.c_attn(entered).split(width, dim=2)
        )
        scores = (query @ key.mT) / key.size(-1) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(hidden, -torch.inf).softmax(-1).detach()
        x = x + block.attn.c_proj((attention @ value).transpose(1, 2).reshape(batch, length, width))
        up = block.up(norm(block.ln_2, x))
        x = x + block.down(up * (handmade_gelu(up) / up).detach())
    return module.lm_head(norm(module.ln_f, x))[:, -1]


def test_without_biases_it_is_gradient_times_input_with_everything_held():
    module = without_biases()
    x = (module.wte(IDS) + module.wpe(torch.arange(4))).detach().requires_grad_()
    logits = held_forward(module, x)
    with torch.no_grad():
        assert_close(logits, module(IDS)[:, -1])
    (grad,) = torch.autograd.grad(logits[:, 7].sum(), x)
    for preset in ("paper", "released"):
        found = why.explain(why.open(module), IDS, "decompx", target=7, preset=preset).scores
        assert_close(found, (grad * x).sum(-1).detach())


def slowly(module, ids, target, preset):
    """The rules part by part for one example: parts[i][k] is what token k brought to token i."""
    x = module.wte(ids) + module.wpe(torch.arange(len(ids)))
    n = len(ids)
    state = [[x[i] * (i == k) for k in range(n)] for i in range(n)]

    def with_bias(row, bias):
        dots = torch.stack([(part @ bias).abs() for part in row])
        return [part + share * bias for part, share in zip(row, dots / dots.sum(), strict=True)]

    def linear(layer, rows):
        mapped = [[layer.weight @ part for part in row] for row in rows]
        return [with_bias(row, layer.bias) for row in mapped] if layer.bias is not None else mapped

    def norm(layer, rows):
        found = []
        for row in rows:
            scale = (sum(row).var(unbiased=False) + layer.eps).rsqrt()
            found.append(with_bias([(part - part.mean()) * scale * layer.weight for part in row], layer.bias))
        return found

    def plus(a, b):
        return [[p + q for p, q in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]

    for number, block in enumerate(module.h):
        entered = norm(block.ln_1, state)
        whole = block.attn.c_attn(torch.stack([sum(row) for row in entered]))
        query, key, _ = whole.view(n, 3, 3, -1).unbind(1)
        value_weight, value_bias = block.attn.c_attn.weight[48:], block.attn.c_attn.bias[48:]
        value = [[value_weight @ part for part in row] for row in entered]
        left = block.attn.c_proj.weight @ value_bias + block.attn.c_proj.bias  # for all parts together
        if preset == "released" and number == 0:
            value = [[part + (i == k) * value_bias for k, part in enumerate(row)] for i, row in enumerate(value)]
            left = block.attn.c_proj.bias
        mixed = [[torch.zeros(24).double() for _ in range(n)] for _ in range(n)]
        for head in range(3):
            scores = query[:, head] @ key[:, head].T / 8**0.5
            attention = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
            at = slice(8 * head, 8 * head + 8)
            for i in range(n):
                for k in range(n):
                    mixed[i][k][at] = sum(attention[i, j] * value[j][k][at] for j in range(n))
        added = [[block.attn.c_proj.weight @ part for part in row] for row in mixed]
        if preset == "paper":
            state = plus(state, [with_bias(row, left) for row in added])
        else:
            state = [with_bias(row, left) for row in plus(state, added)]
        up = linear(block.up, norm(block.ln_2, state))
        bent = [[part * handmade_gelu(sum(row)) / sum(row) for part in row] for row in up]
        state = plus(state, linear(block.down, bent))
    return torch.stack([part[target] for part in linear(module.lm_head, norm(module.ln_f, state))[-1]])


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_agrees_with_the_rules_written_slowly(preset):
    """Biases and all."""
    module = animal("gpt").module
    with torch.no_grad():
        wanted = torch.stack([slowly(module, ids, 7, preset) for ids in IDS])
    assert_close(why.explain(why.open(module), IDS, "decompx", target=7, preset=preset).scores, wanted)


class Unprojected(torch.nn.Module):
    """The values of a linear map whose bias is added in a step of its own, as some models write it."""

    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        return x @ self.weight.mT + self.bias


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_bias_written_as_an_addition_is_the_same_bias(preset):
    module, other = (copy.deepcopy(animal("gpt").module) for _ in range(2))
    for block in other.h:
        block.attn.c_attn, block.attn.c_proj = Unprojected(block.attn.c_attn), Unprojected(block.attn.c_proj)
    wanted, found = (why.explain(why.open(m), IDS, "decompx", target=7, preset=preset).scores for m in (module, other))
    assert_close(found, wanted)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_the_value_bias_is_shared_without_an_output_bias(preset):
    """The output projection has no bias, and in the last block there is none at all."""
    module = copy.deepcopy(animal("gpt").module)
    for block in module.h:
        block.attn.c_proj.bias = None
    module.h[-1].attn.c_proj = torch.nn.Identity()
    e = why.explain(why.open(module), IDS, "decompx", target=7, preset=preset)
    with torch.no_grad():
        assert_close(e.scores.sum(-1), module(IDS)[:, -1, 7])


def test_attention_in_separate_operations_gives_the_same():
    from transformers import BertForSequenceClassification

    module = animal("bert").module
    eager = BertForSequenceClassification._from_config(module.config, attn_implementation="eager").double().eval()
    eager.load_state_dict(module.state_dict())
    for preset in ("paper", "released"):
        wanted, found = (
            why.explain(why.open(m), animal("bert").inputs, "decompx", target=1, preset=preset).scores
            for m in (module, eager)
        )
        assert_close(found, wanted)


def test_it_is_told_apart_from_its_cheap_form_by_biases():
    it = animal("gpt")
    x = (it.module.wte(IDS) + it.module.wpe(torch.arange(4))).detach().requires_grad_()
    (grad,) = torch.autograd.grad(held_forward(it.module, x)[:, 7].sum(), x)
    found = why.explain(why.open(it.module), IDS, "decompx", target=7).scores
    assert not torch.allclose(found, (grad * x).sum(-1).detach(), atol=1e-3)


def test_long_sequences_are_refused(monkeypatch):
    """And only that method: others in the same run go on."""
    monkeypatch.setattr(decompose, "MOST_TOKENS", 8)
    it = animal("bert")
    with pytest.raises(
        UnsupportedModel, match="every state into 9 parts, one per token, takes too much memory; at most 8"
    ):
        why.explain(why.open(it.module), it.inputs, "decompx")
    model = why.open(it.module)
    held = record(model, model.encode(it.inputs), keep={"answer_parts", "attention"})
    assert held["attention"][0].isfinite().all()


def test_operations_that_are_not_linear_are_refused_by_name():
    class Cumulative(torch.nn.Module):
        def forward(self, x):
            return x.cumprod(-1)

    module = copy.deepcopy(animal("gpt").module)
    module.h[1].up = torch.nn.Sequential(module.h[1].up, Cumulative())
    with pytest.raises(UnsupportedModel, match=r"cumprod cannot be applied to parts of a state\. Use another method\."):
        why.explain(why.open(module), IDS, "decompx")
