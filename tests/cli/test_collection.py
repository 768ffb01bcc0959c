"""The garbage collector waits until a model is open, and then works as usual."""

import gc

import pytest
from typer.testing import CliRunner

import whyformer.cli as cli
from whyformer.cli.collection import postpone_collection, resume_collection
from whyformer.cli.running import open_quietly


@pytest.fixture(autouse=True)
def _usual_again():
    usual = gc.get_threshold()
    yield
    resume_collection()
    gc.set_threshold(*usual)


def test_the_program_postpones_it_and_an_open_model_resumes_it(monkeypatch):
    usual, seen, before = gc.get_threshold(), [], gc.get_freeze_count()

    def run():
        seen.append(gc.get_threshold())
        open_quietly("demo/untrained-bert")
        seen.append(gc.get_threshold())

    monkeypatch.setattr(cli, "app", run)
    cli.main()
    assert seen[0][0] > 100 * usual[0] and seen[1] == usual
    assert gc.get_freeze_count() > before, "what the libraries made is not looked at again"


def test_who_calls_a_command_or_opens_a_model_from_python_keeps_the_collector_as_it_is():
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert CliRunner().invoke(cli.app, ["methods"]).exit_code == 0
    open_quietly("demo/untrained-bert")
    assert gc.get_threshold() == usual and gc.get_freeze_count() <= frozen


def test_new_garbage_is_still_found():
    class Cycle:
        freed = 0

        def __init__(self):
            self.own = self

        def __del__(self):
            Cycle.freed += 1

    postpone_collection()
    resume_collection()
    Cycle()
    gc.collect()
    assert Cycle.freed == 1
