"""Odd arguments of judge() are refused before anything is read or written, by an error that says which and why."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import name_value
from judge.bench_parts import FIRST_SCORE, pictures, tiny

import whyformer as why
from whyformer._judge.judgement import Judgement
from whyformer._runs.arguments import OUTPUT_SUFFIXES
from whyformer.errors import InputError, MethodError, MetricError, OutputError, TargetError

ROLLOUT = why.METHODS["rollout"].compute


def judge(data=None, **changes):
    settings = dict(methods="rollout", metrics=FIRST_SCORE, report=False) | changes
    return why.judge(tiny(), pictures(2) if data is None else data, **settings)


def numbers(name):
    values = [0, -1, -(10**30), "x", "3", 0.5, float("nan"), float("inf"), True, b"1", (), [2], {}, object(), 1 + 2j]
    return [(name, value) for value in [*values, torch.ones(3), np.ones(2), torch.tensor(1.5)]]


@pytest.mark.parametrize(("name", "value"), [*numbers("limit"), *numbers("batch_size")], ids=name_value)
def test_numbers_of_judge_are_checked(name, value):
    with pytest.raises(InputError, match=f"^{name} must be (a whole number|>= 1), got ") as raised:
        judge(**{name: value})
    assert raised.value.code == "E_OPTION" and "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [np.int64(2), 2, 10**30], ids=name_value)
def test_whole_numbers_of_any_kind_are_taken(value):
    assert judge(limit=value, batch_size=value).plan.fields["batch"] == value


@pytest.mark.parametrize(
    "methods",
    [None, [], (), {}, set(), 3, "", "no such thing", "\x1b[31m", "\ud800", b"rollout", object(), len, [None], [[]],
     ["rollout", "rollout"], torch.ones(2), np.array(["rollout", "lrp"]), partial(len), iter(["rollout"]),
     partial(ROLLOUT, nonsense=1)],
    ids=name_value,
)  # fmt: skip
def test_methods_of_judge_are_checked(methods):
    with pytest.raises(MethodError) as raised:
        judge(methods=methods)
    assert raised.value.code in ("E_METHOD", "E_OPTION") and str(raised.value)


@pytest.mark.parametrize(
    "metrics",
    [[], (), {}, set(), 3, "", "no such thing", b"aopc", object(), len, [None], [[]], [FIRST_SCORE, FIRST_SCORE],
     torch.ones(2), np.array(["aopc"]), partial(len), float("nan")],
    ids=name_value,
)  # fmt: skip
def test_metrics_of_judge_are_checked(metrics):
    with pytest.raises(MetricError) as raised:
        judge(metrics=metrics)
    assert raised.value.code in ("E_METRIC", "E_OPTION")


@pytest.mark.parametrize(
    "target",
    [-1, 4, 10**30, 1.5, float("nan"), "", "no class", b"one", True, [0, 1], (), {}, set(), object(), torch.ones(2),
     torch.tensor(1.0), np.ones(2), 1 + 2j],
    ids=name_value,
)  # fmt: skip
def test_targets_of_judge_are_checked(target):
    with pytest.raises(TargetError) as raised:
        judge(target=target)
    assert raised.value.code == "E_TARGET"


@pytest.mark.parametrize("target", [None, "label", "one", 3, np.int64(1), torch.tensor(2)], ids=name_value)
def test_targets_that_are_classes_are_taken(target):
    assert judge(target=target).failed == 0


@pytest.mark.parametrize("data", ["", "  ", "\n", torch.tensor(1.0), 3, b"x", object(), [], {}, ["\ud800" * 3, 3]])
def test_data_that_are_none_are_refused(data, tmp_path, monkeypatch):
    """An empty name is not the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").write_bytes(b"not read")
    with pytest.raises(InputError) as raised:
        judge(data, limit=1) if data != ["\ud800" * 3, 3] else judge([3, object()])
    assert raised.value.code in ("E_DATA", "E_INPUT")


def test_no_data_is_refused():
    with pytest.raises(InputError, match="data is None") as raised:
        why.judge(tiny(), None)
    assert raised.value.code == "E_DATA"


@pytest.mark.parametrize("report", [None, 0, 1, "no", [], object()], ids=name_value)
def test_a_flag_is_true_or_false(report):
    with pytest.raises(InputError, match="report must be True or False") as raised:
        judge(report=report)
    assert raised.value.code == "E_OPTION"


# --- the folder -------------------------------------------------------------------------------------------------------


def test_every_format_is_a_suffix_that_no_folder_has():
    assert {*why.Explanation.formats, *Judgement.formats, *why.Audit.formats} <= OUTPUT_SUFFIXES


@pytest.mark.parametrize("name", ["judge.html", "table.CSV", "a/b.json", "rows.parquet"])
def test_a_folder_called_like_a_file_is_refused(name, tmp_path):
    with pytest.raises(OutputError, match=r"looks like a file\. Give a folder") as raised:
        judge(out=tmp_path / name)
    assert raised.value.code == "E_OUT_PATH" and not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(OutputError, match=r"is a file\. Give a folder"):
        judge(out=tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_folder_that_is_there_may_have_any_name(tmp_path):
    (tmp_path / "run.html").mkdir()
    assert judge(out=tmp_path / "run.html").folder == tmp_path / "run.html"
    assert judge(out=str(tmp_path / "v1.2")).folder == tmp_path / "v1.2"


@pytest.mark.parametrize("out", ["", " ", "a\0b", "x" * 5000], ids=["empty", "blank", "NUL", "long"])
def test_a_path_that_cannot_be_is_refused(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError) as raised:
        judge(out=out)
    assert raised.value.code == "E_OUT_PATH" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", [3, True, b"run", [], object()], ids=name_value)
def test_a_folder_is_named_by_a_path(out):
    with pytest.raises(InputError, match="out must be the path of a folder") as raised:
        judge(out=out)
    assert raised.value.code == "E_OPTION"


def test_reproduce_checks_the_same_arguments(tmp_path):
    from whyformer_papers.reproduction import reproduce

    with pytest.raises(OutputError, match="looks like a file"):
        reproduce("eraser-movies", pictures(2), tiny(), out=tmp_path / "table.csv")
    for name in (None, 3, [], "nothing"):
        with pytest.raises(InputError, match="There is no table") as raised:
            reproduce(name, pictures(2), tiny())
        assert raised.value.code == "E_OPTION"
