"""The recorded remainder of a model computes what the model computes, for any rows, and for fewer queries."""

import pytest
import torch
from audit.test_replay import KINDS, other
from conftest import animal

import whyformer as why
from whyformer._audit.checks.attention_choice import choose_attention
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.reruns import AttentionReplay
from whyformer._audit.reruns.remainder import record_remainder
from whyformer._audit.reruns.remainder_rows import Inseparable, RowAxis, choose_rows
from whyformer._engine.program.steps import Unrecordable

torch.manual_seed(0)
VALUES, RESIDUAL = torch.randn(2, 1, 3, 4).double(), torch.randn(2, 3, 4).double()
INNER, OUTER = torch.nn.Linear(4, 5).double(), torch.nn.Linear(5, 2).double()


def compute(weights, rows=(0, 1)):
    """Attention, a residual, a layer for every token; the answer is read at the first one."""
    rows = list(rows)
    hidden = (weights @ VALUES[rows]).transpose(1, 2).reshape(len(rows), -1, 4) + RESIDUAL[rows][:, : weights.size(2)]
    return OUTER(torch.nn.functional.gelu(INNER(hidden))[:, 0])


def draw(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_remainder_has_only_what_depends_on_the_weights():
    """Constants of the model are not computed again: 2 products and what is around them."""
    given = draw(2, 1, 3, 3)
    names = [step.function._schema.name for step in record_remainder({0: given}, lambda: compute(given)).steps]
    assert names.count("aten::addmm") == 2 and "aten::index" not in names and len(names) < 20


def test_other_rows_and_fewer_queries_by_the_definition():
    given = draw(2, 1, 3, 3)
    remainder = record_remainder({0: given}, lambda: compute(given))
    fresh = draw(3, 1, 3, 3)
    torch.testing.assert_close(
        choose_rows(remainder, {0: 0}, torch.tensor([1, 1, 0])).run({0: fresh}), compute(fresh, (1, 1, 0))
    )
    first = choose_rows(choose_rows(remainder, {0: 2}, torch.tensor([0])), {0: 0}, torch.tensor([1]))
    assert first.shapes[first.inputs[0]] == (1, 1, 1, 3)
    torch.testing.assert_close(first.run({0: fresh[:1, :, :1]}), compute(fresh[:1], (1,)))


def test_gradients_flow_through_a_remainder():
    given = draw(2, 1, 3, 3)
    remainder = record_remainder({0: given}, lambda: compute(given))
    first, second = given.clone().requires_grad_(), given.clone().requires_grad_()
    remainder.run({0: first}).sum().backward()
    compute(second).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_rows_that_are_mixed_are_refused():
    given = draw(2, 1, 3, 3)
    for mix, at in ((lambda: compute(given).mean(0, keepdim=True), 0), (lambda: (given @ VALUES).mean((1, 2)), 2)):
        remainder = record_remainder({0: given}, mix)
        with pytest.raises(Inseparable, match="over the rows"):
            choose_rows(remainder, {0: at}, torch.tensor([0]))
    with pytest.raises(Inseparable, match="not known"):
        choose_rows(record_remainder({0: given}, lambda: given.cumsum(-1)), {0: 0}, torch.tensor([0]))
    with pytest.raises(Inseparable, match="not chosen"):
        choose_rows(record_remainder({0: given}, lambda: compute(given)), {0: 2}, torch.tensor([1]))


def test_what_cannot_be_recorded_is_refused():
    given = draw(2, 1, 3, 3)
    with pytest.raises(Unrecordable, match="does not depend"):
        record_remainder({0: given}, lambda: torch.ones(2, 2))
    with pytest.raises(Unrecordable, match="writes into"):
        record_remainder({0: given}, lambda: (given * 2).add_(1))
    with pytest.raises(Unrecordable, match="random"):
        record_remainder({0: given}, lambda: torch.nn.functional.dropout(given * 2, 0.5))


def test_where_the_rows_are_in_a_shape():
    given = draw(2, 1, 3, 3)
    remainder = record_remainder({0: given}, lambda: given.view(6, 3) * 2)
    assert choose_rows(remainder, {0: 0}, torch.tensor([1])).run({0: given[1:]}).shape == (3, 3)
    assert choose_rows(remainder, {0: 2}, torch.tensor([0, 2])).run({0: given[:, :, [0, 2]]}).shape == (4, 3)
    assert RowAxis(1) == RowAxis(1, 1, 1)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_has_a_remainder_in_its_last_block(name):
    """Its output and gradient are those of the model, for examples in another order and more than once."""
    it = animal(name)
    model = why.open(it.module)
    replay = AttentionReplay(model, model.encode(it.inputs), range(8))
    block, of = replay.blocks - 1, torch.tensor([2, 0, 0])
    audited = AuditedAttention(replay, choose_attention("last", replay.heads)[0])
    assert replay.remainders.find({block: replay.every_query(block)}, of) is not None
    whole = other(replay, block)[of].requires_grad_()
    weights = audited.insert_weights(block, of, audited.take_queries(block, whole))
    with torch.enable_grad():
        full = replay.insert_queries(block, of, weights, audited.queries[block])
        logits = [
            replay.predict({block: weights}, of, queries={block: audited.queries[block]}, gradient=True),
            replay.predict_in_full({block: full}, of, gradient=True),
        ]
        slopes = [torch.autograd.grad(one[:, 0].sum(), whole, retain_graph=True)[0] for one in logits]
    torch.testing.assert_close(*logits, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-12)


def test_a_model_that_reads_its_own_numbers_is_run_in_full():
    class Reading(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(10, 4).double()
            self.head = torch.nn.Linear(4, 2).double()

        def forward(self, input_ids):
            x = self.words(input_ids)
            mixed = ((x @ x.mT).softmax(-1) @ x).mean(1)
            return self.head(mixed) * (2 if bool(mixed.sum() > 0) else 1)

    torch.manual_seed(0)
    model = why.open(Reading())
    replay = AttentionReplay(model, model.encode(torch.tensor([[1, 2, 3], [4, 5, 6]])), [0])
    assert replay.remainders.find({0: replay.every_query(0)}, torch.arange(2)) is None
    weights = other(replay, 0)
    torch.testing.assert_close(
        replay.predict({0: weights}, torch.arange(2)), replay.predict_in_full({0: weights}, torch.arange(2))
    )
