"""Scores without their mask: kept beside the masked ones, through every way in which models apply a mask."""

import pytest
import torch
from conftest import animal
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.record import record
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.tracing.masks import MASK_THRESHOLD, follow_masks, lift_mask, unmasked_scores_of
from whyformer._engine.tracing.operations import Operation, name_of
from whyformer.errors import InputError

KINDS = ["vit", "beit", "bert", "roberta", "distilbert", "gpt2", "llama", "gpt", "encoder", "encoder_token_first"]
SCORES = torch.arange(8.0).reshape(1, 2, 4).double() - 4
OPEN = torch.tensor([[True, True, True, False], [True, True, False, False]])
LOW = torch.finfo(torch.float64).min


def call(function, *args, **kwargs):
    """The result of an operation, with its companion."""
    result = function(*args, **kwargs)
    follow_masks(Operation(name_of(function), function, args, kwargs), result)
    return result


def additive(low):
    return torch.zeros(2, 4).double().masked_fill(~OPEN, low)


MASKED = {
    "masked_fill": lambda: call(torch.masked_fill, SCORES, ~OPEN, -torch.inf),
    "masked_fill with a tensor": lambda: call(torch.masked_fill, SCORES, ~OPEN, torch.tensor(LOW).double()),
    "where": lambda: call(torch.where, OPEN, SCORES, torch.tensor(LOW).double()),
    "where not": lambda: call(torch.where, ~OPEN, LOW, SCORES),
    "add": lambda: call(torch.add, SCORES, additive(-1e4)),
    "add infinity": lambda: call(torch.add, additive(-torch.inf), SCORES),
    "sub": lambda: call(torch.sub, SCORES, additive(1e4)),
    "baddbmm": lambda: call(torch.baddbmm, additive(LOW)[None], SCORES, torch.eye(4).double()[None]),
}


@pytest.mark.parametrize("way", MASKED)
def test_a_mask_is_lifted(way):
    masked = MASKED[way]()
    assert (masked[:, ~OPEN] <= MASK_THRESHOLD).all()
    assert_close(unmasked_scores_of(masked), SCORES)


def test_what_follows_a_mask_is_done_to_both():
    """A second mask, a scale, a cast and a floor, as in older models."""
    masked = call(torch.add, SCORES, additive(LOW))
    masked = call(torch.div, masked, 2.0)
    masked = call(torch.masked_fill, masked, OPEN.flip(-1), -torch.inf)
    masked = call(torch.max, masked, torch.tensor(LOW).double())
    masked = call(torch.Tensor.float, masked)
    assert masked.dtype == torch.float32
    assert_close(unmasked_scores_of(masked), (SCORES / 2).float())


def test_a_bias_for_positions_is_no_mask():
    bias = torch.linspace(-3, 0, 8).reshape(2, 4).double()
    biased = call(torch.add, SCORES, bias)
    assert unmasked_scores_of(biased) is biased
    both = call(torch.add, SCORES, bias.masked_fill(~OPEN, LOW))
    assert_close(unmasked_scores_of(both)[:, OPEN], (SCORES + bias)[:, OPEN])
    assert_close(lift_mask(additive(-torch.inf)), torch.zeros(2, 4).double())


def test_other_operations_have_no_companion():
    for result in (call(torch.masked_fill, SCORES, ~OPEN, 0.0), call(torch.where, OPEN, SCORES, -1.0)):
        assert unmasked_scores_of(result) is result
    attention = call(torch.softmax, MASKED["add"](), -1)
    assert unmasked_scores_of(attention) is attention


def read_unmasked(name, kernel):
    """The scores that an intervention sees, site by site, and the logits it leaves."""
    it, seen = animal(name, kernel), []
    model = why.open(it.module)
    see = Intervention(unmasked=lambda _, scores: seen.append(scores.detach().clone()) or scores + 0)
    return seen, record(model, model.encode(it.inputs), target=0, keep={"attention"}, intervention=see).logits


@pytest.mark.parametrize("name", KINDS)
def test_models_with_their_own_operations_give_the_products_of_queries_and_keys(name):
    """A fused kernel has queries, keys and mask apart; an eager model has them in one tensor."""
    fused, eager = (read_unmasked(name, kernel)[0] for kernel in ("sdpa", "eager"))
    assert len(fused) == len(eager) > 0
    for one, other in zip(fused, eager, strict=True):
        assert one.isfinite().all() and one.min() > MASK_THRESHOLD
        assert_close(other.to(one), one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_the_same_scores_give_the_same_answer(name, kernel):
    plain = animal(name, kernel)
    model = why.open(plain.module)
    logits = record(model, model.encode(plain.inputs), target=0, keep={"attention"}).logits
    assert_close(read_unmasked(name, kernel)[1], logits, rtol=1e-5, atol=1e-6)


class InPlace(torch.nn.Module):
    """Attention that writes its mask into the scores, and may compute its softmax in another type."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.embed, self.head, self.dtype = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 3), dtype

    def forward(self, input_ids):
        x = self.embed(input_ids)
        scores = x @ x.transpose(1, 2)
        scores.masked_fill_(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
        return self.head((scores.softmax(-1, dtype=self.dtype).to(x.dtype) @ x)[:, -1])


def test_a_mask_that_is_written_in_place():
    module, ids, seen = InPlace().double(), torch.tensor([[3, 1, 4, 1]]), []
    model = why.open(module)
    see = Intervention(unmasked=lambda _, scores: seen.append(scores.detach().clone()))
    record(model, model.encode({"input_ids": ids}), target=0, keep={"attention"}, intervention=see)
    x = module.embed(ids).detach()
    assert_close(seen[0], (x @ x.transpose(1, 2))[:, None])


def test_a_softmax_in_another_type():
    """As in MPT: the scores are float32, the values float64."""
    module, ids = InPlace(torch.float32).double(), torch.tensor([[3, 1, 4, 1]])
    model = why.open(module)
    for change in (Intervention(scores=lambda _, s: s + 1), Intervention(unmasked=lambda _, s: s + 1)):
        logits = record(
            model, model.encode({"input_ids": ids}), target=0, keep={"attention"}, intervention=change
        ).logits
        assert_close(logits, module(ids), rtol=1e-5, atol=1e-6)


def test_scores_are_changed_before_or_after_the_mask():
    with pytest.raises(InputError, match="`scores` or `unmasked` scores, not both"):
        Intervention(scores=lambda _, s: s, unmasked=lambda _, s: s)
