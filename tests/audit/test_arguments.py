"""Odd arguments of audit() are refused before anything is read or written, by an error that says which and why."""

import numpy as np
import pytest
import torch
from audit.known import deciding, sentences
from conftest import name_value

import whyformer as why
from whyformer.errors import InputError, MethodError, OutputError, WhyformerError

ODD = [
    0, -1, -(10**30), 10**30, "", "x", "3", 0.5, float("nan"), float("inf"), b"1", (), [2], {}, set(), object(),
    1 + 2j, torch.ones(3), np.ones(2), torch.tensor(1.5), len,
]  # fmt: skip


def audit(data=None, **changes):
    settings = dict(samples=2, steps=2, search_limit=1, tests=["replacement"]) | changes
    return why.audit(deciding(), sentences(3) if data is None else data, **settings)


def is_same(one, other) -> bool:
    return type(one) is type(other) and one == other


FINE = {"samples": (), "search_limit": (10**30,), "steps": (), "seed": (0,), "limit": (10**30,)}
whole = [(name, v) for name, fine in FINE.items() for v in [*ODD, True] if not any(is_same(v, one) for one in fine)]


@pytest.mark.parametrize(("name", "value"), whole, ids=name_value)
def test_numbers_of_audit_are_checked(name, value):
    with pytest.raises((MethodError, InputError), match=f"^{name} must be ") as raised:
        audit(**{name: value})
    assert raised.value.code == "E_OPTION" and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["samples", "seed"])
def test_none_is_no_number(name):
    with pytest.raises(MethodError, match=f"{name} must be a whole number, got None"):
        audit(**{name: None})


@pytest.mark.parametrize("top", [*(value for value in ODD if not is_same(value, 0.5)), None, True, 1.1], ids=name_value)
def test_the_share_is_checked(top):
    with pytest.raises(MethodError, match="top must be a share of the tokens") as raised:
        audit(top=top)
    assert raised.value.code == "E_OPTION"


@pytest.mark.parametrize("name", ["tests", "kinds"])
@pytest.mark.parametrize("value", [*ODD, [None], [[]], ["agreement", "x"], True], ids=name_value)
def test_names_of_tests_and_replacements_are_checked(name, value):
    with pytest.raises(MethodError, match=r"(There is no|No) (test|replacement) .*Available: ") as raised:
        audit(**{name: value})
    assert raised.value.code == "E_OPTION"


def test_one_name_need_not_be_a_list():
    assert audit(tests="replacement", kinds="uniform").settings["kinds"] == ["uniform"]


@pytest.mark.parametrize("value", [*ODD[4:], None, [[]], True, ("last", 1), (0, "x"), [None], 99, -99], ids=name_value)
def test_the_attention_is_checked(value):
    with pytest.raises(MethodError) as raised:
        audit(attention=value)
    assert raised.value.code == "E_OPTION"


@pytest.mark.parametrize("value", [*ODD, None, True], ids=name_value)
def test_the_preset_is_checked(value):
    with pytest.raises(MethodError, match="There is no preset") as raised:
        audit(preset=value)
    assert raised.value.code == "E_OPTION"


@pytest.mark.parametrize("value", [*(v for v in ODD if not is_same(v, ())), [None], ["lrp", "lrp"]], ids=name_value)
def test_methods_of_audit_are_checked(value):
    with pytest.raises(MethodError) as raised:
        audit(methods=value)
    assert raised.value.code in ("E_METHOD", "E_OPTION")


@pytest.mark.parametrize("value", [None, 0, 1, "no", [], object()], ids=name_value)
def test_words_only_is_true_or_false(value):
    with pytest.raises(MethodError, match="words_only must be True or False"):
        audit(words_only=value)


def test_numbers_of_numpy_and_torch_are_plain_numbers_in_the_plan():
    found = audit(samples=np.int64(2), seed=torch.tensor(3), top=np.float64(0.5), words_only=np.bool_(True))
    assert [found.settings[name] for name in ("draws", "seed", "top", "words_only")] == [2, 3, 0.5, True]


@pytest.mark.parametrize("data", ["", "  ", torch.tensor(1.0), 3, b"x", object(), [], {}, [3, None]], ids=name_value)
@pytest.mark.parametrize("name", ["data", "training"])
def test_data_that_are_none_are_refused(name, data, tmp_path, monkeypatch):
    """An empty name is not the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").write_bytes(b"not read")
    with pytest.raises(InputError) as raised:
        audit(**{name: data})
    assert raised.value.code in ("E_DATA", "E_INPUT")


@pytest.mark.parametrize("value", [3, object(), [None], "no/such/model", [""]], ids=name_value)
@pytest.mark.parametrize("name", ["checkpoints", "baseline"])
def test_other_models_are_checked(name, value):
    with pytest.raises(WhyformerError):
        audit(**{name: value})


def test_one_checkpoint_need_not_be_a_list():
    assert audit(tests=["seeds"], checkpoints=deciding()).summary["attention"]["block 0"]["seeds"]


@pytest.mark.parametrize("name", ["audit.html", "audit.json", "a/b.TXT"])
def test_a_folder_called_like_a_file_is_refused(name, tmp_path):
    with pytest.raises(OutputError, match=r"looks like a file\. Give a folder") as raised:
        audit(out=tmp_path / name)
    assert raised.value.code == "E_OUT_PATH" and not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(OutputError, match=r"is a file\. Give a folder"):
        audit(out=tmp_path / "run")


@pytest.mark.parametrize("out", [3, True, b"run", [], object()], ids=name_value)
def test_a_folder_is_named_by_a_path(out):
    with pytest.raises(InputError, match="out must be the path of a folder"):
        audit(out=out)
