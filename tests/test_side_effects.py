"""What belongs to the caller and a call could touch: random numbers, and where torch puts constants."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import IMAGES_ONLY, QUICK, animal

import whyformer as why
from whyformer.methods._registry import METHODS

SCRIPT = """
import os, random, sys
import torch
sys.path.insert(0, {tests!r})
from conftest import animal
module, inputs = animal("bert").module, animal("bert").inputs


def check_first_call(call, mode):
    import whyformer as why
    before = random.getstate()
    with mode:
        print(call(why))
    assert random.getstate() == before, "random"
    from whyformer.show import colours
    assert colours.RGB_TO_LMS.device.type == "cpu", "device"


def run_in_child(*given):
    # in a copy of this process, which has not imported whyformer
    child = os.fork()
    if child == 0:
        try:
            check_first_call(*given)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, given


calls = (
    lambda why: why.explain(module, inputs, "rollout"),
    lambda why: why.compare(module, inputs, ["rollout", "attnlrp"]),
)
assert "whyformer" not in sys.modules
for call in calls:
    for mode in (torch.no_grad(), torch.device("meta")):
        run_in_child(call, mode)
"""


def test_the_first_call_of_a_process_leaves_the_caller_alone(request):
    script = SCRIPT.format(tests=str(request.config.rootpath / "tests"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-800:]


def read_random_states():
    numpy_state = np.random.get_state()
    return random.getstate(), tuple(numpy_state[1]), numpy_state[2:], torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_leaves_the_random_state_of_python_numpy_and_torch(name):
    model = animal("vit" if name in IMAGES_ONLY else "bert")
    call = lambda: why.explain(model.module, model.inputs, name, **QUICK.get(name, {}))  # noqa: E731
    call()  # what is imported at the first call may draw
    before = read_random_states()
    call()
    assert read_random_states() == before
