"""Weights that change during a run: an error in plain words, never a mixture and never an error of torch."""

import threading

import pytest
import torch
from conftest import animal, build

import whyformer as why
from whyformer._engine.probe.probe import Probe
from whyformer._engine.run.model_writes import refuse_changed_weights
from whyformer.errors import ModelError


def nudge(module):
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(1.001)


def nudge_elsewhere(module):
    other = threading.Thread(target=nudge, args=(module,))
    other.start()
    other.join()


def test_weights_written_to_are_noticed():
    module = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="weights changed while it was explained") as raised:  # noqa: SIM117
        with refuse_changed_weights(module):
            nudge(module)
    assert raised.value.code == "E_MODEL"


def test_unchanged_weights_pass_and_other_errors_too():
    module = torch.nn.Linear(2, 2)
    with refuse_changed_weights(module):
        module(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="an inplace operation of mine"), refuse_changed_weights(module):
        raise RuntimeError("an inplace operation of mine")


@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp", "rollout"])
def test_weights_that_change_within_the_run_are_refused(method):
    module = build("bert")
    module.classifier.register_forward_hook(lambda *_: nudge_elsewhere(module))
    with pytest.raises(ModelError, match="weights changed"):
        why.explain(module, animal("bert").inputs, method)


def test_weights_that_change_between_the_runs_of_a_probe_are_refused(monkeypatch):
    module, launch_batch = build("bert"), Probe.launch_batch

    def run_and_nudge(self, encoded, of):
        nudge(module)
        return launch_batch(self, encoded, of)

    monkeypatch.setattr(Probe, "launch_batch", run_and_nudge)
    with pytest.raises(ModelError, match="weights changed"):
        why.explain(module, animal("bert").inputs, "leave_one_out")


def test_explaining_while_another_thread_trains_works_or_says_why():
    it, module = animal("bert"), build("bert")
    stop = threading.Event()

    def train():
        optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
        while not stop.is_set():
            module(**it.inputs).logits.sum().backward()
            optimiser.step()
            optimiser.zero_grad()

    trainer = threading.Thread(target=train)
    trainer.start()
    told = 0
    try:
        for number in range(24):
            method = ("gradient_x_input", "attnlrp", "rollout", "leave_one_out")[number % 4]
            try:
                assert why.explain(module, it.inputs, method, target=0).scores.isfinite().all()
            except ModelError as error:
                told += "weights changed" in str(error)
    finally:
        stop.set()
        trainer.join()
    assert told > 0, "the weights never changed during a run; the test shows nothing"
