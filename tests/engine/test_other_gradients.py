"""Gradients by attention along some paths only, the scores before the softmax, and what attention receives."""

import pytest
import torch
from conftest import FAMILIES, animal
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.capture.residual import repeat_tail
from whyformer._engine.record import record
from whyformer._engine.tracing.operations import Operation
from whyformer.errors import UnsupportedModel

GRADIENTS = ("attention_grad", "direct_attention_grad", "layer_attention_grad", "mean_attention_grad")
every_family = pytest.mark.parametrize("name", FAMILIES)
every_kernel = pytest.mark.parametrize("kernel", ["sdpa", "eager"])


def capture(name, *keep, kernel="sdpa", **asked):
    it = animal(name, kernel)
    model = why.open(it.module)
    return record(model, model.encode(it.inputs), keep=set(keep), **{"target": 0} | asked)


def forward_by_hand(module, ids, *, cuts_attention, end=2):
    """The states after `end` blocks of the handmade GPT, and its attention weights, each a leaf of the graph.

    cuts_attention: the input of each attention is detached, so that gradients avoid it.
    """
    x, weights = module.wte(ids) + module.wpe(torch.arange(ids.size(1))), []
    allowed = torch.ones(ids.size(1), ids.size(1)).tril().bool()
    for block in module.h[:end]:
        part, y = block.attn, block.ln_1(x.detach() if cuts_attention else x)
        query, key, value = (t.unflatten(-1, (part.heads, -1)).transpose(1, 2) for t in part.c_attn(y).split(24, -1))
        scores = (query @ key.mT / 8**0.5).masked_fill(~allowed, -torch.inf)
        weights.append(scores.softmax(-1) if not cuts_attention else scores.softmax(-1).detach().requires_grad_())
        x = x + part.c_proj((weights[-1] @ value).transpose(1, 2).flatten(2))
        h = block.up(block.ln_2(x))
        x = x + block.down(0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3))))
    return x, weights


def test_direct_gradients_written_slowly():
    it = animal("gpt")
    x, weights = forward_by_hand(it.module, it.inputs["idx"], cuts_attention=True)
    logits = it.module.lm_head(it.module.ln_f(x))[:, -1]
    wanted = torch.autograd.grad(logits[:, 5].sum(), weights)
    found = capture("gpt", "direct_attention_grad", target=5)["direct_attention_grad"]
    for layer in range(2):
        assert_close(found[layer], wanted[layer])


@pytest.mark.parametrize("site", ["layer_attention_grad", "mean_attention_grad"])
@pytest.mark.parametrize("versus", [None, 3])
@pytest.mark.parametrize("layer", [0, 1])
def test_gradients_of_a_layer_written_slowly(layer, versus, site):
    """The final norm and the head on what leaves the layer: at the last token, or on the mean, as a share."""
    it = animal("gpt")
    x, weights = forward_by_hand(it.module, it.inputs["idx"], cuts_attention=False, end=layer + 1)
    pooled = x.mean(1) if site == "mean_attention_grad" else x[:, -1]
    logits = it.module.lm_head(it.module.ln_f(pooled))
    score = logits[:, 5] - (0 if versus is None else logits[:, versus])
    score = score / logits.norm(dim=-1) if site == "mean_attention_grad" else score
    (wanted,) = torch.autograd.grad(score.sum(), weights[layer])
    assert_close(capture("gpt", site, target=5, versus=versus)[site][layer], wanted)


