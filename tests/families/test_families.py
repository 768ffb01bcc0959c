"""A sample of the classes of transformers: nothing is refused, and every check passes. All of them: `make slow`."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from families import checks, support
from families.cases import ModelClass, build_case, list_classes

SAMPLE = [
    ModelClass("seq_cls", "bert", "BertForSequenceClassification"),
    ModelClass("image_cls", "vit", "ViTForImageClassification"),
    ModelClass("causal_lm", "mixtral", "MixtralForCausalLM"),
    ModelClass("causal_lm", "jamba", "JambaForCausalLM"),
    ModelClass("causal_lm", "deepseek_v3", "DeepseekV3ForCausalLM"),
    ModelClass("token_cls", "distilbert", "DistilBertForTokenClassification"),
]
OPEN_FAULTS = {"DeepseekV3ForCausalLM": {"loud"}}  # the loud token ranks first at 4 of 8 positions


check_once = cache(lambda chosen: checks.check_case(build_case(chosen)))


def get_name(chosen: ModelClass) -> str:
    return chosen.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chosen", SAMPLE, ids=get_name)
def test_nothing_is_refused_and_nobody_misled(chosen):
    outcome = check_once(chosen)
    assert {outcome.words[method] for method in checks.TRIED} <= {"ok", "zero"}, outcome.reasons
    failed = {check for check in support.CHECKS if check != "first" and outcome.words[check] not in ("ok", "n/a")}
    assert failed == OPEN_FAULTS.get(chosen.name, set()), outcome.reasons
    assert outcome.words["conserved"] == outcome.words["unchanged"] == "ok"


def test_a_hybrid_says_that_some_blocks_have_no_attention():
    outcome = check_once(SAMPLE[3])
    assert outcome.words["noted"] == "ok"


def test_the_table_has_every_class_of_its_architectures_and_reaches_what_is_promised():
    """An architecture that came with a newer transformers is not in it before `make sweep`."""
    lines = support.read_table()
    known = {line.architecture for line in lines}
    classes = [(one.task, one.architecture, one.name) for one in list_classes() if one.architecture in known]
    assert sorted((line.task, line.architecture, line.name) for line in lines) == sorted(classes)
    assert [line.name for line in lines if line.has_fault("FOREIGN")] == []
    right, served, counted = support.count_served(lines)
    assert right >= 0.88 * counted
    assert served >= 0.83 * counted


def test_a_loud_token_ranks_first_where_the_table_says_so():
    for line in support.read_table():
        if line.words["first"][:1].isdigit() and line.words["loud"] == "ok":
            first, heard = map(int, line.words["first"].split("/"))
            assert 2 * first > heard, line.name


def test_every_refusal_has_a_reason():
    for line in support.read_table():
        words = {word for name, word in line.words.items() if name not in ("first", "fed")}
        numbers = {word.rpartition(" ")[2] for word in words} - {"ok", "zero", "n/a", ""}
        assert numbers <= line.reasons.keys(), line.name
        assert line.state != "not built" or line.reasons, line.name


def test_the_columns_are_the_methods_and_checks_that_are_tried():
    outcome = check_once(SAMPLE[0])
    assert set(outcome.words) == {*support.METHODS, *support.CHECKS}


@pytest.mark.slow
def test_the_sweep_gives_the_table(tmp_path):
    """About an hour on one core."""
    program = Path(support.__file__).with_name("sweep.py")
    subprocess.run([sys.executable, program, "--out", tmp_path / "support.csv"], check=True)
    found = {line.name: (line.state, line.faults) for line in support.read_table(tmp_path / "support.csv")}
    told = {line.name: (line.state, line.faults) for line in support.read_table()}
    assert {name: found[name] for name in told} == told
