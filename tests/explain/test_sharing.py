"""Which methods share a run of the model, and which errors stop everything."""

from functools import partial

import pytest
import torch

from whyformer._explain.method_call import label_methods
from whyformer._explain.sharing import explain_by_each, record_for_methods, share_captures
from whyformer._model.loading import open as open_model
from whyformer.errors import NotCaptured, TargetError
from whyformer.methods._registry import METHODS

lrp = METHODS["lrp"].compute


def run_that_fails_for_several(runs, error):
    def run(calls):
        runs.append([call.method.name for call in calls])
        if len(calls) > 1:
            raise error
        return calls[0].method.name

    return run


def test_without_a_common_run_methods_with_the_same_needs_share_one():
    calls = label_methods(["rollout", partial(METHODS["rollout"].compute, start=1), "attcat"])
    runs = []
    captures = share_captures(list(calls.values()), run_that_fails_for_several(runs, NotCaptured("no attention")))
    assert captures == ["rollout", "rollout", "attcat"]
    assert runs == [["rollout", "rollout", "attcat"], ["rollout"], ["attcat"]]


def test_a_check_of_conservation_needs_a_run_of_its_own():
    calls = label_methods(["lrp", partial(lrp, health=True)])
    runs = []
    share_captures(list(calls.values()), run_that_fails_for_several(runs, NotCaptured("no attention")))
    assert len(runs) == 3


@pytest.mark.parametrize("error", [TargetError("no class 99"), MemoryError(), torch.OutOfMemoryError("full")])
def test_other_errors_stop_the_run(error):
    calls = list(label_methods(["rollout", "attcat"]).values())
    with pytest.raises(type(error)):
        share_captures(calls, run_that_fails_for_several([], error))
    if not isinstance(error, TargetError):  # running out of memory is never tolerated
        with pytest.raises(type(error)):
            share_captures(calls, run_that_fails_for_several([], error), tolerate=(Exception,))


def test_a_failed_run_is_the_failure_of_its_methods(zoo):
    model = open_model(zoo("bert").module)
    encoded = model.encode(zoo("bert").inputs)
    calls = label_methods(["rollout", "attcat"])
    capture = record_for_methods([calls["attcat"]], model, encoded, None, None, extra_sites={"readout"})
    assert capture["readout"].shape[0] == encoded.batch
    captures = [NotCaptured("no attention"), capture]
    explanations, failures = explain_by_each(calls, captures, model, encoded, tolerate=(NotCaptured,))
    assert list(explanations) == ["attcat"] and {label: str(e) for label, e in failures.items()} == {
        "rollout": "no attention"
    }
    with pytest.raises(NotCaptured, match="no attention"):
        explain_by_each(calls, captures, model, encoded, tolerate=())