@every_family
def test_they_agree_at_the_last_layer(name):
    """Nothing is between it and the answer. Before it, they are three different things."""
    found = capture(name, *GRADIENTS[:3])
    full, direct, layer = (found[site] for site in GRADIENTS[:3])
    assert_close(direct[len(full) - 1], full[len(full) - 1], rtol=1e-9, atol=1e-12)
    assert_close(layer[len(full) - 1], full[len(full) - 1], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(direct[0], full[0], rtol=1e-3)
    assert not torch.allclose(layer[0], full[0], rtol=1e-3)


@every_family
def test_a_gradient_is_the_same_alone_and_with_others(name):
    """Several backward passes share one graph; none leaves a hook behind."""
    together = capture(name, *GRADIENTS)
    for site in GRADIENTS:
        alone = capture(name, site)[site]
        for layer in range(len(alone)):
            assert_close(together[site][layer], alone[layer], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["bert", "encoder_token_first", "gpt2"])
def test_the_mean_leaves_out_padding(name):
    it = animal(name)
    model = why.open(it.module)
    together = capture(name, "mean_attention_grad")["mean_attention_grad"]
    for example in (1, 2):
        alone = record(model, model.encode(it.alone(example)), target=0, keep={"mean_attention_grad"})
        length = alone["mean_attention_grad"][0].size(-1)
        for layer in range(len(together)):
            rows = together[layer][example : example + 1, :, :length, :length]
            assert_close(rows, alone["mean_attention_grad"][layer], rtol=1e-8, atol=1e-12)


@every_family
@every_kernel
def test_the_softmax_of_the_scores_is_the_attention(name, kernel):
    found = capture(name, "attention", "attention_scores", kernel=kernel)
    for weights, scores in zip(found["attention"], found["attention_scores"], strict=True):
        assert_close(scores.softmax(-1).nan_to_num(0.0).to(weights), weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_attention_receives_the_state_after_the_norm_before_it(name):
    found, module = capture(name, "attention_input", "hidden"), animal(name).module
    norms = [part for path, part in module.named_modules() if path.endswith("layernorm_before")]
    norms = norms or [torch.nn.Identity()] * 3  # BERT has its norms behind
    with torch.no_grad():
        for layer, norm in enumerate(norms):
            assert_close(found["attention_input"][layer], norm(found["hidden"][layer]))


class Flat(torch.nn.Module):
    """Attention in the model itself, without a block or a module of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 3)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.head(((x @ x.transpose(1, 2)).softmax(-1) @ x)[:, 0])


def test_a_model_without_blocks_is_refused_on_access():
    """LeGrad has a form that needs none."""
    model, ids = why.open(Flat().double()), torch.tensor([[3, 1, 4, 1]])
    found = record(model, model.encode({"input_ids": ids}), target=0, keep={"attention_input", "layer_attention_grad"})
    with pytest.raises(UnsupportedModel, match="input of the attention in the model is not known"):
        found["attention_input"][0]
    with pytest.raises(UnsupportedModel, match="No block was found"):
        found["layer_attention_grad"][0]
    with pytest.raises(UnsupportedModel, match="No block was found"):
        why.explain(model, {"input_ids": ids}, "legrad")
    assert why.explain(model, {"input_ids": ids}, "legrad", preset="output").scores.any()


def test_an_output_that_does_not_come_from_the_last_block_is_refused():
    old, output = torch.ones(1, 2, 3), torch.ones(1, 2)
    with pytest.raises(UnsupportedModel, match="could not be computed again from the states of its last block"):
        repeat_tail([], old, old + 1, output)


def test_the_gradient_of_batch_norm_is_right_for_a_single_image():
    """torch reads a transposed gradient in the wrong order there; the definition is x * scale + shift."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4, dtype=torch.float64).eval()
    torch.nn.init.normal_(norm.weight)
    weights = torch.randn(36, 4, dtype=torch.float64)
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()[None, :, None, None]
    for batch in (1, 2):
        x = torch.randn(batch, 4, 6, 6, dtype=torch.float64, requires_grad=True)
        arguments = (x, norm.running_mean, norm.running_var, norm.weight.detach(), norm.bias.detach(), False)
        made = Operation("batch_norm", torch.nn.functional.batch_norm, arguments, {}).run()
        (gradient,) = torch.autograd.grad((made.flatten(2).transpose(1, 2) * weights).sum(), x)
        assert torch.allclose(gradient, (scale * weights.mT.reshape(1, 4, 6, 6)).expand_as(x))
