"""Scores belong to the token, patch, feature and example of the input, whatever its order inside a model."""

import math

import pytest
import torch
from order.moving import CASES, MergesPairs, Rolled, make, make_ids, prepare
from order.table import judge_all, leave_out_by_hand
from torch import nn

import whyformer as why
from whyformer._audit.reruns import AttentionReplay
from whyformer._engine.layout.order_probe import OrderProbe
from whyformer.errors import UnsupportedModel

FEW = ("ShiftedRight", "ShuffledByMatrix", "IdsReversed", "BatchSortedByLength", "Columns", "Table")


@pytest.fixture
def runs(monkeypatch):
    """How many runs checks take."""
    count = []
    look = OrderProbe.look

    def counted(self, *args, **options):
        count.append(1)
        return look(self, *args, **options)

    monkeypatch.setattr(OrderProbe, "look", counted)
    return count


@pytest.mark.parametrize("name", FEW)
def test_what_moves_inside_is_scored_where_the_input_has_it(name):
    assert set(judge_all(name).values()) == {"right"}


@pytest.mark.slow
def test_no_moving_model_is_silently_wrong():
    rows = {name: judge_all(name) for name in CASES}
    for name, row in rows.items():
        print(f"{name:26}", row)
    right = [name for name, row in rows.items() if set(row.values()) == {"right"}]
    assert len(rows) >= 40 and len(right) >= 30
    assert [name for name, row in rows.items() if "silent" in row.values()] == []


def test_merged_tokens_are_refused_by_methods_that_read_places():
    model = prepare(MergesPairs, moves=True)
    for method in ("libragrad", "attcat", "decompx", "rollout"):
        with pytest.raises(UnsupportedModel, match="could not be established"):
            why.explain(model, make_ids(), method, target=1)
    by_hand = leave_out_by_hand(model, make_ids())
    found = why.explain(model, make_ids(), "leave_one_out", target=1, fill="pad_token")
    assert torch.allclose(found.scores, by_hand, atol=1e-9)


@pytest.mark.parametrize("name", ["Rolled", "ShuffledByMatrix", "Columns", "BatchSortedByLength", "VectorsReversed"])
def test_a_check_takes_few_runs_and_happens_once(name, runs):
    inputs = CASES[name].inputs()
    units = 24 if name == "Columns" else next(iter(inputs.values())).size(1)
    model = make(name, moves=True)
    why.explain(model, inputs, "libragrad", target=1)
    kinds = 2 if name == "BatchSortedByLength" else 1  # its examples run alone, some with padding
    assert 0 < len(runs) <= kinds * (math.log2(units) + 3)
    runs.clear()
    for method in ("libragrad", "attnlrp", "leave_one_out"):
        why.explain(model, inputs, method, target=1)
    assert not runs


def test_an_order_that_depends_on_the_input_is_checked_on_every_call(runs):
    model, inputs = make("SortedById", moves=True), make_ids()
    for _ in range(3):
        runs.clear()
        why.explain(model, inputs, "libragrad", target=1)
        assert runs


def test_a_changed_model_is_checked_again(runs):
    model = prepare(Rolled, moves=True)
    before = why.explain(model, make_ids(), "libragrad", target=1).scores
    runs.clear()
    model.moves = False
    assert torch.allclose(why.explain(model, make_ids(), "libragrad", target=1).scores, before)
    assert runs


def test_the_doctor_says_what_was_found():
    def order_of(name, moves):
        return why.diagnose(make(name, moves=moves), CASES[name].inputs(), ["rollout"]).found["order"]

    assert order_of("Rolled", False) == "checked: tokens are in the order of the input"
    assert order_of("Rolled", True) == "checked: tokens change places inside, which is undone"
    assert order_of("BatchReversed", True) == "checked: examples of a batch change places inside, so each is run alone"


def test_a_table_has_a_score_for_each_feature():
    for method in (None, "rollout", "attnlrp", "gradient_x_input", "leave_one_out"):
        e = why.explain(make("Table", moves=False), CASES["Table"].inputs(), method, target=1)
        assert e.scores.shape == (2, 6) and e.tokens[0].pieces == tuple("012345") and e.notes == ()
    e = why.explain(make("Table", moves=False), CASES["Table"].inputs(), "rollout", target=1)
    assert e.special is not None and e.special.shape == (2, 1)


class TwoOutputs(Rolled):
    def forward(self, input_ids):
        classes = super().forward(input_ids)
        return {"value": classes[:, :1], "classes": classes}


def test_of_several_outputs_the_classes_are_explained_and_the_others_named():
    model = prepare(TwoOutputs, moves=False)
    e = why.explain(model, make_ids(), "attnlrp")
    assert [target.index for target in e.targets] == model(**make_ids())["classes"].argmax(-1).tolist()
    assert any("'value'" in note for note in e.notes)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reader, self.head = prepare(Rolled, moves=False), nn.Linear(3, 2).double()

    def forward(self, first, second):
        return self.head(self.reader(first) - self.reader(second))


def test_a_second_input_without_scores_is_named():
    ids = make_ids()["input_ids"]
    e = why.explain(Pair().eval(), {"first": ids[:1], "second": ids[1:, :6]}, "gradient_x_input", target=1)
    assert any("'second'" in note for note in e.notes)


@pytest.mark.parametrize("name", ["Rolled", "IdsReversed", "BatchSortedByLength", "Columns"])
def test_an_audit_refuses_what_it_does_not_undo(name):
    inputs = CASES[name].inputs()
    model = why.open(make(name, moves=True))
    with pytest.raises(UnsupportedModel, match="which an audit does not undo"):
        AttentionReplay(model, model.encode(inputs))
    twin = why.open(make(name, moves=False))
    AttentionReplay(twin, twin.encode(inputs))
