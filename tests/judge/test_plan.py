"""The plan of a judgement: what it holds, and how examples are divided into shards."""

import json
from functools import partial

import pytest
from judge.bench_parts import FIRST_SCORE, SHARE, a_plan, pictures

from whyformer._runs.plan import write_or_check_plan
from whyformer.errors import InputError, OutputError
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


def test_examples_go_into_shards_in_order():
    plan = a_plan(batch=4)
    assert plan.shards == 3
    assert [list(plan.indices(shard)) for shard in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_refuses_an_empty_batch():
    with pytest.raises(InputError, match="batch_size must be >= 1, got 0"):
        a_plan(batch=0)


def test_another_plan_is_refused_by_what_differs(tmp_path):
    write_or_check_plan(a_plan(), tmp_path)
    write_or_check_plan(a_plan(), tmp_path)
    with pytest.raises(OutputError, match=r"another judgement: batch, data examples, data fingerprint, target differ"):
        write_or_check_plan(a_plan(batch=3, data=pictures(3), target=1), tmp_path)


def test_the_file_can_be_read_by_a_person(tmp_path):
    write_or_check_plan(a_plan(), tmp_path)
    held = json.loads((tmp_path / "plan.json").read_text())
    assert held["data"]["examples"] == 10 and list(held["methods"]) == ["rollout"] and held["batch"] == 4
    assert str(tmp_path) not in str(held)
