"""The plan: what it depends on, and that another one is refused by name."""

import json
from functools import partial

import pytest
import torch
from judge.bench_parts import FIRST_SCORE, SHARE, a_plan, pictures

from whyformer._judge.plan import hash_weights, write_or_check_plan
from whyformer.errors import InputError
from whyformer.methods import rollout


def test_the_same_plan_has_the_same_fingerprint():
    assert a_plan().fingerprint == a_plan().fingerprint


@pytest.mark.parametrize(
    "change",
    [
        dict(data=pictures(9)),
        dict(methods=("grad_cam",)),
        dict(methods=(partial(rollout, start=1),)),
        dict(metrics=(SHARE,)),
        dict(metrics=(FIRST_SCORE, SHARE)),
        dict(target="label"),
        dict(batch=5),
    ],
)
def test_everything_the_rows_depend_on_is_in_it(change):
    assert a_plan(**change).fingerprint != a_plan().fingerprint


def test_weights_are_in_it():
    module = torch.nn.Linear(2, 2)
    before = hash_weights(module)
    with torch.no_grad():
        module.bias[0] += 1e-3
    assert hash_weights(module) != before


def test_examples_go_into_shards_in_order():
    plan = a_plan(batch=4)
    assert plan.shards == 3
    assert [list(plan.places(shard)) for shard in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_batch_of_none():
    with pytest.raises(InputError, match="A batch of 0 examples is none"):
        a_plan(batch=0)


def test_another_plan_is_refused_by_what_differs(tmp_path):
    write_or_check_plan(a_plan(), tmp_path)
    write_or_check_plan(a_plan(), tmp_path)
    with pytest.raises(InputError, match=r"another judgement: batch, data examples, data fingerprint, target differ"):
        write_or_check_plan(a_plan(batch=3, data=pictures(3), target=1), tmp_path)


@pytest.mark.parametrize("contents", [b"", b"{}", b"[]", b"\xff"])
def test_a_damaged_plan_is_not_overwritten(tmp_path, contents):
    (tmp_path / "plan.json").write_bytes(contents)
    with pytest.raises(InputError, match="no plan of a judgement, or it is damaged"):
        write_or_check_plan(a_plan(), tmp_path)
    assert (tmp_path / "plan.json").read_bytes() == contents


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "photos.parquet").write_text("somebody else's")
    with pytest.raises(InputError, match="files of something else"):
        write_or_check_plan(a_plan(), tmp_path)


def test_the_file_can_be_read_by_a_person(tmp_path):
    write_or_check_plan(a_plan(), tmp_path)
    held = json.loads((tmp_path / "plan.json").read_text())
    assert held["data"]["examples"] == 10 and list(held["methods"]) == ["rollout"] and held["batch"] == 4
    assert str(tmp_path) not in str(held)
