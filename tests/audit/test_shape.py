"""The shape of attention, by hand."""

import math

import pytest
import torch
from audit.known import sentences
from conftest import animal

import whyformer as why
from whyformer._audit.checks.shape import mean_head_distance, measure_head_shapes, measure_shapes
from whyformer._audit.reruns import AttentionReplay


def test_by_hand():
    attention = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]], dtype=torch.float64)
    found = measure_head_shapes(attention, torch.tensor([[[True, True, True]]] * 2), torch.tensor([True, False, False]))
    assert found["entropy"] == pytest.approx([math.log(2) / math.log(3), 0])
    assert found["largest"] == [0.5, 1.0] and found["special"] == [0.5, 1.0]


def test_uniform_attention_has_entropy_one_also_under_a_mask():
    attention = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]], dtype=torch.float64)
    seen = torch.tensor([[[True, False], [True, True]]])
    assert measure_head_shapes(attention, seen, torch.tensor([False, False]))["entropy"] == [1.0]


def test_distance_between_heads_by_hand():
    attention = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    from whyformer._audit.checks.distance import jsd

    assert mean_head_distance(attention, jsd) == pytest.approx(math.log(2))
    assert mean_head_distance(attention[:1], jsd) is None


def test_of_a_model():
    it = animal("bert")
    model = why.open(it.module)
    found = measure_shapes(AttentionReplay(model, model.encode(it.inputs)))
    assert len(found) == 3 and len(found[0]["heads"]) == 3 and len(found[0]["heads"][0]["entropy"]) == 3
    assert len(found[2]["blocks_jsd"]) == 3 and found[2]["blocks_jsd"][1][1] == pytest.approx(0, abs=1e-12)
    alone = measure_shapes(AttentionReplay(model, model.encode(it.alone(2))))[0]
    assert alone["heads"][1]["entropy"] == pytest.approx(found[2]["heads"][1]["entropy"])


def test_of_a_model_with_one_query():
    from audit.known import deciding

    found = measure_shapes(AttentionReplay(deciding(), deciding().encode(sentences(2))))
    assert found[0]["heads"][0]["largest"][0] > 0.9 and found[0]["heads_jsd"] == [None]
