"""Which engine runs: the first that accepts, why not the others, and what `why.engine` asks for."""

import inspect
import logging
import re
from pathlib import Path

import pytest

import whyformer as why
from whyformer._engine.capture.capture import RunSetting, run_setting
from whyformer._engine.plan import runner
from whyformer._engine.probe.batching import Batching, chosen_batching
from whyformer._engine.program import replay
from whyformer._engine.tracing.tiles import TileSetting, current_setting

TEXT = "a gorgeous, witty, seductive film"


@pytest.fixture(autouse=True)
def fresh():
    token = run_setting.set(RunSetting(replay=None, plan=None))
    replay.KNOWN.clear()
    yield
    replay.KNOWN.clear()
    run_setting.reset(token)


def test_the_engine_and_the_reasons_are_part_of_an_explanation():
    model = why.open("demo/sentiment")
    engines = [why.explain(model, TEXT, "rollout").engine for _ in range(6)]
    assert [engine.name for engine in engines[-2:]] == ["plan"] * 2 and engines[0].name == "full"
    assert engines[0].reasons == {"plan": runner.NOT_LEARNT, "program": "programs do not pay on a CPU"}
    assert runner.TRIED in [engine.reasons.get("plan") for engine in engines]
    assert engines[-1].reasons == {}


def test_a_prompt_runs_by_plan_at_once_where_that_is_asked_for():
    model = why.open("demo/decoder")
    with why.engine(plan=True):
        assert str(why.explain(model, "the keys to the cabinet", "attnlrp").engine) == "plan"
    with why.engine(plan=False):
        off = why.explain(model, "the keys to the cabinet", "attnlrp").engine
    assert off.reasons["plan"] == "switched off"


def test_a_capture_says_it_too():
    model = why.open("demo/sentiment")
    encoded = model.encode(TEXT)
    with why.engine(replay=None):
        assert why.record(model, encoded, keep={"residual"}).engine.reasons["plan"].startswith("more is needed")
    absorbed = why.record(model, encoded, keep={"mask"}, track_absorbed=True).engine
    assert set(absorbed.reasons.values()) == {"relevance that does not reach the input is tracked"}


def test_a_refused_recording_keeps_its_reason(monkeypatch):
    monkeypatch.setattr(replay, "RECORDED_AT", 1)

    def refuse(request):
        raise replay.Unrecordable("the model draws random numbers")

    monkeypatch.setattr(replay, "record_run", refuse)
    model = why.open("demo/sentiment")
    with why.engine(plan=False, replay=True):
        for _ in range(2):
            engine = why.explain(model, TEXT, "rollout").engine
            assert (engine.name, engine.reasons["program"]) == ("full", "the model draws random numbers")


def test_the_log_has_one_line_for_each_run(caplog):
    with caplog.at_level(logging.DEBUG, logger="whyformer"):
        why.explain("demo/sentiment", TEXT, "rollout")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "whyformer"]
    assert line.startswith("demo/sentiment: full; plan: ") and "; program: programs do not pay" in line


def test_the_doctor_shows_it():
    found = why.diagnose("demo/sentiment", TEXT, ["rollout"]).found
    assert found["engine"].startswith("full; plan: the second call learns a plan; program: ")


def test_the_engine_is_not_saved(tmp_path):
    explanation = why.explain("demo/sentiment", TEXT, "rollout")
    for name in ("e.json", "e.safetensors"):
        explanation.save(tmp_path / name)
        assert why.load(tmp_path / name).engine is None
    assert b'"engine"' not in (tmp_path / "e.json").read_bytes()


# --- why.engine ------------------------------------------------------------------------------------------------------


def test_options_that_are_not_given_stay_as_they_are_outside():
    with why.engine(replay=False, tiles=5, rows=7), why.engine(plan=True, ahead=False):
        assert run_setting.get() == RunSetting(replay=False, plan=True)
        assert current_setting.get() == TileSetting(rows=5)
        assert chosen_batching.get() == Batching(rows=7, ahead=False)
    assert (run_setting.get(), chosen_batching.get()) == (RunSetting(replay=None, plan=None), Batching())


def test_the_documentation_has_every_option_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    table = page.partition("| option | value |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(inspect.signature(why.engine).parameters)
