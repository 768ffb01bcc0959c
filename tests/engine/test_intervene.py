"""Interventions: the model's own attention changes nothing; other attention changes only what comes after it."""

import copy

import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import make_recipe
from whyformer._engine.run.forward import run_forward
from whyformer._engine.run.intervene import Intervention
from whyformer.errors import InputError, UnsupportedModel

KINDS = ["vit", "beit", "bert", "roberta", "distilbert", "gpt2", "llama", "gpt", "encoder", "encoder_token_first"]
every_kind = pytest.mark.parametrize("name", KINDS)
every_kernel = pytest.mark.parametrize("kernel", ["sdpa", "eager"])


def run(name, intervention=None, *, kernel="sdpa", keep=("attention", "hidden")):
    it = animal(name, kernel)
    model = why.open(it.module)
    keep = set(keep) - ({"hidden"} if name == "vit-pytorch" else set())
    return record(model, model.encode(it.inputs), target=0, keep=keep, intervention=intervention)


@every_kind
@every_kernel
def test_own_attention_changes_nothing(name, kernel):
    same = Intervention(attention=lambda _, a: a.clone(), value=lambda _, v: v.clone(), scores=lambda _, s: None)
    assert torch.equal(run(name, same, kernel=kernel).logits, run(name, kernel=kernel).logits)


@every_kind
@every_kernel
def test_own_scores_give_the_same_answer(name, kernel):
    plain, same = run(name, kernel=kernel), run(name, Intervention(scores=lambda _, s: s + 0), kernel=kernel)
    torch.testing.assert_close(same.logits, plain.logits, rtol=1e-5, atol=1e-6)  # some eager kernels cast to float32


@every_kind
@every_kernel
def test_other_attention_changes_what_comes_after_it_and_only_that(name, kernel):
    turned = Intervention(attention=lambda site, a: a.flip(-1) if site == 1 else None)
    plain, changed = run(name, kernel=kernel), run(name, turned, kernel=kernel)
    assert torch.equal(changed["attention"][0], plain["attention"][0])
    torch.testing.assert_close(changed["attention"][1], plain["attention"][1].flip(-1), rtol=1e-6, atol=1e-9)
    assert torch.equal(changed["hidden"][1], plain["hidden"][1])
    assert not torch.equal(changed["hidden"][2], plain["hidden"][2])
    assert not torch.equal(changed.logits, plain.logits)


@every_kernel
def test_is_what_the_model_computes_with_that_attention(kernel):
    """Uniform attention at the last block of a BERT, computed by hand with its own weights."""
    it = animal("bert", kernel)
    uniform = Intervention(attention=lambda site, a: torch.full_like(a, 1 / a.size(-1)) if site == 2 else None)
    changed = run("bert", uniform, kernel=kernel)
    layer = it.module.bert.encoder.layer[2]
    entered = changed["hidden"][2]
    mixed = layer.attention.self.value(entered).mean(1, keepdim=True).expand_as(entered)
    after = layer.attention.output(mixed, entered)
    left = layer.output(layer.intermediate(after), after)
    torch.testing.assert_close(changed["hidden"][3], left, rtol=1e-10, atol=1e-10)


def test_an_unchanged_example_is_identical_bit_for_bit():
    def only_second(_, a):
        return torch.stack([a[0], a[1].flip(-1), a[2]])

    plain, changed = run("bert"), run("bert", Intervention(attention=only_second))
    assert torch.equal(changed.logits[[0, 2]], plain.logits[[0, 2]])
    assert not torch.equal(changed.logits[1], plain.logits[1])


@every_kind
@every_kernel
def test_values_can_be_removed(name, kernel):
    """With zero values at the first site its output is zero, whatever the attention."""
    gone = Intervention(value=lambda site, v: torch.zeros_like(v) if site == 0 else None)
    changed = run(name, gone, kernel=kernel, keep=("attention_output",))
    assert not changed["attention_output"][0].any()
    assert changed["attention_output"][1].any()


def test_scores_of_minus_infinity_remove_a_key():
    def without_key_one(site, scores):
        scores = scores.clone()
        scores[..., 1] = -torch.inf
        return scores

    for kernel in ("sdpa", "eager"):
        changed = run("bert", Intervention(scores=without_key_one), kernel=kernel)
        for attention in changed["attention"]:
            assert not attention[..., 1].any()
            torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))


def test_gradients_flow_into_the_replacement():
    it = animal("vit")
    model = why.open(it.module)
    own = run("vit")["attention"][1].clone().requires_grad_()
    given = Intervention(attention=lambda site, _: own if site == 1 else None)
    with run_forward(model, model.encode(it.inputs), asks_gradient=True, intervention=given) as made:
        (gradient,) = torch.autograd.grad(made.output[:, 0].sum(), own)
    wanted = record(model, model.encode(it.inputs), target=0, keep={"attention_grad"})["attention_grad"][1]
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "gpt"])
def test_a_detached_copy_freezes_attention(name):
    """The output is unchanged bit for bit; at the input only the gradient through the values is left.

    Checked by finite differences: attention stays constant while the input moves.
    """
    it = animal(name)
    model = why.open(it.module)
    encoded = model.encode(it.inputs)
    keep = {"input_grad", "attention", "probe"}
    plain = record(model, encoded, target=0, keep=keep)
    frozen = record(
        model, encoded, target=0, keep=keep, intervention=Intervention(attention=lambda _, a: a.detach().clone())
    )
    assert torch.equal(frozen.logits, plain.logits)
    assert not torch.allclose(frozen["input_grad"], plain["input_grad"], rtol=1e-3)
    own = list(plain["attention"])
    held = Intervention(attention=lambda site, _: own[site])
    leaf = plain["probe"].leaf
    way = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(0), dtype=leaf.dtype)

    def moved(step):
        start = leaf + step * way
        if "pixel_values" in it.inputs:
            start = start.permute(0, 3, 1, 2)
            chosen = model.encode({"pixel_values": start})
            running = run_forward(model, chosen, asks_gradient=True, intervention=held)
        else:
            running = run_forward(model, encoded, asks_gradient=True, intervention=held, starting_at=start)
        with running as made:
            return plain["probe"].read_answers(encoded, made.output, torch.arange(3)).score.detach()

    slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
    wanted = (frozen["input_grad"] * way).flatten(1).sum(1)
    torch.testing.assert_close(slope, wanted, rtol=1e-4, atol=1e-7)


def test_a_wrong_shape_is_refused():
    with pytest.raises(InputError, match=r"site 0 returned \[3, 3\] for"):
        run("bert", Intervention(attention=lambda _, a: a[0, 0, :3, :3]))


def test_relevance_through_replaced_attention_is_refused():
    it = animal("bert")
    model = why.open(it.module)
    same = Intervention(attention=lambda _, a: a)
    with pytest.raises(UnsupportedModel, match="that an intervention has replaced"):
        record(
            model, model.encode(it.inputs), keep={"input_relevance"}, recipes=[make_recipe("chefer")], intervention=same
        )


def test_the_model_is_not_changed():
    it = animal("gpt2")
    before = copy.deepcopy(it.module.state_dict())
    run("gpt2", Intervention(attention=lambda _, a: a.flip(-1)))
    assert all(torch.equal(before[key], value) for key, value in it.module.state_dict().items())
